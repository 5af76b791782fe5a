from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("inference", "0008_provider_pace")]

    operations = [
        migrations.AddField(
            model_name="generation",
            name="units",
            field=models.JSONField(
                help_text="What was used besides these tokens: images, searches, audio, …",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="generation",
            name="reported_cost_nano",
            field=models.BigIntegerField(
                help_text="The cost that the provider itself reported, in nano-USD.", null=True
            ),
        ),
    ]
