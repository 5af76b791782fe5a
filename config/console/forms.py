"""Form fields that several pages of the console share, and the form that shows refusals."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final, NoReturn

from django import forms
from django.contrib.postgres.forms import SimpleArrayField
from django.core.exceptions import ValidationError

from config.api.errors import GatewayError
from config.api.scanning import BoundExceeded, Bounds, NumberOutOfRange, scan
from config.api.text import CONTROL_CHARACTERS, NOT_STORABLE, iter_texts, plain_digits
from config.changes.proposals import find_differences
from config.console.formatting import digest, shift_digits
from config.console.unfold import ModelForm, PasswordWidget, TextareaWidget, TextWidget
from config.credentials import MAX_CREDENTIAL_LENGTH, NotACredential, parse_credential


def part(title: str | None, *fields: Any, note: str = "", folded: bool = False) -> Any:
    """Returns a part of a page: its title, its fields, those of one line in a tuple, and a note."""
    options: dict[str, Any] = {"fields": fields}
    if note:
        options["description"] = note
    if folded:
        options["classes"] = ["collapse"]
    return title, options


RECORD: Final = part("Record", "id", ("created_at", "updated_at"), folded=True)


class SecretFormField(forms.CharField):
    """Takes a secret and never renders it; the value of an empty field is ``None``."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault(
            "widget", PasswordWidget(attrs={"autocomplete": "new-password", "spellcheck": "false"})
        )
        super().__init__(max_length=MAX_CREDENTIAL_LENGTH, **kwargs)

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return None
        try:
            return parse_credential(text)
        except NotACredential as exc:
            raise ValidationError(str(exc)) from None


class NoteField(forms.CharField):
    """Takes the reason for an action as one line; a history or the ledger stores it."""

    def __init__(self, *, max_length: int = 1_000, **kwargs: Any) -> None:
        super().__init__(max_length=max_length, widget=TextareaWidget(attrs={"rows": 2}), **kwargs)

    def clean(self, value: Any) -> str:
        note = " ".join(super().clean(value).split())
        if CONTROL_CHARACTERS.search(note):
            raise ValidationError("Must not contain control characters.")
        return note


class RateFormField(forms.DecimalField):
    """Takes USD per unit; shows a stored rate without an exponent."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            min_value=0,
            max_digits=36,
            decimal_places=30,
            widget=TextWidget(attrs={"inputmode": "decimal"}),
            **kwargs,
        )

    def prepare_value(self, value: Any) -> Any:
        return plain_digits(value) if isinstance(value, Decimal) else value


class TokenRateField(RateFormField):
    """Takes USD per million tokens, the unit of providers' price lists; its value is per token.

    ``otherwise`` names the rate that an empty field means.
    """

    def __init__(self, *, otherwise: str = "", **kwargs: Any) -> None:
        hint = f" Empty means {otherwise}." if otherwise else ""
        kwargs = {"required": not otherwise, **kwargs}
        super().__init__(help_text=f"USD per million tokens.{hint}", **kwargs)

    def to_python(self, value: Any) -> Any:
        shown: Any = super().to_python(value)
        return None if shown is None else shift_digits(shown, -6)

    def prepare_value(self, value: Any) -> Any:
        return super().prepare_value(
            shift_digits(value, 6) if isinstance(value, Decimal) else value
        )


# What a form may hold: deeper values could be read, and not be written again.
_BOUNDS: Final = Bounds(depth=32, containers=10_000, members=10_000, values=100_000, numbers=True)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


class _StorableDecoder(json.JSONDecoder):
    """Reads JSON that PostgreSQL can store; raises ``JSONDecodeError`` for any other text."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "parse_constant": _refuse_constant})

    def decode(self, s: str, *args: Any) -> Any:
        try:
            scan(s.encode(), _BOUNDS, may_repeat=True)
            value = super().decode(s, *args)
        except (BoundExceeded, NumberOutOfRange, ValueError):
            raise json.JSONDecodeError("cannot be stored", s, 0) from None
        if any(map(NOT_STORABLE.search, iter_texts(value))):
            raise json.JSONDecodeError("cannot be stored", s, 0)
        return value


class EmptyJsonField(forms.JSONField):
    """Takes JSON that can be stored; it is empty without a value, where Django's shows ``null``."""

    default_error_messages = {
        "invalid": "Enter valid JSON: no NaN or Infinity, no text with NUL, and at most 32 levels."
    }

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "decoder": _StorableDecoder})

    def prepare_value(self, value: Any) -> Any:
        return "" if value is None else super().prepare_value(value)


# The hidden input of a page or a dialog with what it showed when it was opened.
SEEN: Final = "seen"


def digest_shown(form: Any, names: Iterable[str]) -> dict[str, str]:
    """Returns digests of the values with which fields of a form open, by the fields' names."""
    initial = form.get_initial_for_field
    return {name: digest(initial(form.fields[name], name)) for name in names}


def refuse_stale(form: Any, shown: Mapping[str, str], opened: str) -> None:
    """Adds an error to a form that was opened when it showed something else than ``shown``.

    A form sends all fields, so it would undo what another operator has changed meanwhile.
    """
    try:
        seen = dict(json.loads(form.data[SEEN]))
    except (TypeError, ValueError):
        seen = {}
    names = [name for name in find_differences(seen, shown) if name in shown]
    if names:
        labels = ", ".join(str(form[name].label) for name in names)
        form.add_error(
            None,
            f"Somebody has changed this since you opened the {opened}: {labels}. Open it again.",
        )


class ConsoleForm(ModelForm):
    """Shows a model's refusal beside the field that caused it.

    ``refusal_fields`` maps an ``error_type`` to a field; every other refusal heads the form. One
    that shows what is no longer stored is refused.
    """

    refusal: GatewayError | None = None
    refusal_fields: dict[str, str] = {}

    @property
    def seen(self) -> str:
        """The digests of the values that the opened page showed; empty for a new row."""
        if self.instance._state.adding:
            return ""
        return self.data.get(SEEN) or json.dumps(digest_shown(self, self.fields))

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if self.data.get(SEEN) and not self.instance._state.adding:
            refuse_stale(self, digest_shown(self, self.fields), "page")
        for name, field in self.fields.items():
            # An empty input of a nullable list means NULL (no limit), not an empty list.
            if isinstance(field, SimpleArrayField) and cleaned.get(name) == []:
                cleaned[name] = None if self._meta.model._meta.get_field(name).null else []
        if self.refusal is not None:
            place = self.find_place(self.refusal)
            self.add_error(place if place in self.fields else None, self.refusal.message)
        return cleaned

    def find_place(self, refusal: GatewayError) -> str | None:
        """Returns the field beside which a refusal is shown."""
        return self.refusal_fields.get(refusal.error_type)
