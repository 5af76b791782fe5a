"""The preview on an API key's page: its policy, its budgets and the route of a request.

It only reads: no request is sent, no credits are held, nothing is stored.
"""

from __future__ import annotations

import json
from typing import Any, Final

from django import forms
from django.http import QueryDict

from accounts.models import ApiKey, policy_of
from accounts.policy import Policy
from billing.models import Meter
from catalog.aliases.resolution import Origin, quote_name
from config.api.errors import GatewayError
from config.clocks.clock import clock
from config.clocks.writing import write_minute
from config.console.formatting import nano_dollars, render_table
from config.console.unfold import SelectWidget, TextWidget
from inference.admission.explain import Explainer, describe_policy
from inference.admission.governance import budgets_of
from inference.faces.explaining import BODIES, DEFAULT, read_request

_ANYTHING = "any"


_ORIGINS: Final = {
    Origin.ORGANIZATION: "an alias of the organization",
    Origin.OPERATOR: "an alias of the operator",
    Origin.LATEST: "the newest model of its family",
    Origin.SPELLING: "another spelling",
}


class ModelForm(forms.Form):
    """Asks for the model of the previewed request, and for its operation."""

    model = forms.CharField(
        max_length=255,
        label="Model",
        widget=TextWidget(
            attrs={"placeholder": "author/model", "aria-label": "Model", "spellcheck": "false"}
        ),
    )
    operation = forms.ChoiceField(
        choices=[(name, name) for name in BODIES],
        required=False,
        label="Operation",
        widget=SelectWidget(attrs={"aria-label": "Operation"}),
    )


def preview(key: ApiKey, query: QueryDict, *, region: str | None) -> dict[str, Any]:
    """Returns the tables of a key's page; ``query`` may name a ``model``."""
    policy = policy_of(key) & Policy.of(fallback=key.workspace.fallback)
    form = ModelForm(query if "model" in query else None)
    shown: dict[str, Any] = {
        "form": form,
        "policy": _render_policy(describe_policy(policy)),
        "budgets": _render_budgets(key),
    }
    if not form.is_valid():
        return shown
    operation = form.cleaned_data["operation"] or DEFAULT
    body = {"model": form.cleaned_data["model"], **BODIES[operation]}
    try:
        wanted = read_request(operation, json.dumps(body).encode())
        found = Explainer().explain(key, wanted, region=region)
    except GatewayError as exc:
        return {**shown, "refusal": exc.message}
    return {
        **shown,
        "meaning": _describe_resolution(found),
        "candidates": _render_candidates(found["candidates"]),
        "excluded": _render_excluded(found["excluded"]),
        "budget": _name_budget(found["budget"]),
    }


def _describe_resolution(found: dict[str, Any]) -> str:
    """Says what a name stands for that no model has; empty for the name of a model."""
    resolution = found["resolution"]
    if resolution is None:
        return ""
    targets = ", ".join(resolution["targets"])
    origin = _ORIGINS[resolution["origin"]]
    return f"{quote_name(found['requested'])} stands for {targets} ({origin})."


def _render_policy(named: dict[str, Any]) -> str:
    rows = (
        ("ZDR" if name == "zdr" else name.replace("_", " ").capitalize(), _join_values(value))
        for name, value in named.items()
        if name != "served_in"
    )
    return render_table(("Limit", "Value"), rows)


def _join_values(value: list[str] | str | None) -> str:
    if value is None:
        return _ANYTHING
    if isinstance(value, str):
        return value
    return ", ".join(value) or "none"


def _render_budgets(key: ApiKey) -> str:
    now = clock.now()
    budgets = budgets_of(key)
    meters = Meter.objects.in_bulk([budget.subject_id for budget in budgets])
    rows = []
    for budget in budgets:
        meter = meters[budget.subject_id]
        resets_at = budget.resets_at(now)
        rows.append(
            (
                str(budget.scope).replace("_", " "),
                nano_dollars(budget.spent_nano(meter, now.date())),
                nano_dollars(budget.held_nano(meter)),
                nano_dollars(budget.limit_nano),
                "never" if resets_at is None else write_minute(resets_at).replace(" ", "\xa0"),
            )
        )
    headers = ("Budget of", "Spent", "Held", "Limit", "Resets at")
    return render_table(
        headers, rows, empty="No budget limits this key, only the balance of the organization."
    )


def _render_candidates(found: list[dict[str, Any]]) -> str:
    rows = (
        (
            one["order"],
            one["provider"],
            "private" if one["private"] else "public",
            one["model"],
            "BYOK" if one["is_byok"] else "credits",
            one["health"]["state"],
        )
        for one in found
    )
    headers = ("Order", "Provider", "Endpoint", "Model", "Paid by", "Health")
    return render_table(
        headers, rows, empty="No endpoint can serve the request, so that it is refused."
    )


def _render_excluded(found: list[dict[str, Any]]) -> str:
    rows = (
        (
            one["provider"],
            "private" if one["private"] else "public",
            one["model"],
            ", ".join(one["excluded_by"]),
        )
        for one in found
    )
    return render_table(
        ("Excluded provider", "Endpoint", "Model", "Reason"), rows, empty="No endpoint is excluded."
    )


def _name_budget(budget: dict[str, Any] | None) -> str:
    if budget is None:
        return ""
    return f"by the {str(budget['scope']).replace('_', ' ')}"
