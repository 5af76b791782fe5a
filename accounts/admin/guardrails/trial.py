"""The box in which an operator tries a text: it runs the filters of a form as a request would.

The text is neither stored nor logged.
"""

from __future__ import annotations

import json
from typing import Any, Final
from uuid import UUID

from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from accounts.admin.guardrails.filter_editor import BUILTIN_NAMES, builtins_field, patterns_field
from catalog.dialects.base import Operation
from config.api.errors import GatewayError
from inference.filters.definitions import Filters, Finding, build_filters
from inference.filters.problems import ContentBlocked, TooSlow
from inference.filters.screening import screen
from inference.requests import parsing

MOST_CHARACTERS: Final = 20_000
# A request may take ten seconds in a thread of its own; here a thread of the console waits.
_SECONDS: Final = 2.0
_NOBODY: Final = UUID(int=0)
_ROLES: Final = (("user", "of a user"), ("system", "of the system"), ("tool", "of a tool"))
_DONE: Final = {"redact": "would be replaced", "flag": "would be flagged"}


class TrialWidget(forms.Widget):
    """A box for a text that the form does not send when it is saved."""

    template_name = "admin/accounts/guardrail/trial.html"

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        context = super().get_context(name, value, attrs)
        url = reverse("admin:accounts_guardrail_try_filters")
        context["widget"] |= {"url": url, "most": MOST_CHARACTERS, "roles": _ROLES}
        return context

    def id_for_label(self, id_: str, index: str | int | None = None) -> str:
        return "trial_text"


def try_filters(request: HttpRequest) -> HttpResponse:
    """Answers with what the filters in a form do to the text in it."""
    text, role = request.POST.get("trial_text", ""), request.POST.get("trial_role", "user")
    context: dict[str, Any] = {}
    try:
        filters = _read_filters(request)
    except ValidationError:
        context["refusal"] = "Correct the marked rows of the filters first: save to see them."
    else:
        if len(text) > MOST_CHARACTERS:
            context["refusal"] = f"Shorten the text to {MOST_CHARACTERS:,} characters."
        elif not filters:
            context["refusal"] = "No filter is on: a request would be sent as it is."
        else:
            context = _run(filters, text, role if role in dict(_ROLES) else "user")
    return render(request, "admin/accounts/guardrail/tried.html", context)


def _read_filters(request: HttpRequest) -> Filters:
    """Returns the filters in the fields of a form; raises :class:`ValidationError`."""
    found = []
    for name, field in (
        ("content_filter_builtins", builtins_field()),
        ("content_filters", patterns_field()),
    ):
        rows = field.widget.value_from_datadict(request.POST, request.FILES, name)
        found.append(field.clean(rows))
    return build_filters(_NOBODY, *found)


def _run(filters: Filters, text: str, role: str) -> dict[str, Any]:
    body = {"messages": [{"role": role, "content": text}]}
    try:
        chat = parsing.parse(Operation.CHAT, json.dumps(body).encode())
        screened = screen(filters, chat, seconds=_SECONDS)
    except ContentBlocked as exc:
        return {"outcome": "blocked", "name": _name(exc.finding), "message": exc.message}
    except TooSlow:
        refusal = f"The filters did not finish in {_SECONDS:.0f} seconds. Shorten the text."
        return {"refusal": refusal}
    except GatewayError as exc:
        return {"refusal": exc.message}
    findings = [f"{_name(each)} {_DONE[each.action]}." for each in screened.findings]
    [message] = json.loads(bytes(screened.request.fields["messages"]))
    is_changed = message["content"] != text
    outcome = "redacted" if is_changed else "flagged" if findings else "sent"
    return {
        "outcome": outcome,
        "findings": findings,
        "text": message["content"] if is_changed else "",
    }


def _name(finding: Finding) -> str:
    return BUILTIN_NAMES.get(finding.kind, f"Pattern {finding.label}")
