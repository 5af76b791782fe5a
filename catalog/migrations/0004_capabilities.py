"""Capabilities of models, by which wire formats decide how to ask for them."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0003_provider_limits"),
    ]

    operations = [
        migrations.AddField(
            model_name="languagemodel",
            name="combines_sampling",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Otherwise it gets the temperature alone. Matters to Anthropic's format.",
                verbose_name="accepts temperature with top_p",
            ),
        ),
        migrations.AddField(
            model_name="languagemodel",
            name="native_format",
            field=models.CharField(
                choices=[("openai", "OpenAI"), ("anthropic", "Anthropic Messages")],
                db_default="openai",
                default="openai",
                help_text="The format in which Azure, Bedrock and Vertex serve the model.",
                max_length=16,
            ),
        ),
        migrations.AddField(
            model_name="languagemodel",
            name="thinking",
            field=models.CharField(
                choices=[("effort", "an effort"), ("budget", "a budget of tokens")],
                db_default="effort",
                default="effort",
                help_text="Matters to the formats of Anthropic and Gemini.",
                max_length=16,
                verbose_name="thinking is limited by",
            ),
        ),
        migrations.AddField(
            model_name="languagemodel",
            name="thinks_between_tools",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Such a model cannot be forced to call a tool. Matters to Anthropic's format.",
                verbose_name="always thinks between tools",
            ),
        ),
        migrations.AddConstraint(
            model_name="languagemodel",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("native_format__in", ["openai", "anthropic"]),
                    ("thinking__in", ["effort", "budget"]),
                ),
                name="model_capabilities_known",
            ),
        ),
    ]
