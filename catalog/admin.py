"""The operator's pages for the catalogue: providers, models, where they are served, and prices."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from django.conf import settings
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join

from catalog import dialects, imports
from catalog.dialects.shared.credentials import InvalidCredential
from catalog.models import DialectName, LanguageModel, ModelEndpoint, PriceVersion, Provider
from catalog.pricing import RATES, Price
from catalog.rows import LATEST
from config.bulk.report import Report, RowListener
from config.console.base import BoundedPaginator, ReadOnlyAdmin
from config.console.formatting import dollars, per_million
from config.console.forms import ConsoleForm, RateField, SecretField
from config.console.unfold import display
from config.console.uploads import Upload, UploadsAdmin
from config.egress.addresses import InvalidURL, parse_base_url

# What an endpoint is, not what it costs; to change rates is another right.
_TERMS: Final = (
    "is_listed",
    "context_length", "max_completion_tokens", "quantization", "supported_parameters",
    "is_moderated", "zdr",
)  # fmt: skip
_LISTED: Final = {"listed": "success", "left": "warning"}


class CatalogueAdmin(UploadsAdmin):
    """A list of one kind of the catalogue, whose file has all three."""

    upload_help = (
        "A catalogue file in JSON: providers, models and endpoints. What it does not name stays; "
        "other rates become another price version."
    )
    empty_hint = "Import a catalogue file, or add the rows one by one: providers first."
    written_models = ("catalog.provider", "catalog.languagemodel", "catalog.modelendpoint")

    def load(self, upload: Upload, *, by: str, dry_run: bool, on_row: RowListener | None) -> Report:
        return imports.apply(imports.parse(upload.content), dry_run=dry_run, on_row=on_row)

    def export(self, given: dict[str, Any]) -> tuple[str, Iterable[bytes]]:
        data, _ = imports.export()
        return "catalogue.json", [data]


class ProviderForm(ConsoleForm):
    secret = SecretField(
        required=False,
        label="New credential",
        help_text="The operator's own secret at this provider; empty keeps what is stored. "
        "It is never shown.",
    )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        if "dialect" not in cleaned or "base_url" not in cleaned:
            return cleaned
        base_url = cleaned["base_url"]
        if DialectName(cleaned["dialect"]).has_url_in_credential:
            if base_url is not None:
                self.add_error("base_url", "This dialect takes its URL from the credential.")
        elif base_url is None:
            self.add_error("base_url", "This dialect needs one.")
        else:
            try:
                policy = settings.EGRESS_POLICY
                cleaned["base_url"] = parse_base_url(
                    base_url, policy=policy, require_https=False
                ).text
            except InvalidURL as exc:
                self.add_error("base_url", str(exc))
        if cleaned.get("secret") is not None:
            try:
                dialects.check_credential(cleaned["dialect"], cleaned["secret"])
            except InvalidCredential as exc:
                self.add_error("secret", str(exc))
        return cleaned


@admin.register(Provider)
class ProviderAdmin(CatalogueAdmin):
    """Who serves models; an import of the catalogue writes the same rows."""

    form = ProviderForm
    list_display = (
        "name", "slug", "wire", "base_url", "credential", "prompts", "listing",
    )  # fmt: skip
    list_filter = ("is_listed", "dialect", "trains_on_prompts", "retains_prompts")
    search_fields = ("name", "slug")
    fieldsets = (
        (None, {"fields": (("name", "slug"), "dialect", "base_url", "is_listed")}),
        ("Credential", {"fields": ("credential", "secret")}),
        ("Data policy", {"fields": (("trains_on_prompts", "retains_prompts"),)}),
        (
            "About",
            {
                "fields": (
                    ("headquarters", "datacenters"),
                    "privacy_policy_url",
                    "terms_of_service_url",
                    "status_page_url",
                )
            },
        ),
        ("Record", {"classes": ["collapse"], "fields": ("id", ("created_at", "updated_at"))}),
    )
    readonly_fields = ("credential", "id", "created_at", "updated_at")

    @display(description="DialectName", ordering="dialect", label=True)
    def wire(self, provider: Provider) -> str:
        return DialectName(provider.dialect).label

    @display(description="Prompts", label=True)
    def prompts(self, provider: Provider) -> list[str]:
        uses = {"trained on": provider.trains_on_prompts, "retained": provider.retains_prompts}
        return [use for use, holds in uses.items() if holds]

    @display(description="Credential", label={"none": "warning"})
    def credential(self, provider: Provider) -> str:
        return provider.credential_label if provider.has_credential else "none"

    @display(description="Catalogue", ordering="is_listed", label=_LISTED)
    def listing(self, provider: Provider) -> str:
        return "listed" if provider.is_listed else "left"

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        # Credentials and routes name a provider by its slug.
        return (*self.readonly_fields, "slug") if obj else self.readonly_fields

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if form.cleaned_data["secret"] is not None:
            obj.set_credential(form.cleaned_data["secret"])


class LanguageModelForm(ConsoleForm):
    def clean_created(self) -> int:
        created: int = self.cleaned_data["created"]
        if not 0 <= created <= LATEST:
            raise ValidationError("Must be in seconds, not milliseconds.")
        return created


@admin.register(LanguageModel)
class LanguageModelAdmin(CatalogueAdmin):
    """What can be called, whoever serves it."""

    form = LanguageModelForm
    list_display = ("name", "slug", "modality", "context", "published", "listing")
    list_filter = ("is_listed",)
    search_fields = ("name", "slug", "canonical_slug")
    fieldsets = (
        (None, {"fields": ("name", ("slug", "canonical_slug"), "description", "is_listed")}),
        (
            "Abilities",
            {
                "fields": (
                    ("context_length", "tokenizer"),
                    ("input_modalities", "output_modalities"),
                    ("modality", "instruct_type"),
                    "supported_parameters",
                    "supported_voices",
                )
            },
        ),
        ("Defaults", {"fields": ("default_parameters", "per_request_limits")}),
        (
            "Dates",
            {"fields": (("created", "published"), ("knowledge_cutoff", "expiration_date"))},
        ),
        ("Record", {"classes": ["collapse"], "fields": ("id", ("created_at", "updated_at"))}),
    )
    readonly_fields = ("published", "id", "created_at", "updated_at")

    @display(description="Context", ordering="context_length")
    def context(self, model: LanguageModel) -> str:
        return "" if model.context_length is None else f"{model.context_length:,}"

    @display(description="Published", ordering="created")
    def published(self, model: LanguageModel) -> str:
        if not model.created:
            return ""
        if not 0 < model.created <= LATEST:
            return f"{model.created}, which is no time in seconds"
        return f"{datetime.fromtimestamp(model.created, UTC):%Y-%m-%d}"

    @display(description="Catalogue", ordering="is_listed", label=_LISTED)
    def listing(self, model: LanguageModel) -> str:
        return "listed" if model.is_listed else "left"

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        # A published canonical slug never changes.
        return (*self.readonly_fields, "canonical_slug") if obj else self.readonly_fields


class ModelEndpointForm(ConsoleForm):
    """An endpoint with its rates; other rates become another price version."""

    prompt = RateField(label="Prompt", help_text="USD per token.")
    completion = RateField(label="Completion", help_text="USD per token.")
    image = RateField(label="Image", initial=0, help_text="USD per image of a prompt.")
    request = RateField(label="Request", initial=0, help_text="USD per request.")
    cache_read = RateField(
        label="Cache read", required=False, help_text="Empty: as a prompt token."
    )
    cache_write = RateField(
        label="Cache write", required=False, help_text="Empty: as a prompt token."
    )
    image_output = RateField(
        label="Drawn picture",
        required=False,
        help_text="USD per token of one. Empty: as a completion token.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.instance._state.adding:
            for name in RATES:
                self.initial[name] = getattr(self.instance.price, name)

    @property
    def price(self) -> Price:
        return Price(**{name: self.cleaned_data[name] for name in RATES})


@admin.register(ModelEndpoint)
class ModelEndpointAdmin(CatalogueAdmin):
    """Models as providers serve them publicly, at their list price."""

    form = ModelEndpointForm
    list_display = (
        "model", "provider", "upstream_model_id", "region", "prompt_price", "completion_price",
        "promises", "listing",
    )  # fmt: skip
    list_select_related = ("model", "provider", "price")
    list_filter = ("is_listed", "provider", "region", "zdr")
    search_fields = ("model__name", "model__slug", "provider__name", "upstream_model_id")
    uuid_search_fields = ("id", "model_id", "provider_id")
    autocomplete_fields = ("model", "provider")
    fieldsets = (
        (None, {"fields": (("model", "provider"), ("upstream_model_id", "region"), "is_listed")}),
        (
            "List price",
            {
                "fields": (
                    ("prompt", "completion"),
                    ("image", "request"),
                    ("cache_read", "cache_write"),
                    "image_output",
                ),
                "description": "A change is a new price version: what was used before keeps its "
                "price.",
            },
        ),
        (
            "Limits",
            {
                "fields": (
                    ("context_length", "max_completion_tokens"),
                    "quantization",
                    "supported_parameters",
                    ("is_moderated", "zdr"),
                )
            },
        ),
        ("Record", {"classes": ["collapse"], "fields": ("id", ("created_at", "updated_at"))}),
    )
    readonly_fields = ("rates", "id", "created_at", "updated_at")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """The form's own fields have no value on the page of who may only look."""
        shown = super().get_fieldsets(request, obj)
        if obj is None or self.has_change_permission(request, obj):
            return shown
        return [
            (title, {"fields": ("rates",)} if title == "List price" else options)
            for title, options in shown
        ]

    @display(description="Rates")
    def rates(self, endpoint: ModelEndpoint) -> str:
        rows = (
            (name.replace("_", " "), dollars(rate))
            for name in RATES
            if (rate := getattr(endpoint.price, name)) is not None
        )
        return format_html_join("", "<div>{}: {}</div>", rows)

    @display(description="Data", label=True)
    def promises(self, endpoint: ModelEndpoint) -> list[str]:
        return ["ZDR"] if endpoint.zdr else []

    @display(description="Prompt / M")
    def prompt_price(self, endpoint: ModelEndpoint) -> str | None:
        return per_million(endpoint.price.prompt)

    @display(description="Completion / M")
    def completion_price(self, endpoint: ModelEndpoint) -> str | None:
        return per_million(endpoint.price.completion)

    @display(description="Catalogue", ordering="is_listed", label=_LISTED)
    def listing(self, endpoint: ModelEndpoint) -> str:
        return "listed" if endpoint.is_listed else "left"

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return self.readonly_fields
        fixed = (*self.readonly_fields, "model", "provider", "upstream_model_id", "region")
        if request.user.has_perm("catalog.change_provider"):
            return fixed
        return (*fixed, *_TERMS)

    def create(self, request: HttpRequest, obj: Any, form: Any) -> ModelEndpoint:
        obj.price = PriceVersion.of(subject_id=obj.pk, price=form.price)
        obj.price.save()
        obj.save(force_insert=True)
        return obj  # type: ignore[no-any-return]

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if change and obj.price.price != form.price:
            obj.price = PriceVersion.of(subject_id=obj.pk, price=form.price)
            obj.price.save()
            obj.save_fields("price")


