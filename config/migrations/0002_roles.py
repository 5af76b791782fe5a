"""The operators' roles; later changes by operators stay."""

from django.db import migrations

from config.console import roles


def create(apps, schema_editor):
    roles.create_roles(apps)


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0001_initial"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("billing", "0001_initial"),
        ("catalog", "0001_initial"),
        ("config", "0001_initial"),
        ("contenttypes", "0002_remove_content_type_name"),
        ("endpoints", "0001_initial"),
        ("endusers", "0001_initial"),
        ("inference", "0001_initial"),
    ]

    operations = [migrations.RunPython(create, migrations.RunPython.noop)]
