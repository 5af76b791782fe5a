"""The editor of content filters: one row for each built-in pattern, and rows for own patterns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError

from accounts.serializers.guardrails import BUILTIN_LABELS, UpdateGuardrailSerializer

ACTIONS: Final = (("redact", "Redact"), ("block", "Block"), ("flag", "Flag"))
BUILTIN_NAMES: Final = {
    "email": "Email addresses",
    "phone": "Phone numbers",
    "ssn": "US social security numbers",
    "credit-card": "Credit card numbers",
    "ip-address": "IP addresses",
    "secrets": "Keys and other secrets",
    "regex-prompt-injection": "Prompt injections",
}
_LABELS: Final = {
    "content_filter_builtins": "Built-in patterns",
    "content_filters": "Own patterns",
}
_INJECTION: Final = "regex-prompt-injection"
_PHONE: Final = "phone"
Row = dict[str, Any]


class _RowsWidget(forms.Widget):
    """Renders rows of filters; ``row_errors`` are the errors of each row, by its number."""

    row_errors: Mapping[int, list[str]]

    def __init__(self) -> None:
        super().__init__()
        self.row_errors = {}

    def value_omitted_from_data(self, data: Any, files: Any, name: str) -> bool:
        return False

    def use_required_attribute(self, initial: Any) -> bool:
        return False

    def id_for_label(self, id_: str, index: str | int | None = None) -> str:
        return ""

    def _read_row(self, data: Any, prefix: str, *names: str) -> Row:
        """Returns the row of a form: texts that are not empty, and ``block_unreadable`` if set."""
        row: Row = {name: text for name in names if (text := data.get(f"{prefix}-{name}") or "")}
        if data.get(f"{prefix}-block_unreadable"):
            row["block_unreadable"] = True
        return row


class BuiltinsWidget(_RowsWidget):
    """A row for each built-in pattern; one without an action is switched off."""

    template_name = "admin/accounts/guardrail/builtins.html"

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        context = super().get_context(name, value, attrs)
        chosen = {row.get("slug"): row for row in value or ()}
        places = {row.get("slug"): place for place, row in enumerate(value or ())}
        context["widget"]["rows"] = [
            {
                "slug": slug,
                "title": title,
                "placeholder": BUILTIN_LABELS[slug],
                "chosen": chosen.get(slug, {}),
                "has_scope": slug == _INJECTION,
                "has_regions": slug == _PHONE,
                "errors": self.row_errors.get(places.get(slug, -1), ()),
            }
            for slug, title in BUILTIN_NAMES.items()
        ]
        context["widget"]["actions"] = ACTIONS
        return context

    def value_from_datadict(self, data: Any, files: Any, name: str) -> list[Row]:
        rows = []
        for slug in BUILTIN_NAMES:
            row = self._read_row(data, f"{name}-{slug}", "action", "scan_scope", "regions")
            if "regions" in row:
                row["regions"] = row["regions"].upper().replace(",", " ").split()
            if "action" in row:
                rows.append({"slug": slug, **row})
        return rows


class PatternsWidget(_RowsWidget):
    """Rows of own patterns, with an empty one at the end; a row without a pattern is left out."""

    template_name = "admin/accounts/guardrail/patterns.html"

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        context = super().get_context(name, value, attrs)
        rows: list[Any] = [
            {"number": number, "chosen": row, "errors": self.row_errors.get(number, ())}
            for number, row in enumerate([*(value or ()), {}])
        ]
        context["widget"] |= {"rows": rows, "actions": ACTIONS, "total": len(rows)}
        return context

    def value_from_datadict(self, data: Any, files: Any, name: str) -> list[Row]:
        total = data.get(f"{name}-total") or "0"
        is_number = total.isascii() and total.isdecimal() and len(total) < 4
        rows = (
            self._read_row(data, f"{name}-{number}", "pattern", "label", "action")
            for number in range(int(total) if is_number else 0)
        )
        return [row for row in rows if "pattern" in row or "label" in row]


class FiltersField(forms.Field):
    """Takes the rows of an editor, checked as the API checks them, in the form that is stored.

    ``key`` sorts rows whose order has no meaning.
    """

    def __init__(self, name: str, widget: _RowsWidget, key: Callable[[Row], Any] | None) -> None:
        super().__init__(required=False, label=_LABELS[name], widget=widget)
        self._name = name
        self._key = key

    def clean(self, value: Any) -> list[Row] | None:
        if not value:
            return None
        serializer = UpdateGuardrailSerializer(data={self._name: value})
        if serializer.is_valid():
            rows: list[Row] = serializer.validated_data[self._name]
            return rows
        errors = serializer.errors[self._name]
        if not isinstance(errors, Mapping):
            raise ValidationError([str(text) for text in errors])
        self.widget.row_errors = {
            int(number): [
                f"{field.replace('_', ' ').capitalize()}: {text}"
                for field, texts in found.items()
                for text in texts
            ]
            for number, found in errors.items()
        }
        raise ValidationError("Correct the marked rows.")

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            changed = self.clean(data)
        except ValidationError:
            return True
        return self._in_order(initial) != self._in_order(changed)

    def _in_order(self, rows: list[Row] | None) -> list[Row]:
        return sorted(rows or [], key=self._key) if self._key else list(rows or [])


def builtins_field() -> FiltersField:
    return FiltersField("content_filter_builtins", BuiltinsWidget(), lambda row: row["slug"])


def patterns_field() -> FiltersField:
    return FiltersField("content_filters", PatternsWidget(), None)
