"""Gives the reading of stored texts a permission of its own.

Workers of the earlier release ask for ``view_storedtext``, which superusers have without its row.
"""

from django.db import migrations


def delete_default_permissions(apps, schema_editor):
    """Deletes the permissions that no code asks for any more."""
    rows = apps.get_model("auth", "Permission").objects.using(schema_editor.connection.alias)
    rows.filter(
        content_type__app_label="inference",
        codename__in=[f"{verb}_storedtext" for verb in ("add", "change", "delete", "view")],
    ).delete()


class Migration(migrations.Migration):
    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("inference", "0031_guardrail_shadows"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="storedtext",
            options={
                "default_permissions": (),
                "permissions": [("read_input_and_output", "Can read stored inputs and outputs")],
            },
        ),
        migrations.RunPython(delete_default_permissions, migrations.RunPython.noop),
    ]