@admin.register(PriceVersion)
class PriceVersionAdmin(ReadOnlyAdmin):
    """Prices that were in force, newest first; the subject is the endpoint that each priced."""

    list_display = (
        "id", "subject_id", "prompt_price", "completion_price", "cache_read_price", "created_at",
    )  # fmt: skip
    uuid_search_fields = ("subject_id",)
    search_fields = ("=id",)
    search_help_text = "The number of a version, or the id of an endpoint."
    paginator = BoundedPaginator
    sortable_by = ()
    fieldsets = (
        (None, {"fields": ("id", "subject_id", "created_at")}),
        ("Rates", {"fields": tuple(f"{name}_rate" for name in RATES)}),
    )
    readonly_fields = tuple(f"{name}_rate" for name in RATES)

    @display(description="Prompt / M")
    def prompt_price(self, version: PriceVersion) -> str | None:
        return per_million(version.prompt)

    @display(description="Completion / M")
    def completion_price(self, version: PriceVersion) -> str | None:
        return per_million(version.completion)

    @display(description="Cache read / M")
    def cache_read_price(self, version: PriceVersion) -> str | None:
        return per_million(version.cache_read)

    @display(description="Prompt")
    def prompt_rate(self, version: PriceVersion) -> str:
        return _per_token(version.prompt)

    @display(description="Completion")
    def completion_rate(self, version: PriceVersion) -> str:
        return _per_token(version.completion)

    @display(description="Image")
    def image_rate(self, version: PriceVersion) -> str:
        return f"{dollars(version.image)} per image"

    @display(description="Request")
    def request_rate(self, version: PriceVersion) -> str:
        return f"{dollars(version.request)} per request"

    @display(description="Cache read")
    def cache_read_rate(self, version: PriceVersion) -> str:
        return _per_token(version.cache_read)

    @display(description="Cache write")
    def cache_write_rate(self, version: PriceVersion) -> str:
        return _per_token(version.cache_write)

    @display(description="Drawn picture")
    def image_output_rate(self, version: PriceVersion) -> str:
        return _per_token(version.image_output, otherwise="as a completion token")


def _per_token(rate: Any, otherwise: str = "as a prompt token") -> str:
    if rate is None:
        return otherwise
    return format_html("{} per token ({} per million)", dollars(rate), per_million(rate))
