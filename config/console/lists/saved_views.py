"""Saved views above a list: opened by those who may see them, and changed by their operator alone.

A view is a name for parameters of the list's own address, so it shows what its reader may see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.views.main import ERROR_FLAG
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import reverse
from django.views.decorators.http import require_POST

from config.api.errors import GatewayError
from config.api.text import CONTROL_CHARACTERS
from config.console.lists.models import MOST_QUERY, SavedView
from config.console.lists.pages import AFTER, BEFORE, VIEW

WHOLE: Final = "all"
"""The value of ``view`` for the list without a view."""
# The parameters of an address that are no part of a view.
_PASSING: Final = (AFTER, BEFORE, VIEW, ERROR_FLAG, "p", "_popup", "_to_field")


@dataclass(frozen=True, slots=True)
class ViewBar:
    """The views of a list, the one that was asked for, and the filters that can be saved.

    ``views`` are the operator's own, and ``shared`` those that other operators share.
    """

    page: str
    views: Sequence[SavedView]
    shared: Sequence[SavedView]
    asked: SavedView | None
    query: str

    @property
    def present(self) -> SavedView | None:
        """The view that is open; none if its filters were changed since."""
        if self.asked is None or _read(self.asked.query) != _read(self.query):
            return None
        return self.asked

    @property
    def own(self) -> SavedView | None:
        """The view that is open, if the operator may change it."""
        return self.present if self.present in self.views else None

    @property
    def is_whole(self) -> bool:
        """Whether the list is open without a view, filters and search."""
        return not self.query and self.present is None

    @property
    def links(self) -> list[tuple[SavedView, str, bool]]:
        """Each view with the address that opens it, and whether it is open."""
        return [(view, address_of(view), view is self.present) for view in self.views]

    @property
    def shared_links(self) -> list[tuple[SavedView, str, bool]]:
        """The same of each view that another operator shares."""
        return [(view, address_of(view), view is self.present) for view in self.shared]


def build_view_bar(request: HttpRequest, page: str) -> ViewBar:
    """Returns the views of a list that the operator may open; one query."""
    own = SavedView.objects.filter(operator_id=request.user.pk, page=page)
    found = list(
        (own | SavedView.objects.shared(page)).select_related("operator").order_by("name", "pk")
    )
    key = request.GET.get(VIEW, "")
    asked = next((view for view in found if str(view.pk) == key), None)
    mine = [view for view in found if view.operator_id == request.user.pk]
    others = [view for view in found if view.operator_id != request.user.pk]
    return ViewBar(page, mine, others, asked, clean_query(request.GET))


def _read(query: str) -> dict[str, list[str]]:
    return dict(QueryDict(query).lists())


def clean_query(given: QueryDict) -> str:
    """Returns the filters, the search and the order of an address, without its position."""
    kept = given.copy()
    for name in _PASSING:
        kept.pop(name, None)
    for name in [name for name, values in kept.lists() if not any(values)]:
        del kept[name]
    return kept.urlencode()


def address_of(view: SavedView) -> str:
    """Returns the parameters of the address that opens a view."""
    return f"?{view.query}&{VIEW}={view.pk}" if view.query else f"?{VIEW}={view.pk}"


def find_default(request: HttpRequest, bar: ViewBar) -> SavedView | None:
    """Returns the default view, if an operator comes to the list from another page."""
    came_from = urlsplit(request.headers.get("Referer", "")).path
    if request.GET or came_from == request.path:
        return None
    return next((view for view in bar.views if view.is_default), None)


def refuse_view(request: HttpRequest, view: SavedView) -> HttpResponse:
    """Says that a view names a filter that the list does not take, and shows the whole list."""
    advice = "Choose the filters again and save them under its name, or delete it."
    if view.operator_id != request.user.pk:
        advice = f"Ask {view.operator.get_username()}, who shares it, or choose your own filters."
    messages.warning(
        request,
        f'The view "{view.name}" has a filter that this list does not take any more. {advice}',
    )
    return HttpResponseRedirect(f"{request.path}?{VIEW}={WHOLE}")


class ViewForm(forms.Form):
    """What an operator does with a view: ``save`` a new one, or change the one with an ``id``."""

    page = forms.CharField(max_length=100)
    do = forms.ChoiceField(
        choices=[
            (each, each)
            for each in ("save", "rename", "delete", "default", "undefault", "share", "unshare")
        ]
    )
    id = forms.IntegerField(required=False, min_value=1, max_value=2**63 - 1)
    name = forms.CharField(required=False, max_length=60)
    query = forms.CharField(required=False, max_length=MOST_QUERY)

    def clean_name(self) -> str:
        name = " ".join(self.cleaned_data["name"].split())
        if CONTROL_CHARACTERS.search(name):
            raise forms.ValidationError("The name must not contain control characters.")
        return name

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        is_named = cleaned.get("do") not in ("save", "rename") or cleaned.get("name")
        if not is_named and "name" not in self.errors:
            self.add_error("name", "Give the view a name.")
        return cleaned


@require_POST
def change_views(request: HttpRequest) -> HttpResponse:
    """Changes a view of the operator, or saves a new one, and returns to it.

    A view of somebody else does not exist here, even if it is shared.
    """
    form = ViewForm(request.POST)
    form.is_valid()
    page = _find_page(request, form.cleaned_data.get("page", ""))
    path = reverse(f"admin:{page.replace('.', '_')}_changelist")
    if form.errors:
        text = " ".join(str(error) for errors in form.errors.values() for error in errors)
        messages.error(request, f"{text} Nothing was changed.")
        query = clean_query(QueryDict(request.POST.get("query", "")[:MOST_QUERY]))
        return HttpResponseRedirect(f"{path}?{query or f'{VIEW}={WHOLE}'}")
    given = form.cleaned_data
    view = None if given["do"] == "save" else _find_view(request, page, given["id"])
    try:
        found = _change(request, page, view, given)
    except GatewayError as exc:
        messages.error(request, exc.message)
        found = view
    target = f"?{VIEW}={WHOLE}" if found is None else address_of(found)
    return HttpResponseRedirect(f"{path}{target}")


def _find_page(request: HttpRequest, label: str) -> str:
    """Returns the label of a list that the operator may see."""
    for model, page in admin.site._registry.items():
        if model._meta.label_lower == label:
            if not page.has_view_or_change_permission(request):
                raise PermissionDenied
            return label
    raise Http404


def _find_view(request: HttpRequest, page: str, key: int | None) -> SavedView:
    found = SavedView.objects.filter(operator_id=request.user.pk, page=page, pk=key or 0).first()
    if found is None:
        raise Http404
    return found


def _change(
    request: HttpRequest, page: str, view: SavedView | None, given: dict[str, Any]
) -> SavedView | None:
    """Does what is asked, says so, and returns the view that is open then."""
    if view is None:
        view = SavedView.objects.save_view(
            operator_id=request.user.pk,
            page=page,
            name=given["name"],
            query=clean_query(QueryDict(given["query"])),
        )
        text = f'The view "{view.name}" is saved.'
    elif given["do"] == "rename":
        view.rename(given["name"])
        text = f'The view is now "{view.name}".'
    elif given["do"] == "default":
        view.make_default()
        text = f'The list opens with the view "{view.name}".'
    elif given["do"] == "undefault":
        view.unmake_default()
        text = "The list opens without a view."
    elif given["do"] == "share":
        view.share()
        text = f'All operators who may see this list now see the view "{view.name}".'
    elif given["do"] == "unshare":
        view.unshare()
        text = f'Only you see the view "{view.name}" now.'
    else:
        view.delete()
        messages.success(request, f'The view "{view.name}" is deleted.')
        return None
    messages.success(request, text)
    return view
