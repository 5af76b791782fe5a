"""Names a reason for which a proposal waits: the list does not say what a new model serves."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0013_proposal_risk")]

    operations = [
        migrations.AlterField(
            model_name="catalogproposal",
            name="reason",
            field=models.CharField(
                max_length=16,
                choices=[
                    ("rise", "a price rises"),
                    ("fall", "a price falls to a tenth or less"),
                    ("unpriced", "the list has no price"),
                    ("vanished", "no longer in the list"),
                    ("new", "a new endpoint"),
                    ("unclear", "the list does not say what the model serves"),
                    ("change", "a change"),
                ],
                editable=False,
            ),
        ),
    ]
