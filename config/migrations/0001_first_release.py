"""Operators, the audit log, events, change sets, leases and the console's own rows."""

import django.contrib.auth.models
import django.contrib.postgres.functions
import django.db.models.deletion
import django.db.models.functions.datetime
import pgtrigger.compiler
import pgtrigger.migrations
from django.conf import settings
from django.db import migrations, models

import config.events.outbox
import config.triggers
from config.database.replaced import REPLACED
from config.partitions.creation import divide
from config.partitions.declarations import Partitioning
from config.partitions.spans import QUARTER

ENTRIES = Partitioning("config_auditentry", "at", QUARTER)


def make_rules(apps, schema_editor):
    """Creates a rule for each kind of this release."""
    rule = apps.get_model("config", "ChangeRule")
    kinds = ("prices", "guardrails", "deletions", "credentials", "management_keys")
    rule.objects.bulk_create(rule(kind=kind) for kind in kinds)


def divide_auditentry(apps, schema_editor):
    divide(ENTRIES, ("id", "at"))


class Migration(migrations.Migration):
    initial = True

    replaces = [("config", name) for name in REPLACED["config"]]

    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("otp_static", "0003_add_timestamps"),
        ("otp_totp", "0003_add_timestamps"),
    ]

    operations = [
        migrations.CreateModel(
            name="Lease",
            fields=[
                ("name", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("until", models.DateTimeField()),
                ("holder", models.CharField(db_default="", default="", max_length=128)),
                ("renewed_at", models.DateTimeField(null=True)),
                ("every_seconds", models.FloatField(null=True)),
                (
                    "succeeded_at",
                    models.DateTimeField(
                        db_default=django.contrib.postgres.functions.TransactionNow()
                    ),
                ),
                ("failures", models.IntegerField(db_default=0, default=0)),
                ("result", models.BigIntegerField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="AuditedGroup",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
            },
            bases=("auth.group",),
            managers=[
                ("objects", django.contrib.auth.models.GroupManager()),
            ],
        ),
        migrations.CreateModel(
            name="AuditedGroupPermission",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
            },
            bases=("auth.group_permissions",),
        ),
        migrations.CreateModel(
            name="AuditedUser",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
            },
            bases=("auth.user",),
            managers=[
                ("objects", django.contrib.auth.models.UserManager()),
            ],
        ),
        migrations.CreateModel(
            name="AuditedUserGroup",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
            },
            bases=("auth.user_groups",),
        ),
        migrations.CreateModel(
            name="AuditedUserPermission",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
            },
            bases=("auth.user_user_permissions",),
        ),
        migrations.CreateModel(
            name="BackupCodes",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
            },
            bases=("otp_static.staticdevice",),
        ),
        migrations.CreateModel(
            name="SecondFactor",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
            },
            bases=("otp_totp.totpdevice",),
        ),
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("actor", models.CharField(editable=False, max_length=255)),
                ("action", models.CharField(editable=False, max_length=255)),
                (
                    "kind",
                    models.CharField(editable=False, help_text="As app.model.", max_length=100),
                ),
                (
                    "object_id",
                    models.CharField(editable=False, max_length=255, verbose_name="object ID"),
                ),
                (
                    "organization_id",
                    models.UUIDField(editable=False, null=True, verbose_name="organization ID"),
                ),
                ("before", models.JSONField(editable=False, null=True)),
                ("after", models.JSONField(editable=False, null=True)),
                (
                    "request_id",
                    models.CharField(
                        db_default="",
                        default="",
                        editable=False,
                        max_length=64,
                        verbose_name="request ID",
                    ),
                ),
            ],
            options={
                "verbose_name": "audit entry",
                "verbose_name_plural": "audit log",
                "ordering": ("-id",),
                "indexes": [
                    models.Index(fields=["at"], name="audit_by_time"),
                    models.Index(fields=["kind", "-id"], name="audit_by_kind"),
                    models.Index(fields=["object_id", "-id"], name="audit_by_object"),
                    models.Index(fields=["organization_id", "-id"], name="audit_by_organization"),
                    models.Index(fields=["actor", "-id"], name="audit_by_actor"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("before__isnull", False), ("after__isnull", False), _connector="OR"
                        ),
                        name="audit_says_something",
                    )
                ],
            },
        ),
        migrations.RunPython(divide_auditentry, migrations.RunPython.noop),
        migrations.CreateModel(
            name="SignInLimit",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "scope",
                    models.CharField(
                        choices=[
                            ("address", "address"),
                            ("account", "account"),
                            ("pair", "account and address"),
                        ],
                        editable=False,
                        max_length=8,
                    ),
                ),
                ("account", models.CharField(default="", editable=False, max_length=150)),
                (
                    "network",
                    models.CharField(
                        default="",
                        editable=False,
                        help_text="An IPv6 address by its /64.",
                        max_length=64,
                        verbose_name="address",
                    ),
                ),
                ("failures", models.PositiveIntegerField(editable=False)),
                ("resets_at", models.DateTimeField(editable=False)),
                ("signed_in_at", models.DateTimeField(editable=False, null=True)),
            ],
            options={
                "verbose_name": "sign-in limit",
                "ordering": ("-resets_at",),
                "indexes": [models.Index(fields=["-resets_at"], name="sign_in_limit_by_time")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("scope", "account", "network"), name="sign_in_limit_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Departure",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=32)),
                (
                    "begin",
                    models.DateTimeField(
                        help_text="Empty for everything before the end.", null=True
                    ),
                ),
                ("end", models.DateTimeField()),
                (
                    "files",
                    models.JSONField(
                        help_text="The files of the archive, each with its table, rows and digest."
                    ),
                ),
                ("seal", models.CharField(max_length=64)),
                (
                    "left_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
            ],
            options={
                "ordering": ("id",),
            },
        ),
        migrations.CreateModel(
            name="Event",
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
                    "organization_id",
                    models.UUIDField(editable=False, null=True, verbose_name="organization ID"),
                ),
                ("kind", models.CharField(editable=False, max_length=64)),
                ("data", models.JSONField(editable=False)),
                ("once_key", models.CharField(editable=False, max_length=255, null=True)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("dispatched_at", models.DateTimeField(editable=False, null=True)),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("dispatched_at", None)),
                        fields=["id"],
                        name="event_waiting",
                    ),
                    models.Index(fields=["organization_id", "-id"], name="event_by_organization"),
                    models.Index(fields=["kind", "-id"], name="event_by_kind"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("once_key__isnull", False)),
                        fields=("once_key",),
                        name="event_once",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ChangeRule",
            fields=[
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("prices", "Prices"),
                            ("guardrails", "Workspace-wide guardrails"),
                            ("deletions", "Deletions"),
                            ("credentials", "Provider credentials"),
                            ("management_keys", "Management keys"),
                        ],
                        editable=False,
                        max_length=16,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "is_required",
                    models.BooleanField(
                        default=False, editable=False, verbose_name="second person"
                    ),
                ),
            ],
            options={
                "ordering": ("kind",),
            },
        ),
        migrations.CreateModel(
            name="ChangeSet",
            fields=[
                (
                    "id",
                    models.BigAutoField(primary_key=True, serialize=False, verbose_name="number"),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("prices", "Prices"),
                            ("guardrails", "Workspace-wide guardrails"),
                            ("deletions", "Deletions"),
                            ("credentials", "Provider credentials"),
                            ("management_keys", "Management keys"),
                        ],
                        editable=False,
                        max_length=16,
                    ),
                ),
                ("operation", models.CharField(editable=False, max_length=64)),
                (
                    "page",
                    models.CharField(editable=False, help_text="As app.model.", max_length=100),
                ),
                (
                    "object_id",
                    models.CharField(
                        default="", editable=False, max_length=255, verbose_name="object ID"
                    ),
                ),
                ("subject", models.CharField(editable=False, max_length=1100)),
                (
                    "organization_id",
                    models.UUIDField(editable=False, null=True, verbose_name="organization ID"),
                ),
                ("needs", models.CharField(editable=False, max_length=200)),
                ("arguments", models.JSONField(editable=False)),
                ("sealed_arguments", models.BinaryField(null=True)),
                ("state", models.JSONField(editable=False)),
                ("changes", models.JSONField(editable=False)),
                ("reason", models.TextField(editable=False)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("proposed", "proposed"),
                            ("applied", "applied"),
                            ("rejected", "rejected"),
                            ("withdrawn", "withdrawn"),
                            ("outdated", "outdated"),
                            ("expired", "expired"),
                        ],
                        default="proposed",
                        editable=False,
                        max_length=16,
                    ),
                ),
                ("proposed_by", models.CharField(editable=False, max_length=255)),
                (
                    "proposed_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("decided_at", models.DateTimeField(editable=False, null=True)),
                ("decided_by", models.CharField(default="", editable=False, max_length=255)),
                ("outcome", models.TextField(default="", editable=False)),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("status", "proposed")),
                        fields=["proposed_at"],
                        name="change_sets_waiting",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("decided_at", None), ("status", "proposed")),
                            models.Q(
                                ("decided_at__isnull", False),
                                ("sealed_arguments", None),
                                models.Q(("status", "proposed"), _negated=True),
                            ),
                            _connector="OR",
                        ),
                        name="change_set_is_consistent",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("status", "applied"), _negated=True),
                            models.Q(("decided_by", models.F("proposed_by")), _negated=True),
                            _connector="OR",
                        ),
                        name="change_set_needs_two",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="SavedView",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("page", models.CharField(max_length=100)),
                ("name", models.CharField(max_length=60)),
                ("query", models.TextField()),
                ("is_default", models.BooleanField(db_default=False, default=False)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                (
                    "operator",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("is_shared", models.BooleanField(db_default=False, default=False)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("operator", "page", "name"), name="saved_view_name"
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("is_default", True)),
                        fields=("operator", "page"),
                        name="saved_view_default",
                    ),
                ],
            },
        ),
        migrations.RunPython(make_rules, migrations.RunPython.noop),
        pgtrigger.migrations.AddTrigger(
            model_name="auditedgroup",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'auth.group',\n    changed ->> 'id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="84a0c15882b599be62f69d0c54094a3f1e93f62d",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_7ecb6",
                    table="auth_group",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="auditedgrouppermission",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'id']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'id']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'auth.group_permissions',\n    changed ->> 'group_id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="16acfda0780592daeecef6773a659752cd72a7ee",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_4cd6e",
                    table="auth_group_permissions",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="auditeduser",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'last_login', 'date_joined']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'last_login', 'date_joined']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nSELECT was || coalesce(jsonb_object_agg(key, '********'), '{}') INTO was\nFROM jsonb_each(was) WHERE key = ANY (ARRAY['password']) AND value <> 'null';\nSELECT becomes || coalesce(jsonb_object_agg(key, '********'), '{}') INTO becomes\nFROM jsonb_each(becomes) WHERE key = ANY (ARRAY['password']) AND value <> 'null';\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'auth.user',\n    changed ->> 'id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="4fd34e2ae6c38bd3d42d244377ad39c3b9919735",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_4baa7",
                    table="auth_user",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="auditedusergroup",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'id']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'id']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'auth.user_groups',\n    changed ->> 'user_id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="94f173f82b9859566358fd0acf913e5271217148",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_058ed",
                    table="auth_user_groups",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="auditeduserpermission",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'id']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'id']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'auth.user_user_permissions',\n    changed ->> 'user_id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="5883f547b7dc93d33fcaef6fb0b96a23f8cc1896",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_fbf6c",
                    table="auth_user_user_permissions",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="backupcodes",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'throttling_failure_timestamp', 'throttling_failure_count', 'last_used_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'throttling_failure_timestamp', 'throttling_failure_count', 'last_used_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'otp_static.staticdevice',\n    changed ->> 'id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="1725f4bee36116cd13014ec34111cb21986d1a41",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_f900a",
                    table="otp_static_staticdevice",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="secondfactor",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'throttling_failure_timestamp', 'throttling_failure_count', 'last_used_at', 'drift', 'last_t']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'throttling_failure_timestamp', 'throttling_failure_count', 'last_used_at', 'drift', 'last_t']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nSELECT was || coalesce(jsonb_object_agg(key, '********'), '{}') INTO was\nFROM jsonb_each(was) WHERE key = ANY (ARRAY['key']) AND value <> 'null';\nSELECT becomes || coalesce(jsonb_object_agg(key, '********'), '{}') INTO becomes\nFROM jsonb_each(becomes) WHERE key = ANY (ARRAY['key']) AND value <> 'null';\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'otp_totp.totpdevice',\n    changed ->> 'id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="802d5c69a16bb94b0390703a2cbe44db9f0c5b3a",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_5dca6",
                    table="otp_totp_totpdevice",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="auditentry",
            trigger=pgtrigger.compiler.Trigger(
                name="append_only",
                sql=config.triggers.TriggerSql(
                    func="RAISE EXCEPTION 'the audit log is never changed' USING ERRCODE = 'restrict_violation';",
                    hash="4b97c147d749c3f02e657e216ecbd8edf36f1c45",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_append_only_81b15",
                    table="config_auditentry",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="departure",
            trigger=pgtrigger.compiler.Trigger(
                name="append_only",
                sql=config.triggers.TriggerSql(
                    func="RAISE EXCEPTION 'what has left is never changed' USING ERRCODE = 'restrict_violation';",
                    hash="9e9f94ba0eab878a1e428e1fbeab92398f2b81c1",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_append_only_5120c",
                    table="config_departure",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="changerule",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'config.changerule',\n    changed ->> 'kind', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="2a148448f0809be0cc53704900736e6bdf2593d6",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_35bde",
                    table="config_changerule",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="changeset",
            trigger=pgtrigger.compiler.Trigger(
                name="append_only",
                sql=config.triggers.TriggerSql(
                    func="IF TG_OP = 'UPDATE' AND (OLD.status = 'proposed')\n   AND (NEW.id, NEW.kind, NEW.operation, NEW.page, NEW.object_id, NEW.subject, NEW.organization_id, NEW.needs, NEW.arguments, NEW.state, NEW.changes, NEW.reason, NEW.proposed_by, NEW.proposed_at)\n       IS NOT DISTINCT FROM\n       (OLD.id, OLD.kind, OLD.operation, OLD.page, OLD.object_id, OLD.subject, OLD.organization_id, OLD.needs, OLD.arguments, OLD.state, OLD.changes, OLD.reason, OLD.proposed_by, OLD.proposed_at)\nTHEN\n    RETURN NEW;\nEND IF;\nRAISE EXCEPTION 'a change set stays as it was proposed' USING ERRCODE = 'restrict_violation';",
                    hash="3320df2b00a592b20ad6018b44ea5ab6fcf7710e",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_append_only_38534",
                    table="config_changeset",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="changeset",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'arguments', 'state', 'changes', 'proposed_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'arguments', 'state', 'changes', 'proposed_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nSELECT was || coalesce(jsonb_object_agg(key, '********'), '{}') INTO was\nFROM jsonb_each(was) WHERE key = ANY (ARRAY['sealed_arguments']) AND value <> 'null';\nSELECT becomes || coalesce(jsonb_object_agg(key, '********'), '{}') INTO becomes\nFROM jsonb_each(becomes) WHERE key = ANY (ARRAY['sealed_arguments']) AND value <> 'null';\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'config.changeset',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="650b99c1694dc90825a751bb472542ada95d4834",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_8d004",
                    table="config_changeset",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="savedview",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'is_default']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'is_default']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nSELECT was || coalesce(jsonb_object_agg(key, '********'), '{}') INTO was\nFROM jsonb_each(was) WHERE key = ANY (ARRAY['query']) AND value <> 'null';\nSELECT becomes || coalesce(jsonb_object_agg(key, '********'), '{}') INTO becomes\nFROM jsonb_each(becomes) WHERE key = ANY (ARRAY['query']) AND value <> 'null';\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'config.savedview',\n    changed ->> 'id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="8a3a60e4a534427fae3dda6310725956c78f3588",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_9aedf",
                    table="config_savedview",
                    when="AFTER",
                ),
            ),
        ),
    ]
