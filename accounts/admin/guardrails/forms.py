"""The form of a guardrail, and the dialogs that assign it to keys and members."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final
from uuid import UUID

from django import forms
from django.contrib.admin.options import HORIZONTAL
from django.urls import reverse

from accounts.admin.forms import CatalogueForm, DollarsFormField, nano_of
from accounts.admin.guardrails.backtest import BacktestWidget, ShownField
from accounts.admin.guardrails.filter_editor import builtins_field, patterns_field
from accounts.admin.guardrails.trial import TrialWidget
from accounts.admin.pickers import (
    NamesField,
    RowsField,
    find_model_labels,
    find_provider_labels,
    keys_of,
    label_key,
    label_member,
    members_of,
)
from accounts.models import Guardrail, Region
from accounts.policy import Family
from config.api.text import parse_uuid
from config.bulk.tables import format_usd
from config.console.unfold import (
    CheckboxesWidget,
    Dialog,
    RadioWidget,
    SelectWidget,
    TextareaWidget,
)

AS_SHADOW: Final = "_shadow"
"""The name of the button that saves the limits of a form as a shadow."""
_CHOICES: Final = (("unknown", "Inherit"), ("true", "On"), ("false", "Off"))
_SWITCHES: Final = {
    "enforce_zdr_anthropic": "Zero data retention, Anthropic",
    "enforce_zdr_google": "Zero data retention, Google",
    "enforce_zdr_openai": "Zero data retention, OpenAI",
    "enforce_zdr_xai": "Zero data retention, xAI",
    "enforce_zdr_other": "Zero data retention, all others",
    "enforce_zdr": "Zero data retention, all (deprecated)",
    "allow_safety_retention_google": "Retention for safety, Google",
    "allow_safety_retention_other": "Retention for safety, others",
    "enable_free_model_publication": "Free models that publish prompts",
    "enable_free_model_training": "Free models that train on prompts",
    "enable_paid_model_training": "Paid models that train on prompts",
    "require_private": "Private models stay private (no fallback)",
}

LABELS: Final = {
    **_SWITCHES,
    "content_filter_builtins": "Built-in patterns",
    "content_filters": "Own patterns",
    "reset_interval": "Starts again",
    "include_byok_in_budgets": "Count own credentials (BYOK) too",
}


class InheritWidget(RadioWidget):
    """Three radio buttons, whose values are those of Django's own list of yes, no and unknown."""

    def __init__(self) -> None:
        super().__init__(choices=_CHOICES)
        self.radio_style = HORIZONTAL

    def format_value(self, value: Any) -> list[str]:
        return [{True: "true", False: "false"}.get(value, "unknown")]

    def value_from_datadict(self, data: Any, files: Any, name: str) -> bool | None:
        return {"true": True, "false": False}.get(data.get(name))


class GuardrailForm(CatalogueForm):
    """Takes the limits of a guardrail, each with its errors beside it."""

    allowed_models = NamesField(placeholder="Any model", find_labels=find_model_labels)
    ignored_models = NamesField(placeholder="No model", find_labels=find_model_labels)
    allowed_providers = NamesField(placeholder="Any provider", find_labels=find_provider_labels)
    ignored_providers = NamesField(placeholder="No provider", find_labels=find_provider_labels)
    allowed_data_regions = forms.TypedMultipleChoiceField(
        choices=Region.choices,
        required=False,
        empty_value=None,
        widget=CheckboxesWidget(),
        help_text="Requests must arrive through the hosts of these regions. None marked: any host.",
    )
    limit = DollarsFormField(
        required=False,
        label="Budget in USD",
        help_text="For each key, and for each member with all of their keys.",
    )
    content_filter_builtins = builtins_field()
    content_filters = patterns_field()
    trial = ShownField("Try a text", TrialWidget())
    backtest = ShownField("Before you save", BacktestWidget())

    class Meta:
        widgets: ClassVar[dict[str, Any]] = {
            "description": TextareaWidget(attrs={"rows": 2}),
            **dict.fromkeys(_SWITCHES, InheritWidget),
        }
        # Pages without a form, and the limits of a shadow, take them from here too.
        labels = LABELS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._point_to_views()
        nano = self.instance.limit_nano
        if nano is not None and "limit" in self.fields:
            self.initial["limit"] = format_usd(nano)

    def _point_to_views(self) -> None:
        """Sets the addresses that the fields of this form ask.

        The fields of the class are shared by all threads, so none of them may know a guardrail.
        """
        fields: dict[str, Any] = self.fields
        for name in CatalogueForm.catalogue_fields.keys() & fields.keys():
            what = name.partition("_")[2]
            fields[name].widget.url = reverse(f"admin:accounts_guardrail_{what}")
        if "backtest" in fields:
            name, pk = "admin:accounts_guardrail_backtest", self.instance.pk
            is_new = self.instance._state.adding
            url = reverse(f"{name}_new") if is_new else reverse(name, args=[pk])
            fields["backtest"].widget.url = url

    @property
    def is_shadow(self) -> bool:
        """Whether the limits are saved as a shadow."""
        return AS_SHADOW in self.data

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        if not {"limit", "reset_interval"} <= cleaned.keys():
            return cleaned
        if cleaned["limit"] is not None and not cleaned["reset_interval"]:
            self.add_error("reset_interval", "Choose how often the budget starts again.")
        if cleaned["limit"] is None and cleaned["reset_interval"]:
            self.add_error("limit", "Enter an amount, or choose no interval.")
        return cleaned

    @property
    def changes(self) -> dict[str, Any]:
        """Returns the changed fields of the model.

        A change of ``enforce_zdr`` sets every family that is not named. So the result also names
        the families that are set to on or off on the form, even unchanged ones.
        """
        named = {name: self.cleaned_data[name] for name in self.changed_data}
        if "enforce_zdr" in named:
            for family in Family:
                value = self.cleaned_data[f"enforce_zdr_{family}"]
                if value is not None:
                    named[f"enforce_zdr_{family}"] = value
        if "limit" in named:
            named["limit_nano"] = nano_of(named.pop("limit"))
        return named


class _SubjectsDialog(Dialog):
    """Asks whether to assign or to remove the guardrail."""

    verb = forms.ChoiceField(
        choices=(("assign", "Assign"), ("unassign", "Remove")),
        widget=SelectWidget(),
        label="Operation",
    )

    rows_of: ClassVar[Mapping[str, Callable[[UUID], Any]]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        guardrail = Guardrail.objects.filter(pk=parse_uuid(self.object_id)).first()
        if guardrail is not None:
            for name, rows_of in self.rows_of.items():
                field: Any = self.fields[name]
                url = reverse(f"admin:accounts_guardrail_{name}", args=[self.object_id])
                field.search(rows_of(guardrail.organization_id), url)


class KeysDialog(_SubjectsDialog):
    keys = RowsField(noun="key", label="API keys", label_of=label_key)
    rows_of = {"keys": keys_of}


class MembersDialog(_SubjectsDialog):
    members = RowsField(noun="member", label="Members", label_of=label_member)
    rows_of = {"members": members_of}
