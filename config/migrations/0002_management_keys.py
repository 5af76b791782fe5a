from django.db import migrations, models

KINDS = [
    ("prices", "Prices"),
    ("guardrails", "Workspace-wide guardrails"),
    ("deletions", "Deletions"),
    ("credentials", "Provider credentials"),
    ("management_keys", "Management keys"),
]


def make_rule(apps, schema_editor):
    apps.get_model("config", "ChangeRule").objects.get_or_create(kind="management_keys")


class Migration(migrations.Migration):
    dependencies = [("config", "0001_tables")]

    operations = [
        migrations.AlterField(
            model_name="changerule",
            name="kind",
            field=models.CharField(
                choices=KINDS, editable=False, max_length=16, primary_key=True, serialize=False
            ),
        ),
        migrations.AlterField(
            model_name="changeset",
            name="kind",
            field=models.CharField(choices=KINDS, editable=False, max_length=16),
        ),
        migrations.RunPython(make_rule, migrations.RunPython.noop),
    ]
