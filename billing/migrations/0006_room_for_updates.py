"""Leaves room in the pages of transfers for their end."""

from django.db import migrations

# With many requests in flight, a third of the transfers found no room in the page of the row.
ROOM = "ALTER TABLE billing_transfer SET (fillfactor = 60);"
LESS_ROOM = "ALTER TABLE billing_transfer SET (fillfactor = 85);"


class Migration(migrations.Migration):
    dependencies = [("billing", "0005_unchecked_accounts")]

    operations = [migrations.RunSQL(ROOM, LESS_ROOM)]
