"""Stops checking the references of each generation, and keeps the rows that have generations."""

import django.db.models.deletion
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0005_versions_of_keys"),
        ("catalog", "0002_changes"),
        ("endpoints", "0004_versions_of_deleted"),
        ("inference", "0005_rate_limits"),
    ]

    operations = [
        migrations.CreateModel(
            name="ApiKeyUse",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("accounts.apikey",),
        ),
        migrations.CreateModel(
            name="MemberUse",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("accounts.member",),
        ),
        migrations.CreateModel(
            name="ModelEndpointUse",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("catalog.modelendpoint",),
        ),
        migrations.CreateModel(
            name="OrganizationUse",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("accounts.organization",),
        ),
        migrations.CreateModel(
            name="PrivateEndpointUse",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("endpoints.privateendpoint",),
        ),
        migrations.CreateModel(
            name="WorkspaceUse",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("accounts.workspace",),
        ),
        migrations.AlterField(
            model_name="generation",
            name="api_key",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="accounts.apikey",
            ),
        ),
        migrations.AlterField(
            model_name="generation",
            name="attestation",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                help_text="The private endpoint's attestation when the request was sent.",
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="endpoints.attestation",
            ),
        ),
        migrations.AlterField(
            model_name="generation",
            name="member",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                help_text="The creator of the key at the time of the request.",
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="accounts.member",
            ),
        ),
        migrations.AlterField(
            model_name="generation",
            name="model_endpoint",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="catalog.modelendpoint",
            ),
        ),
        migrations.AlterField(
            model_name="generation",
            name="organization",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="accounts.organization",
            ),
        ),
        migrations.AlterField(
            model_name="generation",
            name="price",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="catalog.priceversion",
            ),
        ),
        migrations.AlterField(
            model_name="generation",
            name="private_endpoint",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="endpoints.privateendpoint",
            ),
        ),
        migrations.AlterField(
            model_name="generation",
            name="workspace",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="accounts.workspace",
            ),
        ),
        migrations.AlterField(
            model_name="journal",
            name="generation",
            field=models.OneToOneField(
                db_constraint=False,
                on_delete=django.db.models.deletion.CASCADE,
                primary_key=True,
                related_name="journal",
                serialize=False,
                to="inference.generation",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="generation",
            trigger=pgtrigger.compiler.Trigger(
                name="keep_used",
                sql=config.triggers.TriggerSql(
                    func="IF NOT EXISTS (SELECT 1 FROM inference_journal WHERE generation_id = OLD.id) THEN\n    \n    IF NOT EXISTS (SELECT 1 FROM inference_journal WHERE generation_id = OLD.id) THEN RETURN OLD; END IF;\nEND IF;\nRAISE EXCEPTION 'the row % of inference_generation is in use', OLD.id\n    USING ERRCODE = 'foreign_key_violation';",
                    hash="74e3565b993f291697fdd17503cac595b9a6278f",
                    operation="DELETE",
                    pgid="pgtrigger_keep_used_86678",
                    table="inference_generation",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="apikeyuse",
            trigger=pgtrigger.compiler.Trigger(
                name="keep_used",
                sql=config.triggers.TriggerSql(
                    func="IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE organization_id = OLD.organization_id AND api_key_id = OLD.id) THEN\n    PERFORM 1 FROM billing_account WHERE organization_id = OLD.organization_id AND kind = 'credits' FOR NO KEY UPDATE;\n    IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE organization_id = OLD.organization_id AND api_key_id = OLD.id) THEN RETURN OLD; END IF;\nEND IF;\nRAISE EXCEPTION 'the row % of accounts_apikey is in use', OLD.id\n    USING ERRCODE = 'foreign_key_violation';",
                    hash="9a7973378a8a41cc055f5be13230dc6f81830c62",
                    operation="DELETE",
                    pgid="pgtrigger_keep_used_0cad7",
                    table="accounts_apikey",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="memberuse",
            trigger=pgtrigger.compiler.Trigger(
                name="keep_used",
                sql=config.triggers.TriggerSql(
                    func="IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE organization_id = OLD.organization_id AND member_id = OLD.id) THEN\n    PERFORM 1 FROM billing_account WHERE organization_id = OLD.organization_id AND kind = 'credits' FOR NO KEY UPDATE;\n    IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE organization_id = OLD.organization_id AND member_id = OLD.id) THEN RETURN OLD; END IF;\nEND IF;\nRAISE EXCEPTION 'the row % of accounts_member is in use', OLD.id\n    USING ERRCODE = 'foreign_key_violation';",
                    hash="82b739ad77da4f435ccf54d07faad9fe6c0b17c7",
                    operation="DELETE",
                    pgid="pgtrigger_keep_used_7a29d",
                    table="accounts_member",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="modelendpointuse",
            trigger=pgtrigger.compiler.Trigger(
                name="keep_used",
                sql=config.triggers.TriggerSql(
                    func="IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE model_endpoint_id = OLD.id) THEN\n    PERFORM pg_advisory_xact_lock(6024917533);\n    IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE model_endpoint_id = OLD.id) THEN RETURN OLD; END IF;\nEND IF;\nRAISE EXCEPTION 'the row % of catalog_modelendpoint is in use', OLD.id\n    USING ERRCODE = 'foreign_key_violation';",
                    hash="a5ccc27e181d99808ac15b15b0977afbd88a5c15",
                    operation="DELETE",
                    pgid="pgtrigger_keep_used_fe8ed",
                    table="catalog_modelendpoint",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="organizationuse",
            trigger=pgtrigger.compiler.Trigger(
                name="keep_used",
                sql=config.triggers.TriggerSql(
                    func="IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE organization_id = OLD.id AND organization_id = OLD.id) THEN\n    PERFORM 1 FROM billing_account WHERE organization_id = OLD.id AND kind = 'credits' FOR NO KEY UPDATE;\n    IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE organization_id = OLD.id AND organization_id = OLD.id) THEN RETURN OLD; END IF;\nEND IF;\nRAISE EXCEPTION 'the row % of accounts_organization is in use', OLD.id\n    USING ERRCODE = 'foreign_key_violation';",
                    hash="4ec754ec6ab2546a699be4b6133158b845116754",
                    operation="DELETE",
                    pgid="pgtrigger_keep_used_66227",
                    table="accounts_organization",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="privateendpointuse",
            trigger=pgtrigger.compiler.Trigger(
                name="keep_used",
                sql=config.triggers.TriggerSql(
                    func="IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE organization_id = OLD.organization_id AND private_endpoint_id = OLD.id) THEN\n    PERFORM 1 FROM billing_account WHERE organization_id = OLD.organization_id AND kind = 'credits' FOR NO KEY UPDATE;\n    IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE organization_id = OLD.organization_id AND private_endpoint_id = OLD.id) THEN RETURN OLD; END IF;\nEND IF;\nRAISE EXCEPTION 'the row % of endpoints_privateendpoint is in use', OLD.id\n    USING ERRCODE = 'foreign_key_violation';",
                    hash="b38dcada82c06639a458dc7d340c71f042f57f6b",
                    operation="DELETE",
                    pgid="pgtrigger_keep_used_a2972",
                    table="endpoints_privateendpoint",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="workspaceuse",
            trigger=pgtrigger.compiler.Trigger(
                name="keep_used",
                sql=config.triggers.TriggerSql(
                    func="IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE organization_id = OLD.organization_id AND workspace_id = OLD.id) THEN\n    PERFORM 1 FROM billing_account WHERE organization_id = OLD.organization_id AND kind = 'credits' FOR NO KEY UPDATE;\n    IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE organization_id = OLD.organization_id AND workspace_id = OLD.id) THEN RETURN OLD; END IF;\nEND IF;\nRAISE EXCEPTION 'the row % of accounts_workspace is in use', OLD.id\n    USING ERRCODE = 'foreign_key_violation';",
                    hash="488e9f17b3154cbd5e4f002fd88e4ee52db3ff80",
                    operation="DELETE",
                    pgid="pgtrigger_keep_used_44295",
                    table="accounts_workspace",
                    when="BEFORE",
                ),
            ),
        ),
    ]
