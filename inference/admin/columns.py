"""The computed columns of a generation: its status, cost, attempts and transfers."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from django.urls import reverse
from django.utils.html import format_html

from accounts.models import ByokCredential
from billing.models import Excess, Transfer
from catalog.pricing import NANO, Billable, Charge, list_charges
from config.console.formatting import dollars, label_renderer, nano_dollars, render_table
from config.console.unfold import column, display
from inference.models import Generation

STATES: Final = {
    "pending": "info",
    "completed": "success",
    "failed": "danger",
    "cancelled": "warning",
}


_KINDS: Final = {
    (Billable.CACHED, ""): "Prompt, read from cache",
    (Billable.CACHED, "write"): "Prompt, written to cache",
    (Billable.CACHED, "write_1h"): "Prompt, written to cache for an hour",
    (Billable.CACHED, "audio"): "Audio, read from cache",
    (Billable.PROMPT, "audio"): "Audio in the prompt",
    (Billable.PROMPT, "image"): "Images in the prompt, tokens",
    (Billable.COMPLETION, "audio"): "Audio in the answer",
    (Billable.COMPLETION, "image"): "Generated images, tokens",
    (Billable.IMAGE, "input"): "Images in the prompt",
    (Billable.SEARCH, "request"): "Requests that searched",
    (Billable.SEARCH, "unasked"): "Searches of the model's own",
    (Billable.PROMPT, "citation"): "Pages read, tokens",
    (Billable.REASONING, "research"): "Reasoning about pages",
    (Billable.SECOND, ""): "Seconds of audio",
    (Billable.CHARACTER, ""): "Characters of speech",
}


class GenerationColumns:
    """Formats the numbers and the JSON of a generation for its list and its page."""

    readonly_preprocess_fields = {"state": label_renderer(STATES)}

    state = column("Status", lambda generation: str(generation.status), label=STATES)

    @display(description="Tokens")
    def tokens(self, generation: Generation) -> str:
        if generation.prompt_tokens is None and generation.completion_tokens is None:
            return ""
        return f"{generation.prompt_tokens or 0} + {generation.completion_tokens or 0}"

    cost = column("Cost", lambda generation: nano_dollars(generation.cost_nano))

    @display(description="Upstream cost")
    def upstream_cost(self, generation: Generation) -> str:
        return nano_dollars(generation.upstream_cost_nano)

    @display(description="First event")
    def latency(self, generation: Generation) -> str:
        return "" if generation.latency_ms is None else f"{generation.latency_ms} ms"

    @display(description="Attempts")
    def attempts_table(self, generation: Generation) -> str:
        credentials = _find_credentials(generation)
        rows = [
            (
                number,
                attempt["provider"],
                _name_payer(attempt, credentials),
                attempt["status"],
                _name_result(attempt),
                f"{attempt['latency_ms']} ms",
            )
            for number, attempt in enumerate(generation.attempts, 1)
        ]
        headers = ("Attempt", "Provider", "Paid by", "Status", "Result", "Duration")
        return render_table(headers, rows, empty="No attempt has ended.")

    @display(description="Requested model")
    def requested_model(self, generation: Generation) -> str:
        """Returns the name that the request gave the model, where it was an alias of it."""
        first = generation.attempts[0] if generation.attempts else {}
        return str(first.get("requested", ""))

    @display(description="By kind")
    def breakdown(self, generation: Generation) -> str:
        if (usage := generation.usage) is None:
            return "No usage."
        charges = list_charges(generation.price.price, usage, generation.instant)
        rows = [
            (
                _name_kind(charge),
                f"{charge.quantity:,f}",
                dollars(charge.rate),
                dollars(charge.cost),
            )
            for charge in charges
        ]
        rest = generation.upstream_cost_nano - sum((c.cost for c in charges), Decimal(0)) * NANO
        if abs(rest) >= 1:
            # A generation of an earlier release does not tell its images.
            kind = "Images" if rest > 0 else "Waived"
            rows.append((kind, "", "", nano_dollars(round(rest))))
        if generation.reported_cost_nano is not None:
            rows.append(
                ("Reported by the provider", "", "", nano_dollars(generation.reported_cost_nano))
            )
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


def _find_credentials(generation: Generation) -> dict[str, ByokCredential]:
    """Reads the own credentials of a generation's attempts, by their ids as text."""
    ids = {
        attempt["credential_id"] for attempt in generation.attempts if "credential_id" in attempt
    }
    found = ByokCredential.objects.in_bulk(ids) if ids else {}
    return {str(key): credential for key, credential in found.items()}


def _name_payer(attempt: Mapping[str, Any], credentials: Mapping[str, ByokCredential]) -> str:
    """Returns who paid for an attempt, with a link to the credential if it is known."""
    if not attempt["is_byok"]:
        return "credits"
    credential = credentials.get(attempt.get("credential_id", ""))
    if credential is None:
        return "BYOK"
    address = reverse("admin:accounts_byokcredential_change", args=[credential.pk])
    return format_html('BYOK: <a class="text-link" href="{}">{}</a>', address, credential.label)


def _name_result(attempt: Mapping[str, Any]) -> str:
    """Returns the result of an attempt, such as "provider_unavailable: timeout (connect)"."""
    parts = [attempt.get("error_type", "served")]
    if kind := attempt.get("kind"):
        # An answer that began may fail later.
        limit = attempt.get("limit") or attempt.get("lacks")
        parts.append(f"{kind} ({limit})" if limit else kind)
    return ": ".join(parts)


def _name_kind(charge: Charge) -> str:
    """Returns what a charge is for, in the words of the console."""
    kind = charge.kind
    name = _KINDS.get(kind.name, kind.billable.capitalize())
    if kind.billable is Billable.IMAGE and charge.variant and kind.name not in _KINDS:
        return f"Image, {charge.variant}"
    return name
