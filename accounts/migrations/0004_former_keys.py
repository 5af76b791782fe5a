import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0003_first_use_host"),
    ]

    operations = [
        migrations.AddField(
            model_name="apikey",
            name="successor",
            field=models.ForeignKey(
                db_index=False,
                editable=False,
                help_text="The key that a rotation gave another secret than this former one.",
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="former",
                to="accounts.apikey",
            ),
        ),
        migrations.AlterField(
            model_name="apikey",
            name="digest",
            field=models.CharField(
                editable=False,
                help_text="The public hash of the key. A rotation changes it; a KeyDigest finds the key.",
                max_length=64,
                unique=True,
            ),
        ),
    ]
