"""Describes the stored models by their names, as the dialects did before there were columns."""

import re

from django.db import migrations
from django.db.models import Q

_HAS_BUDGET = re.compile(
    r"claude-(?:3|(?:opus|sonnet|haiku)-4(?:-[0-5])?(?![0-9]|-[0-9](?![0-9])))|gemini-2-"
)
_INTERLEAVES = re.compile(r"claude-sonnet-5-5(?![0-9])")
_COMBINES = re.compile(r"claude-3")
_CLAUDE = re.compile(r"(?:^|/|anthropic-)claude")


def capabilities_of(names):
    """Returns the columns of a model that has these names, in the catalogue and at providers."""
    # A slug has a point where a provider's own name has a dash.
    spelled = [name.replace(".", "-") for name in names]

    def has(pattern):
        return any(pattern.search(name) for name in spelled)

    return {
        "native_format": "anthropic" if has(_CLAUDE) else "openai",
        "thinking": "budget" if has(_HAS_BUDGET) else "effort",
        "thinks_between_tools": has(_INTERLEAVES),
        "combines_sampling": has(_COMBINES),
    }


def describe_models(apps, schema_editor):
    """Writes the columns; ``updated_at`` stays, so that no validation becomes stale."""
    models = apps.get_model("catalog", "LanguageModel").objects
    endpoints = apps.get_model("catalog", "ModelEndpoint").objects
    for model in models.order_by("pk"):
        upstream = endpoints.filter(model_id=model.pk).values_list("upstream_model_id", flat=True)
        columns = capabilities_of([model.slug, model.canonical_slug, *upstream])
        models.filter(~Q(**columns), pk=model.pk).update(**columns)


class Migration(migrations.Migration):
    dependencies = [("catalog", "0004_capabilities")]

    operations = [migrations.RunPython(describe_models, migrations.RunPython.noop)]
