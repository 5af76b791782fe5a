"""Reading and deleting stored inputs and outputs; each reading is an entry of the audit log."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.http import HttpRequest, HttpResponse

from accounts.models import ApiKey, Organization, Workspace
from config.audit.context import actor_of, record_reading
from config.console.actions import Message, transition
from config.console.formatting import render_page
from config.console.forms import NoteField
from config.console.unfold import unfold_action
from inference.models import Generation
from inference.texts import deleting
from inference.texts.lookup import find_content


class ReadingForm(forms.Form):
    """Asks for the reason."""

    reason = NoteField(help_text="Why you must read it. The audit log keeps it with your name.")


@unfold_action(
    description="Read input and output",
    # No role may, unless somebody adds it.
    permissions=["inference.read_input_and_output"],
    url_path="read-text",
    icon="visibility",
)
def read_text(page: Any, request: HttpRequest, object_id: str) -> HttpResponse:
    """Shows the stored text of a generation, once a reason is given."""
    generation = page.get_object(request, unquote(object_id))
    if generation is None:
        return page.redirect_to_index(request, object_id)
    form = ReadingForm(request.POST if request.method == "POST" else None)
    if not form.is_valid():
        return _render(page, request, generation, form=form)
    content = find_content(generation.organization_id, generation.pk)
    # The entry comes first: nothing is shown that the log does not have.
    record_reading(
        actor_of(request),
        "admin: read input and output",
        object_id=generation.pk,
        organization_id=generation.organization_id,
        reason=form.cleaned_data["reason"],
        outcome="not stored" if content is None else "shown",
    )
    if content is None:
        page.message_user(
            request, "No input and output of this generation is stored.", messages.INFO
        )
        return page.redirect(request, page.url_of(request, generation))
    return _render(page, request, generation, sides=_describe(content))


@transition(
    description="Delete input and output",
    question="Deletes the stored input and output of this request. They cannot be read again. "
    "The generation, its usage and its cost stay.",
    submit="Delete the text",
    permission="accounts.change_organization",
    icon="delete_sweep",
    danger=True,
)
def delete_text(page: Any, request: HttpRequest, generation: Generation, form: Any) -> Message:
    """Deletes the stored text of a generation."""
    deleted = deleting.delete_texts(
        generation.organization_id, generation_id=generation.pk, by=actor_of(request)
    )
    return _report(deleted)


@transition(
    description="Delete stored texts",
    question="Deletes the stored inputs and outputs of all requests that were admitted until now. "
    "They cannot be read again. Generations, usage and costs stay.",
    submit="Delete the texts",
    permission="accounts.change_organization",
    icon="delete_sweep",
    danger=True,
)
def delete_texts(
    page: Any, request: HttpRequest, owner: ApiKey | Workspace | Organization, form: Any
) -> Message:
    """Deletes all stored texts of a key, a workspace or an organization."""
    by = actor_of(request)
    match owner:
        case ApiKey():
            deleted = deleting.delete_texts(owner.organization_id, api_key_id=owner.pk, by=by)
        case Workspace():
            deleted = deleting.delete_texts(owner.organization_id, workspace_id=owner.pk, by=by)
        case _:
            deleted = deleting.delete_texts(owner.pk, by=by)
    return _report(deleted)


def _report(deleted: int) -> Message:
    if not deleted:
        return messages.INFO, "No text was stored. What still waits is not stored any more."
    return messages.SUCCESS, f"{deleted:,} {'text is' if deleted == 1 else 'texts are'} deleted."


def _describe(content: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the titles and the texts of the page."""
    output = content["output"]
    sides = [
        ("Input", _write(content["input"])),
        ("Reasoning", output["reasoning"]),
        ("Completion", output["completion"]),
        ("Calls of tools", _write(output.get("tool_calls"))),
        ("Error", _write(content["error"])),
    ]
    if content["is_truncated"]:
        sides.append(("Shortened", "A side was longer than the 1 MiB that is stored."))
    return [(title, text) for title, text in sides if text]


def _write(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) if value else ""


def _render(
    page: Any, request: HttpRequest, generation: Generation, **context: Any
) -> HttpResponse:
    return render_page(
        page,
        request,
        "admin/inference/text.html",
        "Input and output",
        headers={"Cache-Control": "no-store"},
        generation=generation,
        back=page.url_of(request, generation),
        **context,
    )
