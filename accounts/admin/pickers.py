"""Pickers: fields that search models, providers, keys and members, and the lists they search."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final, cast
from uuid import UUID

from django import forms
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, JsonResponse
from django.urls import path, reverse
from django.utils.text import capfirst

from accounts.models import ApiKey, Member
from accounts.policy import author_pattern
from catalog.models import LanguageModel, Provider
from config.api.text import NOT_STORABLE, parse_uuid
from config.console.base import ConsoleAdmin
from config.console.unfold import PickerWidget

_PAGE: Final = 20
Labels = Mapping[str, str]


class Picker(PickerWidget):
    """Renders only what is chosen; the rest is searched at ``url`` while somebody types.

    ``find_labels`` returns the texts for chosen values.
    """

    option_template_name = "django/forms/widgets/select_option.html"

    def __init__(
        self, *, placeholder: str, find_labels: Callable[[list[str]], Labels], url: str = ""
    ) -> None:
        super().__init__()
        self.attrs |= {
            "data-allow-clear": json.dumps(False),
            "data-placeholder": placeholder,
            "data-width": "100%",
        }
        self.url = url
        self._find_labels = find_labels

    def point_to(self, url: str, find_labels: Callable[[list[str]], Labels]) -> None:
        """Sets where values are searched, and where their texts are found."""
        self.url = url
        self._find_labels = find_labels

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        return super().get_context(name, value, {**(attrs or {}), "data-ajax--url": self.url})

    def optgroups(
        self, name: str, value: list[str], attrs: dict[str, Any] | None = None
    ) -> list[Any]:
        chosen = [one for one in value if one and not NOT_STORABLE.search(one)]
        labels = self._find_labels(chosen)
        options = [
            self.create_option(name, one, labels.get(one, one), True, place)
            for place, one in enumerate(chosen)
        ]
        return [(None, options, 0)]


class NamesField(forms.Field):
    """Takes names of the catalogue; the value of an empty field is ``None``.

    The form checks that the names exist.
    """

    def __init__(self, *, placeholder: str, find_labels: Callable[[list[str]], Labels]) -> None:
        picker = Picker(placeholder=placeholder, find_labels=find_labels)
        super().__init__(required=False, widget=picker)

    def to_python(self, value: Any) -> list[str] | None:
        names = [name.strip() for name in value or () if name.strip()]
        return names or None

    def has_changed(self, initial: Any, data: Any) -> bool:
        return (initial or None) != self.to_python(data)


class RowsField(forms.ModelMultipleChoiceField):  # type: ignore[type-arg]
    """Takes rows of one organization; any other row is refused as one that does not exist."""

    def __init__(self, *, noun: str, label: str, label_of: Callable[[Any], str]) -> None:
        self._label_of = label_of
        picker = Picker(placeholder=f"Search {noun}s", find_labels=self._find_labels)
        refusal = f"Choose {noun}s of this organization: one of these does not exist there."
        super().__init__(
            queryset=ApiKey.objects.none(),
            label=label,
            widget=picker,
            error_messages={"invalid_choice": refusal, "invalid_pk_value": refusal},
        )

    def search(self, rows: QuerySet[Any], url: str) -> None:
        """Sets the rows among which to choose, and the address that searches them."""
        self.queryset = rows
        # A copy of the field keeps the methods of the original.
        self.widget.point_to(url, self._find_labels)

    def _find_labels(self, values: list[str]) -> Labels:
        keys = [key for key in map(parse_uuid, values) if key is not None]
        rows: QuerySet[Any] = self.queryset  # type: ignore[assignment]
        return {str(row.pk): self._label_of(row) for row in rows.filter(pk__in=keys)}


def find_model_labels(values: list[str]) -> Labels:
    """Returns the public slugs of models by their canonical slugs."""
    rows = LanguageModel.objects.filter(canonical_slug__in=values)
    return dict(rows.values_list("canonical_slug", "slug"))


def find_provider_labels(values: list[str]) -> Labels:
    rows = Provider.objects.filter(slug__in=values)
    return {slug: _label_provider(slug, name) for slug, name in rows.values_list("slug", "name")}


def label_key(key: ApiKey) -> str:
    return f"{key.name} · {key.label}"


def label_member(member: Member) -> str:
    name = " ".join(filter(None, (member.first_name, member.last_name)))
    return f"{name} · {member.email}" if name else member.email


def search_models(request: HttpRequest) -> JsonResponse:
    """Answers with models whose slug contains the term, after the authors who have such models."""
    term = _read_term(request).removesuffix("*")
    rows = LanguageModel.objects.order_by("slug")
    if term:
        rows = rows.filter(slug__icontains=term)
    found, has_more = _read_page(request, rows.values_list("canonical_slug", "slug"))
    results = [{"id": canonical, "text": slug} for canonical, slug in found]
    if _page_of(request) == 0 and term:
        authors = dict.fromkeys(author_pattern(slug) for _, slug in found)
        results[:0] = [
            {"id": name, "text": f"{name} (all models of {name[:-2]})"}
            for name in authors
            if term.lower() in name
        ]
    return _respond(results, has_more=has_more)


def search_providers(request: HttpRequest) -> JsonResponse:
    """Answers with providers whose slug or name contains the term."""
    term = _read_term(request)
    rows = Provider.objects.order_by("slug")
    if term:
        rows = rows.filter(Q(slug__icontains=term) | Q(name__icontains=term))
    found, has_more = _read_page(request, rows.values_list("slug", "name"))
    results = [{"id": slug, "text": _label_provider(slug, name)} for slug, name in found]
    return _respond(results, has_more=has_more)


def search_keys(
    request: HttpRequest, organization_id: UUID, value_of: Callable[[ApiKey], str]
) -> JsonResponse:
    """Answers with the inference keys of an organization whose name or label contains the term."""
    term = _read_term(request)
    rows = keys_of(organization_id).order_by("name", "pk")
    if term:
        rows = rows.filter(Q(name__icontains=term) | Q(label__icontains=term))
    found, has_more = _read_page(request, rows)
    results = [{"id": value_of(key), "text": label_key(key)} for key in found]
    return _respond(results, has_more=has_more)


def search_members(request: HttpRequest, organization_id: UUID) -> JsonResponse:
    """Answers with the members of an organization whose address or name contains the term."""
    term = _read_term(request)
    rows = members_of(organization_id).order_by("email", "pk")
    if term:
        columns = ("email", "first_name", "last_name")
        matches = ((f"{column}__icontains", term) for column in columns)
        rows = rows.filter(Q(*matches, _connector=Q.OR))
    found, has_more = _read_page(request, rows)
    results = [{"id": str(member.pk), "text": label_member(member)} for member in found]
    return _respond(results, has_more=has_more)


def keys_of(organization_id: UUID) -> QuerySet[ApiKey]:
    rows = ApiKey.objects.for_organization(organization_id).for_inference().current()
    return cast("QuerySet[ApiKey]", rows)


def members_of(organization_id: UUID) -> QuerySet[Member]:
    return Member.objects.for_organization(organization_id)


def _label_provider(slug: str, name: str) -> str:
    return f"{slug} ({name})" if slug != name.lower() else slug


def _read_term(request: HttpRequest) -> str:
    term = request.GET.get("term", "").strip()[:255]
    return "" if NOT_STORABLE.search(term) else term


def _page_of(request: HttpRequest) -> int:
    """Returns the number of the page, from 0; a page beyond the hundredth is the hundredth."""
    page = request.GET.get("page", "")
    is_number = page.isascii() and page.isdecimal() and len(page) < 4
    return min(max(int(page) - 1, 0), 99) if is_number else 0


def _read_page(request: HttpRequest, rows: QuerySet[Any, Any]) -> tuple[list[Any], bool]:
    """Returns the rows of the page that the request names, and whether another one follows."""
    start = _page_of(request) * _PAGE
    found = list(rows[start : start + _PAGE + 1])
    return found[:_PAGE], len(found) > _PAGE


def _respond(results: Iterable[dict[str, str]], *, has_more: bool) -> JsonResponse:
    return JsonResponse({"results": list(results), "pagination": {"more": has_more}})


class SubjectPickers(ConsoleAdmin):
    """Answers the pickers on the page of a row that an organization owns.

    ``picked`` are the nouns that its form has pickers for: keys, members or both.
    """

    picked: ClassVar[tuple[str, ...]] = ("keys", "members")

    def get_urls(self) -> list[Any]:
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        return [
            path(
                f"<path:object_id>/choices/{noun}/",
                self.admin_site.admin_view(view),
                name=f"{name}_{noun}",
            )
            for noun, view in (("keys", self.keys_view), ("members", self.members_view))
            if noun in self.picked
        ] + super().get_urls()

    def value_of(self, key: ApiKey) -> str:
        """Returns what the form stores of a key."""
        return key.digest

    def keys_view(self, request: HttpRequest, object_id: str) -> JsonResponse:
        row = self.require_row(request, object_id)
        return search_keys(request, row.organization_id, self.value_of)

    def members_view(self, request: HttpRequest, object_id: str) -> JsonResponse:
        row = self.require_row(request, object_id)
        return search_members(request, row.organization_id)

    def require_row(self, request: HttpRequest, object_id: str) -> Any:
        """Returns the row that the operator may change."""
        if not self.has_change_permission(request):
            raise PermissionDenied
        row = self.get_object(request, object_id)
        if row is None:
            raise Http404
        return row


def make_keys_field() -> NamesField:
    """Returns a field whose values are the hashes of keys."""
    return NamesField(placeholder="All keys", find_labels=find_key_labels)


def make_members_field() -> NamesField:
    """Returns a field whose values are the ids of members."""
    return NamesField(placeholder="All members", find_labels=find_member_labels)


def point_pickers(form: Any, **nouns: str) -> None:
    """Sets where the pickers of a form search: ``nouns`` maps its fields to ``keys``, ``members``.

    A form for a new row has no pickers. Labels and help texts are those of the model.
    """
    meta = form.instance._meta
    for name, noun in nouns.items():
        field = form.fields.get(name)
        if field is None:
            continue
        if form.instance._state.adding:
            # Nobody knows the organization yet.
            del form.fields[name]
            continue
        column = meta.get_field(name)
        labels = getattr(form.Meta, "labels", None) or {}
        field.label = labels.get(name, capfirst(column.verbose_name))
        field.help_text = column.help_text
        url = reverse(f"admin:{meta.app_label}_{meta.model_name}_{noun}", args=[form.instance.pk])
        find_labels = find_key_labels if noun == "keys" else find_member_labels
        field.widget.point_to(url, find_labels)


def find_key_labels(hashes: list[str]) -> Labels:
    """Returns the names of keys by their hashes."""
    return {key.digest: label_key(key) for key in ApiKey.objects.filter(digest__in=hashes)}


def find_member_labels(texts: list[str]) -> Labels:
    """Returns the names of members by their ids."""
    ids = [each for each in map(parse_uuid, texts) if each is not None]
    return {str(member.pk): label_member(member) for member in Member.objects.filter(pk__in=ids)}
