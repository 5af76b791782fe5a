"""The shadow of a guardrail on its page: what differs, and what it would have refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.template.loader import render_to_string

from accounts.admin.guardrails.backtest import render_refusals
from accounts.admin.guardrails.forms import LABELS
from accounts.models import LIMITS, Guardrail, GuardrailShadow, ShadowNotFound
from config.changes.proposals import Difference
from config.console.formatting import nano_dollars, render_table
from inference.shadows.results import ShadowResult, read_result


def shadow_of(guardrail: Guardrail) -> GuardrailShadow | None:
    return getattr(guardrail, "shadow", None)


def require_shadow(guardrail: Guardrail) -> GuardrailShadow:
    """Returns the shadow of a guardrail; raises :class:`ShadowNotFound`."""
    shadow = shadow_of(guardrail)
    if shadow is None:
        raise ShadowNotFound
    return shadow


def render_shadow(shadow: GuardrailShadow, *, with_counts: bool) -> str:
    """Renders when a shadow began, how it differs and, ``with_counts``, what it has counted."""
    result = read_result(shadow.pk) if with_counts else ShadowResult()
    context = {
        "shadow": shadow,
        "sentence": _describe(result) if with_counts else "",
        "unread": f"{result.unread:,}" if result.unread else "",
        "changes": render_table(("Limit", "Enforced", "Shadow"), _find_changes(shadow)),
        "has_refusals": bool(result.refused),
        **render_refusals(result.reasons, result.keys),
    }
    return render_to_string("admin/accounts/guardrail/shadow.html", context)


def foresee_enforcement(guardrail: Guardrail) -> Sequence[str]:
    """Says what a shadow has counted, before it is enforced."""
    shadow: GuardrailShadow | None = getattr(guardrail, "shadow", None)
    if shadow is None:
        return ["The guardrail has no shadow."]
    result = read_result(shadow.pk)
    since = f"Since {shadow.created_at:%Y-%m-%d %H:%M} UTC: "
    return [since + _describe(result), f"Keys with such requests: {len(result.keys):,}."]


def describe_enforcement(guardrail: Guardrail, form: Any) -> list[Difference]:
    """Returns the limits that enforcing a shadow changes; raises :class:`ShadowNotFound`."""
    return [Difference(*change) for change in _find_changes(require_shadow(guardrail))]


def _describe(result: ShadowResult) -> str:
    if not result.total:
        return "No request has been counted yet."
    return f"{result.refused:,} of {result.total:,} requests would have been refused."


def _find_changes(shadow: GuardrailShadow) -> Iterator[tuple[str, Any, Any]]:
    """Yields the limits that enforcement would change."""
    guardrail, proposal = shadow.guardrail, shadow.proposal
    for name in LIMITS:
        old, new = getattr(guardrail, name), getattr(proposal, name)
        if old != new:
            title = "Budget" if name == "limit_nano" else LABELS.get(name)
            title = title or name.replace("_", " ").capitalize()
            yield title, show_limit(name, old), show_limit(name, new)


def show_limit(name: str, value: Any) -> str:
    """Returns the value of a limit as people read it; ``name`` is its field."""
    if value is None or value == []:
        return "–"
    if name == "limit_nano":
        return nano_dollars(value)
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ", ".join(
            f"{one.get('label') or one.get('pattern') or one.get('slug')}: {one['action']}"
            if isinstance(one, dict)
            else str(one)
            for one in value
        )
    return str(value)
