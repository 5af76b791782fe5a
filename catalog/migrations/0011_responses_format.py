"""Models that are served by OpenAI's Responses, alone or beside chat."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0010_credential_refusals"),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name="languagemodel",
            name="model_capabilities_known",
        ),
        migrations.AlterField(
            model_name="languagemodel",
            name="native_format",
            field=models.CharField(
                choices=[
                    ("openai", "OpenAI"),
                    ("anthropic", "Anthropic Messages"),
                    ("responses", "OpenAI Responses alone"),
                    ("openai_responses", "OpenAI and OpenAI Responses"),
                ],
                db_default="openai",
                default="openai",
                help_text="The format in which Azure, Bedrock and Vertex serve the model. Responses: all its providers of the dialects OpenAI and Azure serve /responses.",
                max_length=16,
            ),
        ),
        migrations.AddConstraint(
            model_name="languagemodel",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "native_format__in",
                        ["openai", "anthropic", "responses", "openai_responses"],
                    ),
                    ("thinking__in", ["effort", "budget"]),
                ),
                name="model_capabilities_known",
            ),
        ),
    ]
