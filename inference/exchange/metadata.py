"""What a caller who asks for it learns of how a request was routed; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inference.filters.screening import Finding
from inference.routing.candidates import Selection


def routing_metadata(
    selection: Selection,
    attempts: Sequence[Mapping[str, Any]],
    *,
    region: str | None = None,
    findings: Sequence[Finding] = (),
    generation_time_ms: int | None = None,
) -> dict[str, Any]:
    """Returns the member ``openrouter_metadata`` of an answer, of a chunk or of an error.

    ``attempts`` are those of the generation, in order: ``endpoint_id``, ``provider``, ``status``,
    ``is_byok``, and ``error_type`` where one failed. ``region`` is that of the host called, and
    ``findings`` are those of content filters. What is not known is left out, save for ``region``,
    which may be null.
    """
    routes = {str(one.route.endpoint_id): one.route for one in selection.candidates}
    last = attempts[-1] if attempts else None
    selected = last if last is not None and "error_type" not in last else None
    available = [
        {
            "provider": route.facts.provider_name,
            "model": route.model_slug,
            "selected": selected is not None and selected["endpoint_id"] == endpoint_id,
        }
        for endpoint_id, route in routes.items()
    ]
    total = len(available) + len(selection.excluded)
    body: dict[str, Any] = {
        "requested": selection.requested,
        "strategy": _strategy(
            selection, None if last is None else routes[last["endpoint_id"]].model_slug
        ),
        "region": region,
        "summary": _summary(selected, len(attempts), len(available), total),
        "attempt": len(attempts),
        "is_byok": last is not None and bool(last["is_byok"]),
        "endpoints": {"total": total, "available": available},
        "attempts": [
            {
                "provider": attempt["provider"],
                "model": routes[attempt["endpoint_id"]].model_slug,
                "status": attempt["status"],
            }
            for attempt in attempts
        ],
    }
    if findings:
        body["pipeline"] = [_stage(selection) for selection in findings]
    if generation_time_ms is not None:
        body["generation_time"] = generation_time_ms
    return body


def _strategy(selection: Selection, model: str | None) -> str:
    """Tells how the model was selection: as asked for, free of charge only, or one of the next."""
    if model is not None and model != selection.model:
        return "fallback"
    is_free = selection.requested != selection.model and selection.requested.endswith(":free")
    return "free" if is_free else "direct"


def _summary(selected: Mapping[str, Any] | None, tried: int, available: int, total: int) -> str:
    text = f"{available} of {total} endpoints available, {tried} tried"
    who = "none" if selected is None else selected["provider"]
    return f"{text}, {who} answered."


def _stage(selection: Finding) -> dict[str, Any]:
    texts = "1 text" if selection.count == 1 else f"{selection.count} texts"
    return {
        "type": "guardrail",
        "name": "content-filter",
        "guardrail_id": str(selection.guardrail_id),
        "summary": f"{selection.label} in {texts}: {selection.action}.",
        "data": {"label": selection.label, "action": selection.action, "count": selection.count},
    }
