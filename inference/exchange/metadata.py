"""Describes how a request was routed, for callers who ask for it; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from catalog.aliases.resolution import Origin, Resolution, quote_name
from inference.filters.definitions import Finding
from inference.routing.candidates import Selection


def routing_metadata(
    selection: Selection,
    attempts: Sequence[Mapping[str, Any]],
    *,
    region: str | None = None,
    findings: Sequence[Finding] = (),
    left_out: Sequence[str] = (),
    retry_of: str | None = None,
    cached_from: str | None = None,
    generation_time_ms: int | None = None,
) -> dict[str, Any]:
    """Returns the member ``openrouter_metadata`` of a reply, of an event or of an error.

    ``attempts`` are the generation's attempts in order, with the members ``endpoint_id``,
    ``provider``, ``status`` and ``is_byok``, and ``error_type`` where one failed. ``region`` is the
    region of the host that received the request; ``findings`` are those of the content filters, and
    ``left_out`` names what was not sent to the model. ``retry_of`` is the generation that the SDK
    has sent again, ``cached_from`` the one whose answer was given. Only ``region`` may be null.
    """
    routes = {str(one.route.endpoint_id): one.route for one in selection.candidates}
    last = attempts[-1] if attempts else None
    selected = last if last is not None and "error_type" not in last else None
    available = [
        {
            "provider": route.facts.provider_name,
            "model": route.model_slug,
            "selected": selected is not None and selected["endpoint_id"] == endpoint_id,
            **route.describe_drift(),
        }
        for endpoint_id, route in routes.items()
    ]
    total = len(available) + len(selection.excluded)
    body: dict[str, Any] = {
        "requested": selection.requested,
        "strategy": _name_strategy(
            selection, None if last is None else routes[last["endpoint_id"]].model_slug
        ),
        "region": region,
        "summary": _summarize(selected, len(attempts), len(available), total),
        "attempt": len(attempts),
        "is_byok": last is not None and bool(last["is_byok"]),
        "endpoints": {"total": total, "available": available},
        "attempts": [
            {
                "provider": attempt["provider"],
                "model": routes[attempt["endpoint_id"]].model_slug,
                "status": shown_status(attempt),
            }
            for attempt in attempts
        ],
    }
    pipeline = _describe_steps(selection, findings, left_out)
    pipeline += _describe_repeat(retry_of, cached_from)
    extras = {"pipeline": pipeline or None, "generation_time": generation_time_ms}
    return body | {name: value for name, value in extras.items() if value is not None}


def _describe_steps(
    selection: Selection, findings: Sequence[Finding], left_out: Sequence[str]
) -> list[dict[str, Any]]:
    """Describes what was changed about the request, and which endpoints were left out."""
    steps = [_describe_finding(finding) for finding in findings]
    if selection.resolution is not None:
        steps.insert(0, _describe_resolution(selection.requested, selection.resolution))
    if left_out:
        steps.append(_describe_left_out(left_out))
    if selection.is_replanned or selection.excluded:
        steps.append(_describe_selection(selection))
    return steps


def shown_status(attempt: Mapping[str, Any]) -> int:
    """Returns the status of an attempt as its caller may know it.

    The provider's own status would tell of the operator's account there.
    """
    return 502 if attempt.get("kind") == "credential" else attempt["status"]


def _name_strategy(selection: Selection, model: str | None) -> str:
    """Returns how the model was chosen.

    ``fallback``: the last attempt was not at the first model. ``latest``: the name asked for the
    newest model of a family. ``alias``: it was an alias or another spelling. ``free``: it ended
    with ``:free``. ``direct``: any other request.
    """
    if model is not None and model != selection.model:
        return "fallback"
    if selection.resolution is not None:
        return "latest" if selection.resolution.origin is Origin.LATEST else "alias"
    is_free = selection.requested != selection.model and selection.requested.endswith(":free")
    return "free" if is_free else "direct"


def _summarize(selected: Mapping[str, Any] | None, tried: int, available: int, total: int) -> str:
    text = f"{available} of {total} endpoints available, {tried} tried"
    who = "none" if selected is None else selected["provider"]
    return f"{text}, {who} answered."


def _describe_finding(finding: Finding) -> dict[str, Any]:
    texts = "1 text" if finding.count == 1 else f"{finding.count} texts"
    return {
        "type": "guardrail",
        "name": "content-filter",
        "guardrail_id": str(finding.guardrail_id),
        "summary": f"{finding.label} in {texts}: {finding.action}.",
        "data": {"label": finding.label, "action": finding.action, "count": finding.count},
    }


def _describe_resolution(requested: str, resolution: Resolution) -> dict[str, Any]:
    data = resolution.describe()
    return {
        "type": "routing",
        "name": "alias",
        "summary": f"{quote_name(requested)} stands for {', '.join(data['targets'])}.",
        "data": data,
    }


def _describe_left_out(left_out: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "server_tools",
        "name": "left-out",
        "summary": f"Not sent, because no endpoint can use it: {', '.join(left_out)}.",
        "data": {"left_out": [*left_out]},
    }


def _describe_repeat(retry_of: str | None, cached_from: str | None) -> list[dict[str, Any]]:
    """Describes which earlier generation the request repeats, and which one's answer it got."""
    told: list[dict[str, Any]] = []
    for kind, name, generation_id, text in (
        ("cache", "response-cache", cached_from, "The answer of {} was in the response cache."),
        ("retry", "sdk-retry", retry_of, "The SDK has sent the request before, as {}."),
    ):
        if generation_id is not None:
            data = {"generation_id": generation_id}
            summary = text.format(generation_id)
            told.append({"type": kind, "name": name, "summary": summary, "data": data})
    return told


def _describe_selection(selection: Selection) -> dict[str, Any]:
    """Describes which endpoints were left out, and why, at first or after a change."""
    excluded = [each.body() for each in selection.excluded]
    name, text = "selection", "The candidates were selected"
    if selection.is_replanned:
        name, text = "replanning", "The other candidates were selected again after a change"
    return {
        "type": "routing",
        "name": name,
        "summary": f"{text}; {len(excluded)} endpoints were excluded.",
        "data": {"excluded": excluded},
    }
