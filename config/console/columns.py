"""Names columns as people write them: ``ID`` for ``id``, ``default`` for ``is_default``."""

from __future__ import annotations

from typing import Final

from django.apps import apps

_CAPITALS: Final = {
    word.lower(): word for word in ("API", "BYOK", "HTTP", "ID", "IO", "IP", "URL", "USD", "ZDR")
} | {"ids": "IDs"}


def name_columns() -> None:
    """Names the columns whose models leave that to Django, for the lists and forms of the console.

    Django makes a name of the words of the attribute. Migrations store a name only if the model
    states it, so none follows from this. A second call changes nothing.
    """
    for model in apps.get_models():
        for field in (*model._meta.local_fields, *model._meta.local_many_to_many):
            if field.verbose_name == field.name.replace("_", " "):
                field.verbose_name = name_column(field.name)


def name_column(attribute: str) -> str:
    """Returns the name of a column that an attribute has, without a capital at its beginning."""
    words = attribute.removeprefix("is_").split("_")
    return " ".join(_CAPITALS.get(word, word) for word in words)
