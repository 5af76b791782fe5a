"""The forms and dialogs of private endpoints."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec
from django import forms
from django.conf import settings
from django.utils.text import capfirst

from accounts.admin.forms import may_point_secrets
from accounts.models import Region, Workspace
from accounts.policy import Fallback
from catalog.abilities import PoolRouting, read_settings
from catalog.pricing import Price
from config.api.text import parse_uuid
from config.console.forms import ConsoleForm, NoteField, TokenRateField
from config.console.unfold import Dialog, SelectWidget, TextWidget
from config.egress.rules import SETTING_OF, TimeLimits
from config.models import TIME_COLUMNS
from endpoints.models import (
    InvalidBaseURL,
    NewModel,
    PrivateEndpoint,
    canonical_base_url,
    require_base_url,
)

_FIXED_BASE_URL: Final = (
    "Only operators who may change credentials may change the base URL, because the secret of the "
    "organization goes there."
)
RATES: Final = ("prompt", "completion", "cache_read", "cache_write")


def _find_endpoint(dialog: Dialog) -> PrivateEndpoint | None:
    """Returns the endpoint of a dialog, if there is one that is not deleted."""
    rows = PrivateEndpoint.objects.filter(pk=parse_uuid(dialog.object_id), deleted_at=None)
    return rows.select_related("provider", "private_provider").first()


def _count(least: int, most: int, text: str, default: str) -> forms.IntegerField:
    return forms.IntegerField(
        min_value=least,
        max_value=most,
        required=False,
        widget=TextWidget(attrs={"inputmode": "numeric"}),
        help_text=f"{text} Empty means {default}.",
    )


class ValidateDialog(Dialog):
    """Asks for the workspace whose credential the live calls use."""

    workspace = forms.ModelChoiceField(
        queryset=Workspace.objects.none(), widget=SelectWidget(), empty_label=None
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field: Any = self.fields["workspace"]
        endpoint_id = parse_uuid(self.object_id)
        rows = Workspace.objects.filter(
            organization__private_endpoints=endpoint_id, deleted_at=None
        )
        field.queryset = rows.order_by("-is_default", "name")
        field.label_from_instance = lambda workspace: workspace.name


class EditDialog(Dialog):
    """Shows a draft's upstream and declarations for editing."""

    upstream_model_id = forms.CharField(
        label="Upstream model ID", max_length=255, widget=TextWidget()
    )
    base_url = forms.CharField(
        label="Base URL",
        max_length=2048,
        required=False,
        empty_value=None,
        widget=TextWidget(attrs={"inputmode": "url"}),
        help_text="An HTTPS address that ends with the version. Leave it empty if the credential "
        "contains it.",
    )
    declared_region = forms.TypedChoiceField(
        choices=(("", "Not declared"), *Region.choices),
        required=False,
        empty_value=None,
        widget=SelectWidget(),
    )
    declared_zdr = forms.TypedChoiceField(
        label="Declared ZDR",
        choices=(("", "Not declared"), ("true", "Yes"), ("false", "No")),
        coerce=lambda text: text == "true",
        required=False,
        empty_value=None,
        widget=SelectWidget(),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._endpoint = _find_endpoint(self)
        if self._endpoint is not None:
            zdr = {None: "", True: "true", False: "false"}[self._endpoint.declared_zdr]
            self.initial = {
                name: getattr(self._endpoint, name)
                for name in ("upstream_model_id", "base_url", "declared_region")
            } | {"declared_zdr": zdr}
        if not may_point_secrets(self.request):
            self.fields["base_url"].widget.attrs["readonly"] = True
            self.fields["base_url"].help_text = _FIXED_BASE_URL

    def clean_base_url(self) -> str | None:
        text: str | None = self.cleaned_data["base_url"]
        if self._endpoint is None:
            return text
        try:
            base_url = canonical_base_url(text, self._endpoint.organization_id)
            require_base_url(base_url, self._endpoint.upstream_provider)
        except InvalidBaseURL as exc:
            raise forms.ValidationError(exc.message) from None
        if base_url != self._endpoint.base_url and not may_point_secrets(self.request):
            raise forms.ValidationError(_FIXED_BASE_URL)
        return base_url


class ReplaceDialog(ValidateDialog, EditDialog):
    """Asks for another deployment, and for the workspace whose credential validates it."""


class TimesDialog(Dialog):
    """Shows the limits of time of an endpoint for editing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        endpoint = _find_endpoint(self)
        for name, column in zip(TimeLimits._fields, TIME_COLUMNS, strict=True):
            setting = SETTING_OF[name]
            most = math.floor(getattr(settings, setting))
            described: Any = PrivateEndpoint._meta.get_field(column)
            self.fields[column] = forms.IntegerField(
                label=capfirst(described.verbose_name),
                min_value=1,
                max_value=most,
                required=False,
                widget=TextWidget(attrs={"inputmode": "numeric"}),
                help_text=f"{described.help_text} Empty means {most}, which {setting} says.",
            )
            if endpoint is not None:
                self.initial[column] = getattr(endpoint, column)

    @property
    def limits(self) -> TimeLimits:
        return TimeLimits(*(self.cleaned_data[column] for column in TIME_COLUMNS))


class DisableDialog(Dialog):
    """Asks for an optional reason."""

    reason = NoteField(
        required=False, max_length=255, help_text="Appears in the endpoint's history."
    )


class FallbackDialog(Dialog):
    """Asks where requests for the model of an endpoint may go besides private endpoints."""

    fallback = forms.TypedChoiceField(
        choices=(("", "Inherit"), *((str(level), str(level)) for level in Fallback)),
        required=False,
        empty_value=None,
        widget=SelectWidget(),
        help_text=str(PrivateEndpoint._meta.get_field("fallback").help_text),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        endpoint = _find_endpoint(self)
        if endpoint is not None:
            self.initial = {"fallback": endpoint.fallback or ""}


class PoolDialog(Dialog):
    """Asks for the place of an endpoint among the private ones of its model."""

    priority = _count(0, 1000, "The highest serves, the others while it is down or full.", "0")
    weight = _count(1, 1000, "The share of the requests of its priority.", "100")
    max_in_flight = _count(
        1, 10**6, "The most requests that run at once, over all workers.", "no limit"
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        endpoint = _find_endpoint(self)
        if endpoint is not None:
            self.initial = msgspec.structs.asdict(read_settings(endpoint.settings).routing)

    @property
    def routing(self) -> dict[str, Any]:
        names = PoolRouting.__struct_fields__
        return {name: self.cleaned_data[name] for name in names}


class RemoveDialog(Dialog):
    """Asks whether the model of a deleted endpoint is released too."""

    release = forms.BooleanField(
        label="Release the model",
        required=False,
        help_text="Requests for it go to public endpoints from now on.",
    )


class PrivateEndpointForm(ConsoleForm):
    """Takes a new draft; without rates the draft has the public list price."""

    refusal_fields = {
        "invalid_base_url": "base_url",
        "model_not_found": "model",
        "model_exists": "own_model",
        "provider_not_found": "provider",
        "endpoint_limit_reached": "organization",
    }

    class Meta:
        labels = {"upstream_model_id": "Upstream model ID", "base_url": "Base URL"}

    own_model = forms.CharField(
        label="Own model",
        max_length=255,
        required=False,
        widget=TextWidget(),
        help_text="The slug of a model of the organization alone, such as acme/support-7b.",
    )
    own_model_name = forms.CharField(
        label="Name of a new own model",
        max_length=255,
        required=False,
        widget=TextWidget(),
        help_text="Makes the own model; everything else is taken from the model above, if any.",
    )
    prompt = TokenRateField(required=False)
    completion = TokenRateField(required=False)
    cache_read = TokenRateField(required=False)
    cache_write = TokenRateField(required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "model" in self.fields:  # the page of an endpoint shows it, and has no such field
            self.fields["model"].required = False

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        if "model" not in self.errors and not (cleaned.get("model") or cleaned.get("own_model")):
            self.add_error("model", "Choose a model, or name an own model under More.")
        if cleaned.get("own_model_name") and not cleaned.get("own_model"):
            self.add_error("own_model", "A new own model needs a slug.")
        given = {name for name in RATES if cleaned.get(name) is not None}
        for name in ("prompt", "completion"):
            if given and name not in given and name not in self.errors:
                self.add_error(
                    name, "A negotiated price needs a prompt rate and a completion rate."
                )
        return cleaned

    @property
    def named_model(self) -> dict[str, Any]:
        """Returns the members of a draft that name its model, and make it if that is new."""
        listed = self.cleaned_data["model"]
        permaslug = None if listed is None else listed.canonical_slug
        slug, name = self.cleaned_data["own_model"], self.cleaned_data["own_model_name"]
        if not slug:
            return {"model_permaslug": permaslug}
        return {"model_permaslug": slug, "model": NewModel(name, permaslug) if name else None}

    @property
    def negotiated_price(self) -> Price | None:
        rates = {name: self.cleaned_data[name] for name in RATES}
        return None if rates["prompt"] is None else Price(**rates)
