from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0006_proposals")]

    operations = [
        migrations.AddField(
            model_name="priceversion",
            name="discount",
            field=models.DecimalField(
                db_default=0,
                decimal_places=10,
                default=0,
                help_text="The share that is taken off every rate.",
                max_digits=11,
            ),
        ),
        migrations.AddField(
            model_name="priceversion",
            name="lines",
            field=models.JSONField(blank=True, db_default=[], default=list),
        ),
        migrations.AddConstraint(
            model_name="priceversion",
            constraint=models.CheckConstraint(
                condition=models.Q(("discount__gte", 0), ("discount__lte", 1)),
                name="price_discount_is_a_share",
            ),
        ),
    ]
