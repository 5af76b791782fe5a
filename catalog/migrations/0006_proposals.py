"""The origin of prices, and the changes that public price lists propose."""

import uuid

import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0005_describe_models"),
    ]

    operations = [
        migrations.AddField(
            model_name="modelendpoint",
            name="as_of",
            field=models.DateField(
                editable=False, help_text="The day of the price list.", null=True
            ),
        ),
        migrations.AddField(
            model_name="modelendpoint",
            name="source",
            field=models.CharField(
                db_default="",
                default="",
                editable=False,
                help_text="The price list that the price comes from. Empty: an operator set it.",
                max_length=255,
            ),
        ),
        migrations.CreateModel(
            name="CatalogProposal",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("source", models.CharField(editable=False, max_length=32)),
                ("as_of", models.DateField(editable=False)),
                ("subject", models.CharField(editable=False, max_length=1100)),
                ("endpoint_id", models.UUIDField(editable=False, null=True)),
                (
                    "reason",
                    models.CharField(
                        choices=[
                            ("rise", "a price rises"),
                            ("fall", "a price falls below a tenth"),
                            ("unpriced", "the list has no price"),
                            ("vanished", "no longer in the list"),
                            ("new", "a new endpoint"),
                            ("change", "a change"),
                        ],
                        editable=False,
                        max_length=16,
                    ),
                ),
                ("changes", models.JSONField(editable=False)),
                ("content", models.JSONField(editable=False)),
                ("basis", models.CharField(default="", editable=False, max_length=64)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("waiting", "waiting"),
                            ("approved", "approved"),
                            ("refused", "refused"),
                            ("withdrawn", "withdrawn"),
                        ],
                        default="waiting",
                        editable=False,
                        max_length=16,
                    ),
                ),
                ("decided_at", models.DateTimeField(editable=False, null=True)),
                ("decided_by", models.CharField(default="", editable=False, max_length=255)),
            ],
            options={
                "ordering": ("-created_at", "subject"),
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("status", "waiting")),
                        fields=("subject",),
                        name="catalog_proposal_unique",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("decided_at", None), ("status", "waiting")),
                            models.Q(
                                ("decided_at__isnull", False),
                                models.Q(("status", "waiting"), _negated=True),
                            ),
                            _connector="OR",
                        ),
                        name="catalog_proposal_is_consistent",
                    ),
                ],
            },
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="catalogproposal",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'catalog.catalogproposal',\n    changed ->> 'id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="2c37909225539e75a1b74b5de080fad174531dbd",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_6774a",
                    table="catalog_catalogproposal",
                    when="AFTER",
                ),
            ),
        ),
    ]
