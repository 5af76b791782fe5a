"""The forms of a price: its rates, and a row for each further rate or rate under conditions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError

from catalog.pricing import Billable, Conditions, Price, Rule
from catalog.pricing.rules import COLUMNS, DAYS, KIND_OF
from config.api.text import plain_digits
from config.console.formatting import shift_digits
from config.console.forms import RateFormField, TokenRateField
from config.console.unfold import SelectWidget, TextWidget

_UNITS: Final = ("token", "image", "search", "second", "character", "request")
_TIME: Final = re.compile(r"([01]?[0-9]|2[0-4]):([0-5][0-9])")
_OTHER_RATES: Final = {
    "cache_read": "the prompt rate",
    "cache_write": "the prompt rate",
    "image_output": "the completion rate",
}
_LABELS: Final = {
    "prompt": "Prompt",
    "completion": "Completion",
    "cache_read": "Cache read",
    "cache_write": "Cache write",
    "image_output": "Tokens of generated images",
    "image": "Image in the prompt",
    "request": "Request",
}


def to_shown(rate: Decimal, unit: str) -> Decimal:
    """Returns a rate as people write it: per million where it is per token."""
    return shift_digits(rate, 6) if unit == "token" else rate


def to_text(shown: Decimal, unit: str) -> str:
    """Returns the rate of one unit as a catalogue file has it."""
    return plain_digits(shift_digits(shown, -6) if unit == "token" else shown)


class RatesForm(forms.Form):
    """The rates without conditions that have a column of their own, and the discount."""

    discount = forms.DecimalField(
        label="Discount",
        required=False,
        min_value=0,
        max_value=100,
        decimal_places=8,
        max_digits=11,
        widget=TextWidget(attrs={"inputmode": "decimal"}),
        help_text="Percent that is taken off every rate.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rates: dict[str, forms.Field] = {}
        for column, label in _LABELS.items():
            if (unit := COLUMNS[column].unit) == "token":
                rates[column] = TokenRateField(label=label, otherwise=_OTHER_RATES.get(column, ""))
            else:
                rates[column] = RateFormField(label=label, help_text=f"USD per {unit}.")
        self.fields = {**rates, **self.fields}

    @staticmethod
    def read(price: Price) -> dict[str, Any]:
        """Returns the initial values of a price."""
        rates = {column: getattr(price, column) for column in _LABELS}
        percent = plain_digits(price.discount * 100) if price.discount else None
        return {**rates, "discount": percent}

    @property
    def members(self) -> dict[str, Any]:
        """The pricing object of the form."""
        rates = {
            COLUMNS[column].key: plain_digits(amount)
            for column in _LABELS
            if (amount := self.cleaned_data[column]) is not None
        }
        discount = self.cleaned_data["discount"]
        return {**rates, "discount": discount / 100} if discount else rates


class RuleForm(forms.Form):
    """One row: what is billed, its price, and when the price applies."""

    billable = forms.ChoiceField(
        label="Billed",
        choices=[("", "Choose…"), *((each.value, each.value.capitalize()) for each in Billable)],
        widget=SelectWidget(),
    )
    variant = forms.CharField(
        label="Variant",
        required=False,
        max_length=64,
        widget=TextWidget(attrs={"list": "variants", "autocomplete": "off"}),
    )
    price = RateFormField(label="USD")
    unit = forms.ChoiceField(
        label="Per",
        # A new row whose unit alone is set counts as empty.
        initial=_UNITS[0],
        choices=[(unit, "million tokens" if unit == "token" else unit) for unit in _UNITS],
        widget=SelectWidget(),
    )
    most = forms.IntegerField(
        label="At most",
        required=False,
        min_value=1,
        widget=TextWidget(attrs={"inputmode": "numeric", "placeholder": "of one answer"}),
    )
    min_prompt_tokens = forms.IntegerField(
        label="Above prompt tokens",
        required=False,
        widget=TextWidget(attrs={"inputmode": "numeric"}),
    )
    utc_start = forms.CharField(
        label="From (UTC)", required=False, widget=TextWidget(attrs={"placeholder": "08:00"})
    )
    utc_end = forms.CharField(
        label="To (UTC)", required=False, widget=TextWidget(attrs={"placeholder": "18:30"})
    )
    utc_days = forms.MultipleChoiceField(
        label="On (UTC)",
        required=False,
        choices=[(day, day[:3].capitalize()) for day in DAYS],
        widget=forms.CheckboxSelectMultiple(),
    )

    def clean_utc_start(self) -> int | None:
        return _read_time(self.cleaned_data["utc_start"])

    def clean_utc_end(self) -> int | None:
        return _read_time(self.cleaned_data["utc_end"])

    @staticmethod
    def read(rule: Rule) -> dict[str, Any]:
        """Returns the initial values of a rule."""
        conditions = rule.conditions or Conditions()
        return {
            "billable": rule.billable.value,
            "variant": rule.variant,
            "price": to_shown(rule.price, rule.unit),
            "unit": rule.unit,
            "most": rule.most or None,
            "min_prompt_tokens": conditions.min_prompt_tokens,
            "utc_start": _write_time(conditions.utc_start),
            "utc_end": _write_time(conditions.utc_end),
            "utc_days": list(conditions.utc_days or ()),
        }

    @property
    def line(self) -> dict[str, Any]:
        """The line of the row, as a catalogue file has it."""
        given = self.cleaned_data
        names = ("min_prompt_tokens", "utc_start", "utc_end")
        conditions: dict[str, Any] = {
            name: given[name] for name in names if given[name] is not None
        }
        if given["utc_days"]:
            conditions["utc_days"] = given["utc_days"]
        return {
            "billable": given["billable"],
            "unit": given["unit"],
            "price": to_text(given["price"], given["unit"]),
            **({"variant": given["variant"]} if given["variant"] else {}),
            **({"most": given["most"]} if given["most"] else {}),
            **({"conditions": conditions} if conditions else {}),
        }


# Django accepts at most 1,000 fields, and a row may send 16.
MOST_ROWS: Final = 60
RuleFormSet = forms.formset_factory(
    RuleForm, extra=0, can_delete=True, max_num=MOST_ROWS, validate_max=True
)


def list_variants() -> list[str]:
    """Returns the variants that have a meaning; images may have any size and quality."""
    return sorted({variant for _, variant in KIND_OF if variant})


def _read_time(text: str) -> int | None:
    if not text:
        return None
    if (match := _TIME.fullmatch(text.strip())) is None:
        raise ValidationError("Must be a time such as 08:00.")
    return int(match[1]) * 100 + int(match[2])


def _write_time(time: int | None) -> str:
    return "" if time is None else f"{time // 100:02d}:{time % 100:02d}"


def describe_problem(text: str, labels: Mapping[str, str]) -> str:
    """Returns a reason that names rows and fields as the page does."""
    text = re.sub(r"lines\[([0-9]+)\]", lambda match: f"row {int(match[1]) + 1}", text)
    for path, label in labels.items():
        text = text.replace(path, label)
    return f"{text[:1].upper()}{text[1:]}."
