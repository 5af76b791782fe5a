"""Lets generations leave: no foreign key refers to them, and no index has their ids twice."""

import django.db.models.deletion
from django.db import migrations, models

# The index for searches by the beginning of an id, which the primary key serves as a range.
TWICE = "DROP INDEX IF EXISTS inference_generation_id_41f897b4_like;"


class Migration(migrations.Migration):
    dependencies = [("inference", "0013_presets")]

    operations = [
        migrations.AlterField(
            model_name="feedback",
            name="generation",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="feedback",
                to="inference.generation",
            ),
        ),
        migrations.RunSQL(TWICE, migrations.RunSQL.noop),
    ]
