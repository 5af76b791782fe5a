"""Filters of a list: a few choices, or a form with times, amounts and texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC
from typing import Any, ClassVar, Final

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from config.console.unfold import SelectWidget, TextWidget

_TIMES: Final = ("%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d")


class UtcField(forms.DateTimeField):
    """Takes a time: with its zone, or in UTC as a browser's picker sends it."""

    def __init__(self, **kwargs: Any) -> None:
        widget = TextWidget(attrs={"type": "datetime-local", "step": "1"})
        super().__init__(required=False, input_formats=_TIMES, widget=widget, **kwargs)

    def prepare_value(self, value: Any) -> Any:
        """Returns the time as a browser's picker takes it, or a text that is no time as it is.

        The picker would be empty for a time with a zone, which links of other pages have.
        """
        try:
            moment = self.to_python(value)
            shown = moment and moment.astimezone(UTC).replace(tzinfo=None)
        except (forms.ValidationError, OverflowError):
            # The calendar of UTC lacks the first and last hours of other zones.
            return value
        return shown.isoformat(timespec="seconds") if shown else ""


class TextField(forms.CharField):
    """Takes a whole text."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(required=False, max_length=512, widget=TextWidget(), **kwargs)


class NumberFilterField(forms.DecimalField):
    """Takes a number that is not negative."""

    def __init__(self, *, decimal_places: int = 0, **kwargs: Any) -> None:
        super().__init__(
            required=False,
            min_value=0,
            max_digits=9 + decimal_places,
            decimal_places=decimal_places,
            widget=TextWidget(attrs={"inputmode": "decimal"}),
            **kwargs,
        )


class OptionField(forms.ChoiceField):
    """Takes one of some values, or none."""

    def __init__(self, options: Any, **kwargs: Any) -> None:
        choices = [("", "All"), *options]
        super().__init__(required=False, choices=choices, widget=SelectWidget(), **kwargs)


def make_filter(
    title: str, parameter: str, choices: Mapping[str, tuple[str, Callable[[Any], Any]]]
) -> type[admin.SimpleListFilter]:
    """Makes a filter; each value of its parameter has a label, and narrows the rows."""

    class Choice(admin.SimpleListFilter):
        def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
            return [(value, label) for value, (label, _) in choices.items()]

        def queryset(self, request: HttpRequest, queryset: Any) -> Any:
            if not (value := self.value()):
                return queryset
            return choices[value][1](queryset) if value in choices else queryset.none()

    Choice.title, Choice.parameter_name = title, parameter
    return Choice


class FilterForm(forms.Form):
    """The fields of a filter; each is a parameter of the list's address."""

    def narrow(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Returns the rows that the valid form asks for."""
        raise NotImplementedError


class FormFilter(admin.ListFilter):
    """Narrows a list by a form. A form with an error shows it at its field, and no rows."""

    template = "admin/form_filter.html"
    title = "the filter"
    form_class: ClassVar[type[FilterForm]]

    def __init__(
        self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any
    ) -> None:
        super().__init__(request, params, model, model_admin)
        for name in self.expected_parameters():
            if name in params:
                self.used_parameters[name] = params.pop(name)[-1]
        self.form = self.form_class(self.used_parameters)

    @classmethod
    def names(cls) -> list[str]:
        """Returns the parameters of a list's address that the form takes."""
        return list(cls.form_class.base_fields)

    def expected_parameters(self) -> list[str | None]:
        return [*self.names()]

    def has_output(self) -> bool:
        return True

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:
        yield {"form": self.form}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return self.form.narrow(queryset) if self.form.is_valid() else queryset.none()
