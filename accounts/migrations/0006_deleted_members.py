from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0005_former_keys_index"),
    ]

    operations = [
        migrations.AddField(
            model_name="member",
            name="deleted_at",
            field=models.DateTimeField(editable=False, null=True),
        ),
    ]
