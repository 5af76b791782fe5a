"""The computed columns of a generation: its status, cost, attempts and transfers."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from django.utils.html import format_html

from billing.models import Excess, Transfer
from catalog.pricing import NANO, Usage, prompt_parts
from config.console.formatting import dollars, label_renderer, nano_dollars, render_table
from config.console.unfold import display
from inference.models import Generation

_STATES: Final = {
    "pending": "info",
    "completed": "success",
    "failed": "danger",
    "cancelled": "warning",
}


class GenerationColumns:
    """Formats the numbers and the JSON of a generation for its list and its page."""

    readonly_preprocess_fields = {"state": label_renderer(_STATES)}

    @display(description="Status", label=_STATES)
    def state(self, generation: Generation) -> str:
        return str(generation.status)

    @display(description="Tokens")
    def tokens(self, generation: Generation) -> str:
        if generation.prompt_tokens is None and generation.completion_tokens is None:
            return ""
        return f"{generation.prompt_tokens or 0} + {generation.completion_tokens or 0}"

    @display(description="Cost")
    def cost(self, generation: Generation) -> str:
        return nano_dollars(generation.cost_nano)

    @display(description="Upstream cost")
    def upstream_cost(self, generation: Generation) -> str:
        return nano_dollars(generation.upstream_cost_nano)

    @display(description="First event")
    def latency(self, generation: Generation) -> str:
        return "" if generation.latency_ms is None else f"{generation.latency_ms} ms"

    @display(description="Attempts")
    def attempts_table(self, generation: Generation) -> str:
        rows = [
            (
                number,
                attempt["provider"],
                "BYOK" if attempt["is_byok"] else "credits",
                attempt["status"],
                attempt.get("error_type", "served"),
                f"{attempt['latency_ms']} ms",
            )
            for number, attempt in enumerate(generation.attempts, 1)
        ]
        headers = ("Attempt", "Provider", "Paid by", "Status", "Result", "Duration")
        return render_table(headers, rows, empty="No attempt has ended yet.")

    @display(description="By kind")
    def breakdown(self, generation: Generation) -> str:
        if generation.prompt_tokens is None and generation.completion_tokens is None:
            return "No usage."
        price = generation.price.price
        usage = Usage(
            prompt=generation.prompt_tokens or 0,
            completion=generation.completion_tokens or 0,
            cached=generation.cached_tokens or 0,
            cache_write=generation.cache_write_tokens or 0,
        )
        names = ("Prompt", "Prompt, read from cache", "Prompt, written to cache")
        kinds: list[tuple[str, int, Decimal]] = [
            *((name, *part) for name, part in zip(names, prompt_parts(price, usage), strict=True)),
            (_completion(generation), usage.completion, price.completion),
            ("Request", 1, price.request),
        ]
        rows = [
            (kind, f"{count:,}", dollars(rate), dollars(rate * count))
            for kind, count, rate in kinds
            if count and (rate or kind != "Request")
        ]
        parts = sum((rate * count for _, count, rate in kinds), Decimal(0))
        rest = generation.upstream_cost_nano - parts * NANO
        if abs(rest) >= 1:
            kind = "Images" if rest > 0 else "Waived"
            rows.append((kind, "", "", nano_dollars(round(rest))))
        return render_table(("Kind", "Count", "Rate", "Cost"), rows)

    @display(description="In the ledger")
    def money(self, generation: Generation) -> str:
        rows = [
            (
                Transfer.Kind(transfer.kind).label,
                transfer.status,
                nano_dollars(transfer.amount_nano),
                nano_dollars(transfer.posted_nano or 0),
                transfer.actor,
                transfer.note,
            )
            for transfer in Transfer.objects.filter(reference=generation.pk).order_by("id")
        ]
        rows += [
            (
                "excess",
                Excess.Status(excess.status).label,
                nano_dollars(excess.amount_nano),
                nano_dollars(0),
                "",
                f"{excess.claimed_prompt_tokens:,} + {excess.claimed_completion_tokens:,} claimed",
            )
            for excess in Excess.objects.under_review().filter(reference=generation.pk)
        ]
        headers = ("Transfer", "Status", "Amount", "Posted", "Actor", "Note")
        hold = nano_dollars(generation.hold_nano)
        own = nano_dollars(generation.upstream_hold_nano)
        return format_html(
            '<p class="mb-2">Held: {} of credits, {} of BYOK usage.</p>{}',
            hold,
            own,
            render_table(headers, rows, empty="No credits moved."),
        )


def _completion(generation: Generation) -> str:
    reasoning = generation.reasoning_tokens
    return f"Completion, {reasoning:,} of it reasoning" if reasoning else "Completion"
