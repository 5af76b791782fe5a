"""Leaves room in the pages of generations for their settlement."""

from django.db import migrations

# A generation doubles when it is settled. At 75 % half of the settlements found no room in the page
# of the row, so they wrote the row elsewhere and all its indexes again.
ROOM = "ALTER TABLE inference_generation SET (fillfactor = 40);"
LESS_ROOM = "ALTER TABLE inference_generation SET (fillfactor = 75);"


class Migration(migrations.Migration):
    dependencies = [("inference", "0006_unchecked_references")]

    operations = [migrations.RunSQL(ROOM, LESS_ROOM)]
