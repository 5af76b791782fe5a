"""Who is told of events, and the deliveries."""

import uuid

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.events.outbox
import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0020_drop_repeated_indexes"),
        ("config", "0008_events"),
    ]

    operations = [
        migrations.CreateModel(
            name="Subscription",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                (
                    "form",
                    models.CharField(
                        choices=[
                            ("webhook", "webhook"),
                            ("slack", "Slack-compatible"),
                            ("email", "e-mail"),
                        ],
                        max_length=16,
                    ),
                ),
                ("name", models.CharField(blank=True, max_length=255)),
                ("url", models.CharField(blank=True, max_length=2048, verbose_name="URL")),
                ("email", models.EmailField(blank=True, max_length=254, verbose_name="address")),
                (
                    "kinds",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=64),
                        blank=True,
                        help_text="The kinds of events to send; empty for all.",
                        null=True,
                        size=None,
                    ),
                ),
                ("sealed", models.BinaryField(default=b"")),
                ("previous", models.BinaryField(default=b"")),
                ("previous_until", models.DateTimeField(editable=False, null=True)),
                ("disabled", models.BooleanField(default=False, editable=False)),
                ("disabled_reason", models.CharField(default="", editable=False, max_length=255)),
                (
                    "failures",
                    models.PositiveIntegerField(
                        default=0,
                        editable=False,
                        help_text="Attempts that failed since the last success.",
                    ),
                ),
                ("failing_since", models.DateTimeField(editable=False, null=True)),
                (
                    "retry_at",
                    models.DateTimeField(
                        editable=False,
                        help_text="Nothing is sent before, because attempts failed.",
                        null=True,
                    ),
                ),
                (
                    "member",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="subscriptions",
                        to="accounts.member",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        blank=True,
                        help_text="Leave it empty to send the events of all organizations to operators.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="subscriptions",
                        to="accounts.organization",
                    ),
                ),
            ],
            options={
                "ordering": ("organization", "created_at", "id"),
            },
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=config.events.outbox.new_event_id,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "pending"),
                            ("delivered", "delivered"),
                            ("failed", "failed"),
                            ("held", "held back"),
                            ("digested", "told by a digest"),
                        ],
                        db_default="pending",
                        default="pending",
                        max_length=16,
                    ),
                ),
                ("attempts", models.PositiveIntegerField(db_default=0, default=0)),
                (
                    "next_attempt_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                ("response_status", models.PositiveSmallIntegerField(null=True)),
                ("error", models.CharField(db_default="", default="", max_length=255)),
                ("duration_ms", models.PositiveIntegerField(null=True)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                ("delivered_at", models.DateTimeField(null=True)),
                (
                    "event",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="config.event",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="accounts.organization",
                    ),
                ),
                (
                    "subscription",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="accounts.subscription",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "deliveries",
                "ordering": ("-id",),
            },
        ),
        migrations.AddConstraint(
            model_name="subscription",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("form", "email"),
                        ("url", ""),
                        models.Q(
                            models.Q(("email", ""), _negated=True),
                            ("member__isnull", False),
                            _connector="OR",
                        ),
                    ),
                    models.Q(
                        models.Q(("form", "email"), _negated=True),
                        models.Q(("url", ""), _negated=True),
                        models.Q(("sealed", b""), _negated=True),
                        ("email", ""),
                        ("member", None),
                    ),
                    _connector="OR",
                ),
                name="subscription_has_a_receiver",
            ),
        ),
        migrations.AddConstraint(
            model_name="subscription",
            constraint=models.CheckConstraint(
                condition=models.Q(("form", "webhook"), ("previous", b""), _connector="OR"),
                name="subscription_webhooks_rotate",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="subscription",
            trigger=pgtrigger.compiler.Trigger(
                name="stay_still",
                sql=config.triggers.TriggerSql(
                    declare="DECLARE\n    found text;",
                    func="SELECT residence INTO found FROM accounts_organization\nWHERE id = coalesce(NEW.organization_id, OLD.organization_id) FOR KEY SHARE;\nIF found <> 'here' THEN\n    RAISE EXCEPTION 'the organization is moving to another cell; try again in a minute'\n    USING ERRCODE = '57CW1';\nEND IF;\nRETURN coalesce(NEW, OLD);",
                    hash="85ade8cc1a45206ab431e55d0121b584e6b01853",
                    operation='INSERT OR UPDATE OF "name", "url", "email", "kinds", "sealed", "previous", "disabled" OR DELETE',
                    pgid="pgtrigger_stay_still_03ed5",
                    table="accounts_subscription",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="subscription",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'failures', 'failing_since', 'retry_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'failures', 'failing_since', 'retry_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nSELECT was || coalesce(jsonb_object_agg(key, '********'), '{}') INTO was\nFROM jsonb_each(was) WHERE key = ANY (ARRAY['sealed', 'previous']) AND value <> 'null';\nSELECT becomes || coalesce(jsonb_object_agg(key, '********'), '{}') INTO becomes\nFROM jsonb_each(becomes) WHERE key = ANY (ARRAY['sealed', 'previous']) AND value <> 'null';\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'accounts.subscription',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="d0922e732a0e7a5d8727899f5a4576c243d73c0f",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_93875",
                    table="accounts_subscription",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddIndex(
            model_name="delivery",
            index=models.Index(
                condition=models.Q(("status", "pending")),
                fields=["subscription", "next_attempt_at"],
                name="delivery_waiting",
            ),
        ),
        migrations.AddIndex(
            model_name="delivery",
            index=models.Index(
                condition=models.Q(("status", "held")),
                fields=["subscription", "-id"],
                name="delivery_held",
            ),
        ),
        migrations.AddIndex(
            model_name="delivery",
            index=models.Index(fields=["subscription", "-id"], name="delivery_log"),
        ),
        migrations.AddIndex(
            model_name="delivery",
            index=models.Index(fields=["organization", "-id"], name="delivery_by_organization"),
        ),
        migrations.AddIndex(
            model_name="delivery",
            index=models.Index(fields=["event"], name="delivery_by_event"),
        ),
        migrations.AddConstraint(
            model_name="delivery",
            constraint=models.UniqueConstraint(
                fields=("subscription", "event"), name="delivery_once"
            ),
        ),
        migrations.AddConstraint(
            model_name="delivery",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("delivered_at__isnull", False), ("status", "delivered")),
                    models.Q(("status", "delivered"), _negated=True),
                    _connector="OR",
                ),
                name="delivery_stamp",
            ),
        ),
    ]
