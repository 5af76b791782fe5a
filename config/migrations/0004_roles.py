"""Makes the operators' roles; an operator's own changes of them stay."""

from django.db import migrations

from config.console import roles


def establish(apps, schema_editor):
    roles.establish(apps)


class Migration(migrations.Migration):
    dependencies = [
        ("config", "0003_audit_triggers"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
    ]

    operations = [migrations.RunPython(establish, migrations.RunPython.noop)]
