"""The computed columns of a private endpoint."""

from __future__ import annotations

from typing import Final

from django.template.loader import render_to_string
from django.utils.html import format_html_join
from django.utils.timesince import timesince

from accounts.models import ByokCredential
from config.clocks.clock import clock
from config.console.formatting import dollars, label_renderer, per_million
from config.console.unfold import display
from endpoints.admin.forms import RATES
from endpoints.admin.validations import OUTCOMES
from endpoints.history import SHOWN, events, render_operations, render_proofs
from endpoints.models import PrivateEndpoint, Validation

_KEPT: Final = "deleted, stays private until released"
_STATES: Final = {
    "draft": "info", "active": "success", "disabled": "warning", _KEPT: "warning",
}  # fmt: skip
_DRIFT: Final = {"drifted": "danger"}


class PrivateEndpointColumns:
    """Formats an endpoint's status, validation, declarations, price and history."""

    readonly_preprocess_fields = {
        "state": label_renderer(_STATES),
        "validated": label_renderer(OUTCOMES),
        "drift": label_renderer(_DRIFT),
    }

    @display(
        description="Status",
        ordering="status",
        label=_STATES,
    )
    def state(self, endpoint: PrivateEndpoint) -> str:
        return str(endpoint.status) if endpoint.deleted_at is None else _KEPT

    @display(description="Validation", label=OUTCOMES)
    def validated(self, endpoint: PrivateEndpoint) -> str:
        if endpoint.validation is None:
            return "none"
        return str(Validation.Outcome(endpoint.validation.outcome).label)

    @display(description="Validated")
    def validated_ago(self, endpoint: PrivateEndpoint) -> str:
        """Returns the age of the validation of the current configuration."""
        if endpoint.validation is None:
            return "never"
        return f"{timesince(endpoint.validation.created_at, clock.now(), depth=1)}\xa0ago"

    @display(description="Region")
    def region(self, endpoint: PrivateEndpoint) -> str:
        return endpoint.declared_region or ""

    @display(description="ZDR", label={"declared": "success", "denied": "warning"})
    def zdr(self, endpoint: PrivateEndpoint) -> str:
        if endpoint.declared_zdr is None:
            return ""
        return "declared" if endpoint.declared_zdr else "denied"

    @display(description="Events, latest first")
    def history(self, endpoint: PrivateEndpoint) -> str:
        return render_to_string(
            "admin/endpoints/history.html", {"events": events(endpoint), "shown": SHOWN}
        )

    @display(description="Credentials, in order of trial")
    def credentials(self, endpoint: PrivateEndpoint) -> str:
        """Returns the credentials of the provider, and whether their secrets travel to the host."""
        rows = (
            ByokCredential.objects.for_organization(endpoint.organization_id)
            .filter(provider_slug=endpoint.upstream_provider.slug, disabled=False)
            .select_related("workspace")
            .order_by("is_fallback", "sort_order", "created_at")[:SHOWN]
        )
        lines = (
            (
                credential,
                credential.workspace.name if credential.workspace else "all workspaces",
                _describe_travel(endpoint, credential),
            )
            for credential in rows
        )
        return format_html_join("", "<div>{} in {}: {}</div>", lines) or "none"

    @display(description="Drift", label=_DRIFT)
    def drift(self, endpoint: PrivateEndpoint) -> str:
        return "" if endpoint.drifted_at is None else "drifted"

    @display(description="Price / M")
    def price_text(self, endpoint: PrivateEndpoint) -> str:
        prompt, completion = endpoint.price.prompt, endpoint.price.completion
        return f"{per_million(prompt)} / {per_million(completion)}"

    @display(description="Operations")
    def operations(self, endpoint: PrivateEndpoint) -> str:
        return "" if endpoint.validation is None else render_operations(endpoint.validation)

    @display(description="What a validation has shown")
    def proofs(self, endpoint: PrivateEndpoint) -> str:
        return "" if endpoint.validation is None else render_proofs(endpoint.validation)

    @display(description="Rates")
    def rates(self, endpoint: PrivateEndpoint) -> str:
        rows = (
            (name.replace("_", " "), dollars(rate), per_million(rate))
            for name in RATES
            if (rate := getattr(endpoint.price, name)) is not None
        )
        return format_html_join("", "<div>{}: {} per token ({} per million)</div>", rows)


def _describe_travel(endpoint: PrivateEndpoint, credential: ByokCredential) -> str:
    if endpoint.base_url is None:
        return "is sent to the host that it names"
    limits = credential.host_limits(endpoint.upstream_provider.own_hosts())
    if (reason := limits.refusal(endpoint.host)) is not None:
        return f"is not sent. {reason}"
    if limits.is_open:
        return f"is sent to {endpoint.host}, which binds it"
    return f"is sent to {endpoint.host}"
