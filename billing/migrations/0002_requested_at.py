"""The database's time of a grant request, which is compared with the audit log."""

from django.db import migrations, models
from django.db.models import F
from django.db.models.functions import Now


def take_over_times(apps, schema_editor):
    apps.get_model("billing", "GrantRequest").objects.update(requested_at=F("created_at"))


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="grantrequest",
            name="requested_at",
            field=models.DateTimeField(db_default=Now(), editable=False),
        ),
        migrations.RunPython(take_over_times, migrations.RunPython.noop),
    ]
