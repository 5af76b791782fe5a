"""The page of public endpoints: which provider serves which model, and at which price."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import flatten
from django.db.models import QuerySet
from django.http import HttpRequest

from billing.admin.excesses import UnderReviewFilter, count_reviews, reviews_of
from catalog.abilities import UNSTATED, InvalidAbilities, change, dump, find_problem
from catalog.admin.connecting import ON_PROVIDER
from catalog.admin.prices import PRICING, edit_price
from catalog.admin.rates import render_rates, render_rules
from catalog.admin.uploads import CatalogueAdmin, CatalogueRowForm
from catalog.connecting.connect import try_endpoints
from catalog.models import ModelEndpoint, PriceVersion
from catalog.pricing import RATES, Price
from catalog.sync.plans.columns import find_price_changes, list_terms
from config.changes.kinds import ChangeKind, FourEyes
from config.changes.pages import describe_field
from config.changes.proposals import PRICE
from config.console.actions import Message, transition
from config.console.formatting import per_million
from config.console.forms import RateFormField, TokenRateField, part
from config.console.unfold import column, display
from config.models import TIME_COLUMNS
from inference.reports.usage import subjects
from inference.reports.usage.panel import show_usage

# The columns that describe an endpoint. Finance may change its rates, but not these.
_TERMS: Final = (
    "is_listed",
    "context_length", "max_completion_tokens", "quantization", "supported_parameters",
    "abilities", "is_moderated", "zdr", *TIME_COLUMNS,
)  # fmt: skip


_OTHER_RATES: Final = (("image", "request"), ("cache_read", "cache_write"), "image_output")
_LIMITS: Final = (
    ("context_length", "max_completion_tokens"),
    "quantization", "supported_parameters", "abilities",
    ("is_moderated", "zdr"),
)  # fmt: skip


class ModelEndpointForm(CatalogueRowForm):
    """Takes an endpoint with its rates; changed rates become a new price version."""

    class Meta:
        labels = {
            "upstream_model_id": "Upstream model ID",
            "is_listed": "Listed",
            "is_moderated": "Moderated",
        }

    prompt = TokenRateField(label="Prompt")
    completion = TokenRateField(label="Completion")
    image = RateFormField(label="Image", initial=0, help_text="USD per image in a prompt.")
    request = RateFormField(label="Request", initial=0, help_text="USD per request.")
    cache_read = TokenRateField(label="Cache read", otherwise="the prompt rate")
    cache_write = TokenRateField(label="Cache write", otherwise="the prompt rate")
    image_output = TokenRateField(label="Generated image", otherwise="the completion rate")
    # The price version that the page showed: nobody brings an older one back unseen.
    basis = forms.IntegerField(label="", required=False, widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.instance._state.adding:
            for name in RATES:
                self.initial[name] = getattr(self.instance.price, name)
            self.initial["basis"] = self.instance.price_id

    def clean_abilities(self) -> dict[str, Any]:
        """Refuses members that a catalogue file may not have either."""
        given = self.cleaned_data["abilities"]
        if given is None:
            return {}
        if not isinstance(given, dict):
            raise forms.ValidationError("Must be a JSON object.")
        try:
            found = change(UNSTATED, {}, given)
        except InvalidAbilities as exc:
            raise forms.ValidationError(str(exc)) from None
        problem = find_problem(found, length=self.cleaned_data.get("context_length"))
        if problem is not None:
            raise forms.ValidationError(str(problem))
        return dump(found)

    @property
    def price(self) -> Price:
        """The price with the form's rates; its rules and its discount stay."""
        rates = {name: self.cleaned_data[name] for name in RATES}
        if self.instance._state.adding:
            return Price(**rates)
        stored: Price = self.instance.price.price
        return replace(stored, **rates)


