from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("accounts", "0004_former_keys"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name="apikey",
            index=models.Index(
                condition=models.Q(("successor", None), _negated=True),
                fields=["successor"],
                name="api_key_by_successor",
            ),
        ),
    ]
