"""Filters of lists for django-filter, over the strict query parameters of ``config.api.params``."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from django.db.models import Q, QuerySet
from django_filters import Filter
from django_filters.rest_framework import FilterSet
from django_filters.utils import translate_validation
from rest_framework.request import Request

from config.api.params import (
    ChoiceParameter,
    DecimalParameter,
    FlagParameter,
    IntegerParameter,
    ListParameter,
    QueryParameter,
    StateParameter,
    TextParameter,
    TrackingParameter,
    UUIDParameter,
    require_single,
)


class StrictFilter(Filter):  # type: ignore[misc]
    """Compares a column with a query parameter; an absent parameter filters nothing."""

    field_class: ClassVar[type[QueryParameter]]

    def filter(self, qs: QuerySet[Any], value: Any) -> QuerySet[Any]:
        return qs if value is None else qs.filter(**{f"{self.field_name}__exact": value})


class TextFilter(StrictFilter):
    field_class = TextParameter


class TrackingFilter(StrictFilter):
    field_class = TrackingParameter


class UUIDFilter(StrictFilter):
    field_class = UUIDParameter


class IntegerFilter(StrictFilter):
    field_class = IntegerParameter


class DecimalFilter(StrictFilter):
    field_class = DecimalParameter


class ChoiceFilter(StrictFilter):
    field_class = ChoiceParameter


class ListFilter(StrictFilter):
    field_class = ListParameter


class FlagFilter(StrictFilter):
    """Narrows the list by ``unless_set``, a method of the queryset, unless the flag is true."""

    field_class = FlagParameter

    def __init__(self, *, unless_set: str, **kwargs: Any) -> None:
        self.unless_set = unless_set
        super().__init__(**kwargs)

    def filter(self, qs: QuerySet[Any], value: bool) -> QuerySet[Any]:
        return qs if value else getattr(qs, self.unless_set)()


class MatchFilter(StrictFilter):
    """Keeps the rows in which any of ``columns`` has the value."""

    field_class = TextParameter

    def __init__(self, *columns: str, **kwargs: Any) -> None:
        self.columns = columns
        super().__init__(**kwargs)

    def filter(self, qs: QuerySet[Any], value: Any) -> QuerySet[Any]:
        if value is None:
            return qs
        return qs.filter(Q(*((column, value) for column in self.columns), _connector=Q.OR))


class StateFilter(StrictFilter):
    """Keeps the rows whose flag has the value, whichever it is."""

    field_class = StateParameter


class StrictFilterSet(FilterSet):  # type: ignore[misc]
    """The filters of one list. A parameter that neither a filter nor a field names is ignored."""

    def is_valid(self) -> bool:
        """Returns whether all parameters are valid; raises a 400 for one that is sent twice."""
        if self.is_bound:
            require_single(self.data, self.base_filters)
        valid: bool = super().is_valid()
        return valid

    @classmethod
    def read(cls, request: Request) -> dict[str, Any]:
        """Returns the values of all filters, for lists without a queryset; raises a 400."""
        filters: Self = cls(request.query_params, request=request)
        if not filters.is_valid():
            raise translate_validation(filters.errors)
        return dict(filters.form.cleaned_data)