@admin.register(ModelEndpoint)
class ModelEndpointAdmin(CatalogueAdmin):
    """Lists the public endpoints: models as providers serve them, at their list price."""

    form = ModelEndpointForm
    form_guard = FourEyes((ChangeKind.PRICES,), fields=RATES, guards_new_rows=True)
    list_display = (
        "model", "provider", "upstream_model_id", "region", "prompt_price", "completion_price",
        "promises", "listing", "reviews",
    )  # fmt: skip
    list_select_related = ("model", "provider", "price")
    list_filter = ("is_listed", UnderReviewFilter, "provider", "region", "zdr")
    search_fields = ("model__name", "model__slug", "provider__name", "upstream_model_id")
    uuid_search_fields = ("id", "model_id", "provider_id")
    autocomplete_fields = ("model", "provider")
    add_fieldsets = (
        part(None, ("model", "provider"), "upstream_model_id", ("prompt", "completion")),
        part("More", "region", *flatten((*_OTHER_RATES, *_LIMITS)), *TIME_COLUMNS, folded=True),
    )
    fieldsets = (
        part(None, ("model", "provider"), ("upstream_model_id", "region"), "is_listed"),
        part(
            "List price",
            ("prompt", "completion"),
            *_OTHER_RATES[:-1],
            (_OTHER_RATES[-1], "basis"),
            "rules",
            note="A change creates a new price version. Earlier generations keep "
            "their price. Further rates, and rates under conditions, have a page of their own: "
            "Edit price.",
        ),
        part("Limits", *_LIMITS),
        part(
            "Limits of time",
            *TIME_COLUMNS,
            note="Empty fields, and longer times, mean the limits of the settings. A "
            "plain answer is bounded by the first and the last one.",
            folded=True,
        ),
        part(
            "Record",
            ("id", "reviews"),
            ("source", "as_of"),
            ("created_at", "updated_at"),
            folded=True,
        ),
    )

    fixed_fields = ("is_listed", "model", "provider", "upstream_model_id", "region")
    actions_detail = ("send_test", "edit_price", "delist", "relist")
    edit_price = edit_price
    other_operations = {**CatalogueAdmin.other_operations, PRICE: PRICING}
    reviews = reviews_of

    @transition(
        "Send a test request", submit="Send", permission="catalog.change_provider", icon="send"
    )
    def send_test(self, request: HttpRequest, endpoint: ModelEndpoint, form: Any) -> Message:
        """Asks for a word with the operator's credential. The provider may charge the tokens."""
        test = try_endpoints(endpoint.provider, [endpoint], ON_PROVIDER)
        if test is None:
            return messages.INFO, "There is no test request for this kind of model."
        return messages.SUCCESS, str(test)

    panels = {"usage": show_usage(subjects.of_public_endpoint)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[ModelEndpoint]:
        # An endpoint is named by its model and its provider wherever it is shown.
        rows: QuerySet[ModelEndpoint] = super().get_queryset(request)
        return rows.select_related(*self.list_select_related)

    def has_reprice_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_change_permission(request)

    def read_columns(self, request: HttpRequest, rows: list[Any]) -> None:
        super().read_columns(request, rows)
        count_reviews(rows)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Replaces the rate fields with plain text for an operator who may only view."""
        fieldsets = super().get_fieldsets(request, obj)
        if obj is None or self.has_change_permission(request, obj):
            return fieldsets
        return [
            (title, {"fields": ("rates", "rules")} if title == "List price" else options)
            for title, options in fieldsets
        ]

    rates = column("Rates", lambda endpoint: render_rates(endpoint.price))

    @display(description="Further rates")
    def rules(self, endpoint: ModelEndpoint) -> str:
        return "" if endpoint._state.adding else render_rules(endpoint.price.price)

    promises = column("Data", lambda endpoint: ["ZDR"] if endpoint.zdr else [], label=True)
    prompt_price = column("Prompt / M", lambda row: per_million(row.price.prompt))
    completion_price = column("Completion / M", lambda row: per_million(row.price.completion))

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        fixed = super().get_readonly_fields(request, obj)
        if obj is None or request.user.has_perm("catalog.change_provider"):
            return fixed
        return (*fixed, *_TERMS)

    def create(self, request: HttpRequest, obj: Any, form: Any) -> ModelEndpoint:
        obj.price = PriceVersion.of(subject_id=obj.pk, price=form.price)
        obj.price.save(force_insert=True)
        obj.save(force_insert=True)
        return obj

    def describe_form(self, form: Any) -> list[Any]:
        """Returns the changed rates per million tokens with their percents, then the rest."""
        shown = [name for name in form.changed_data if name not in (*RATES, "basis")]
        rest = [describe_field(form, name) for name in shown]
        if form.instance._state.adding:
            return [*list_terms(form.price, {}), *rest]
        return [*find_price_changes(form.instance.price.price, form.price), *rest]

    def change(self, request: HttpRequest, obj: Any, form: Any) -> None:
        super().change(request, obj, form)
        obj.reprice(form.price, basis=form.cleaned_data["basis"])
