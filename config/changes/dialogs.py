"""Asks for the reason in dialogs whose actions another operator must approve."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.contrib.admin.utils import unquote
from django.core.exceptions import ValidationError
from django.template.loader import render_to_string
from django.utils.html import format_html

from config.changes.kinds import FourEyes
from config.changes.pages import name_approvers
from config.changes.proposals import MAX_REASON, REASON
from config.console.forms import NoteField


def guard_dialog(form: type[Any], four_eyes: FourEyes) -> type[Any]:
    """Returns the form of a dialog that proposes, and asks why, where a rule demands it."""

    class Guarded(form):  # type: ignore[misc]
        submit_text = ""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.demand = four_eyes.find_demand(_find_object(four_eyes, self.object_id))
            if self.demand is not None:
                self.submit_text = "Propose"
                self.submit_variant = "primary"
                self.fields[REASON] = NoteField(
                    label="Reason",
                    max_length=MAX_REASON,
                    help_text="The operator who approves reads it.",
                )

        def render_before_template(self) -> str:
            above: str = super().render_before_template()
            if self.demand is None:
                return above
            context = {"approvers": name_approvers(four_eyes.needs)}
            note = render_to_string("admin/second_person_note.html", context)
            return format_html("{}{}", above, note)

    return Guarded


def _find_object(four_eyes: FourEyes, object_id: Any) -> Any:
    """Returns the object of a dialog, or ``None``: its action then refuses anyway."""
    if object_id is None:
        return None
    model: Any = apps.get_model(four_eyes.model_label)
    try:
        return model._base_manager.filter(pk=unquote(str(object_id))).first()
    except (ValidationError, ValueError):
        return None
