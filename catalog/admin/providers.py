"""The page of providers and their credentials."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from django.conf import settings
from django.contrib import admin, messages
from django.db import transaction
from django.db.models import Sum
from django.http import HttpRequest

from catalog import dialects
from catalog.admin.connecting import ON_PROVIDER, connect
from catalog.admin.uploads import CatalogueAdmin, CatalogueRowForm
from catalog.connecting.connect import try_endpoints
from catalog.dialects.shared.credentials import InvalidCredential
from catalog.models import CredentialRefusal, DialectName, Provider
from config.api.errors import GatewayError
from config.changes.kinds import ChangeKind, FourEyes
from config.clocks.clock import clock
from config.clocks.writing import write_time
from config.console.forms import RECORD, SecretFormField, part
from config.console.lists.filters import make_filter
from config.console.unfold import column, display
from config.credentials import NO_SECRET
from config.egress.addresses import InvalidURL, Reach, parse_base_url, parse_network
from inference.models import ProviderPace
from inference.reports.usage import subjects
from inference.reports.usage.panel import show_usage
from inference.routing.pacing import oldest_pace


class ProviderForm(CatalogueRowForm):
    class Meta:
        labels = {
            "base_url": "Base URL",
            "is_listed": "Listed",
            "is_keyless": "Takes no key",
            "allowed_networks": "Allowed networks",
            "ca_certificates": "CA certificates",
            "privacy_policy_url": "Privacy policy URL",
            "terms_of_service_url": "Terms of service URL",
            "status_page_url": "Status page URL",
        }

    secret = SecretFormField(
        required=False,
        label="New credential",
        help_text="Your own secret at this provider. Leave it empty to keep the stored one. It is "
        "never shown.",
    )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        if cleaned.get("is_keyless") and cleaned.get("secret") is not None:
            self.add_error("secret", "A provider that takes no key has none: leave one of both.")
        if "dialect" not in cleaned or "base_url" not in cleaned:
            return cleaned
        base_url = cleaned["base_url"]
        if DialectName(cleaned["dialect"]).has_url_in_credential:
            if base_url is not None:
                self.add_error("base_url", "Must be empty: the credential contains it.")
            if cleaned.get("is_keyless"):
                self.add_error("is_keyless", "This dialect takes its URL from the credential.")
        elif base_url is None:
            self.add_error("base_url", "This dialect needs a base URL.")
        else:
            try:
                policy = settings.EGRESS_POLICY.extend(
                    Reach(tuple(map(parse_network, cleaned.get("allowed_networks") or ())))
                )
                cleaned["base_url"] = parse_base_url(
                    base_url, policy=policy, require_https=False
                ).text
                self._require_host(cleaned)
            except InvalidURL as exc:
                self.add_error("base_url", str(exc))
            except ValueError as exc:
                self.add_error("allowed_networks", str(exc))
        if cleaned.get("secret") is not None:
            try:
                dialects.check_credential(cleaned["dialect"], cleaned["secret"])
            except InvalidCredential as exc:
                self.add_error("secret", str(exc))
        return cleaned

    def _require_host(self, cleaned: dict[str, Any]) -> None:
        stored = Provider.objects.filter(pk=self.instance.pk).first()
        if stored is not None and (
            refusal := stored.explain_stay(
                cleaned["dialect"],
                cleaned["base_url"],
                has_secret=cleaned.get("secret") is not None or bool(cleaned.get("is_keyless")),
            )
        ):
            self.add_error("base_url", refusal)


_REFUSED: Final = ("Refused by the provider", lambda rows: rows.filter(refusal__isnull=False))
RefusalFilter = make_filter("credential", "credential", {"refused": _REFUSED})


def _find_refusal(provider: Provider) -> CredentialRefusal | None:
    return getattr(provider, "refusal", None)


@admin.register(Provider)
class ProviderAdmin(CatalogueAdmin):
    """Lists the providers; an import of the catalogue writes the same rows."""

    form = ProviderForm
    form_guard = FourEyes(
        (ChangeKind.CREDENTIALS,),
        guards_new_rows=True,
        fields=(
            "dialect",
            "base_url",
            "secret",
            "is_keyless",
            "allowed_networks",
            "ca_certificates",
        ),
    )
    list_display = (
        "name", "slug", "dialect_name", "base_url", "credential", "prompts", "listing",
    )  # fmt: skip
    list_select_related = ("refusal",)
    list_filter = ("is_listed", RefusalFilter, "dialect", "trains_on_prompts", "retains_prompts")
    search_fields = ("name", "slug")
    fieldsets = (
        part(None, ("name", "slug"), "dialect", "base_url", "is_listed"),
        part("Credential", "credential", "refusal_text", "secret", "is_keyless"),
        part(
            "Private networks",
            "allowed_networks",
            "ca_certificates",
            note="For a server of your own: its address, such as 10.0.0.5/32, and "
            "the authority of its certificate. They count for this provider alone.",
            folded=True,
        ),
        # Each in a line: Django opens a folded part for a fault in such a field alone.
        part(
            "More",
            "requests_per_minute",
            "tokens_per_minute",
            "pace",
            "trains_on_prompts",
            "retains_prompts",
            "headquarters",
            "datacenters",
            "privacy_policy_url",
            "terms_of_service_url",
            "status_page_url",
            folded=True,
        ),
        RECORD,
    )
    # Credentials and routes refer to a provider by its slug.
    fixed_fields = ("slug", "is_listed")
    actions_list = (*CatalogueAdmin.actions_list, "connect")
    connect = connect
    panels = {"usage": show_usage(subjects.of_provider)}

    dialect_name = column(
        "Dialect", lambda row: DialectName(row.dialect).label, ordering="dialect", label=True
    )

    @display(description="Prompts", label=True)
    def prompts(self, provider: Provider) -> list[str]:
        uses = {"trained on": provider.trains_on_prompts, "retained": provider.retains_prompts}
        return [use for use, holds in uses.items() if holds]

    @display(description="Credential", label={"none": "warning", "refused": "danger"})
    def credential(self, provider: Provider) -> str:
        if provider.is_keyless:
            return "takes none"
        if not provider.has_credential:
            return "none"
        return "refused" if _find_refusal(provider) else provider.credential_label

    @display(description="Refused by the provider")
    def refusal_text(self, provider: Provider) -> str:
        refusal = _find_refusal(provider)
        if refusal is None:
            return "no"
        return (
            f"{provider.credential_label} since {write_time(refusal.since)}, last at "
            f"{write_time(refusal.seen_at)} ({refusal.reason}). Replace the credential, or settle "
            "the account: the mark goes when the provider accepts a request again."
        )

    @display(description="Sent in the last minute")
    def pace(self, provider: Provider) -> str:
        recent = ProviderPace.objects.filter(
            provider_id=provider.pk, bucket__gt=oldest_pace(clock.time())
        )
        sums = recent.aggregate(
            requests=Sum("requests", default=0), tokens=Sum("tokens", default=0)
        )
        requests, tokens = max(sums["requests"], 0), max(sums["tokens"], 0)
        return f"{requests:,} requests, about {tokens:,} tokens"

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if change and obj.is_keyless:
            # Both change at once: no provider has a credential and takes none.
            obj.set_credential(NO_SECRET)
        super().save_model(request, obj, form, change)
        if form.cleaned_data["secret"] is not None:
            obj.set_credential(form.cleaned_data["secret"])
            transaction.on_commit(partial(self._try_credential, request, obj))

    def _try_credential(self, request: HttpRequest, provider: Provider) -> None:
        """Says whether a new credential works. It stays stored: a server may be down."""
        cheapest = provider.endpoints.routable().order_by("price__completion")
        try:
            test = try_endpoints(provider, cheapest.select_related("model"), ON_PROVIDER)
        except GatewayError as exc:
            text = f"The credential is stored, and a test request failed: {exc.message}"
            self.message_user(request, text, messages.WARNING)
        else:
            if test is not None:
                self.message_user(request, str(test), messages.SUCCESS)
