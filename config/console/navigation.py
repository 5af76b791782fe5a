"""Builds the console's menu, the tabs of its entries, and those of a tenant."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs, urlencode
from uuid import UUID

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.http import HttpRequest
from django.urls import reverse
from django.utils.text import slugify

from config.api.text import parse_uuid
from config.apps import MenuEntry, Tab, declarations, declaring_apps, tenant_label
from config.console.lists.waiting import read_badge

# The tabs of a tenant beside the one that unfolds the others.
_TABS: Final = 8


@dataclass(frozen=True, slots=True)
class MenuLink:
    """A page of the console that the operator may see, under an entry of the menu or under none.

    ``names`` are other words by which people look for it.
    """

    title: str
    link: str
    icon: str
    entry: str
    names: tuple[str, ...] = ()


def build_sidebar(request: HttpRequest) -> list[dict[str, Any]]:
    """Returns the menu: the first page, with what waits there, and each entry by its first page."""
    entries = _entries(request)
    if not (entries or _lists(request)):
        return []
    first = {
        "title": "Overview",
        "icon": "home",
        "link": reverse("admin:index"),
        "badge": read_badge(request),
        "badge_variant": "primary",
    }
    items = [
        {
            "title": entry.title,
            "icon": entry.icon,
            "link": pages[0].link,
            "active": partial(_is_below, tuple(page.link for page in pages)),
        }
        for entry, pages in entries
    ]
    return [{"title": "", "separator": False, "items": [first, *items]}]


def _is_below(links: tuple[str, ...], request: HttpRequest) -> bool:
    return request.path.startswith(links)


def _entries(request: HttpRequest) -> list[tuple[MenuEntry, list[MenuLink]]]:
    """Returns the entries of the menu, each with the pages that the operator may see."""
    lists = _lists(request)
    found: dict[str, tuple[MenuEntry, list[MenuLink]]] = {}
    declared = (entry for app in declaring_apps() for entry in app.menu)
    for entry in sorted(declared, key=lambda entry: entry.position):
        shown = found.setdefault(entry.title, (entry, []))[1]
        for page in entry.pages:
            if page.target in lists:
                listed = lists[page.target]
                shown.append(replace(listed, title=page.title, entry=entry.title))
            elif page.permission and request.user.has_perm(page.permission):
                shown.append(MenuLink(page.title, reverse(page.target), entry.icon, entry.title))
    return [(entry, pages) for entry, pages in found.values() if pages]


def _lists(request: HttpRequest) -> dict[str, MenuLink]:
    """Returns the lists that the operator may see, by the full label of their model."""
    kept: dict[str, MenuLink] | None = request.__dict__.get("console_lists")
    if kept is not None:
        return kept
    declared = declarations()
    labels = {
        model["model"]._meta.label_lower: model
        for application in admin.site.get_app_list(request)
        for model in application["models"]
        if model["admin_url"]
    }
    found: dict[str, MenuLink] = {}
    for label, model in labels.items():
        if label in declared:
            own = declared[label]
            title = own.title or str(model["name"])
            found[label] = MenuLink(title, model["admin_url"], own.icon, "", (title, *own.words))
    request.__dict__["console_lists"] = found
    return found


def list_pages(request: HttpRequest) -> list[MenuLink]:
    """Returns all pages of the menu, and the lists that no entry leads to."""
    entries = _entries(request)
    inside = [page for _, pages in entries for page in pages]
    known = {page.link for page in inside}
    return [*inside, *(page for page in _lists(request).values() if page.link not in known)]


def group_by_entry(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Replaces the list of applications in the first page's context with all pages."""
    groups: dict[str, list[MenuLink]] = {}
    for page in list_pages(request):
        groups.setdefault(page.entry or "More", []).append(page)
    return {
        **context,
        "title": "Overview",
        "app_list": [
            {
                "name": title,
                "app_label": slugify(title),
                "app_url": pages[0].link,
                "models": [{"name": page.title, "admin_url": page.link} for page in pages],
            }
            for title, pages in groups.items()
        ],
    }


@dataclass(frozen=True, slots=True)
class TabBar:
    """The bar of a tenant, or of an entry of the menu without a name.

    It has the title, the address and the state of each tab; ``more`` are those that are folded.
    """

    name: str
    tabs: list[tuple[str, str, bool]]
    more: list[tuple[str, str, bool]] = field(default_factory=list)


def find_tenant(request: HttpRequest, label: str) -> UUID | None:
    """Returns the tenant to which the list of a model is narrowed."""
    tab = _tab_of(label)
    return None if tab is None else parse_uuid(request.GET.get(tab.lookup, ""))


def find_preserved_tenant(request: HttpRequest, label: str) -> UUID | None:
    """Returns the tenant to which the list was narrowed from which an operator adds a row."""
    tab = _tab_of(label)
    preserved = parse_qs(request.GET.get("_changelist_filters", ""))
    return None if tab is None else parse_uuid(preserved.get(tab.lookup, [""])[0])


def build_bar(
    request: HttpRequest, tenant_id: Any, label: str, *, tenant: Any = None
) -> TabBar | None:
    """Returns the bar with the tabs that the operator may view; ``label`` is the present one.

    ``tenant`` is the tenant itself, if the caller has it.
    """
    model = apps.get_model(tenant_label())
    if not request.user.has_perm(f"{model._meta.app_label}.view_{model._meta.model_name}"):
        return None
    if tenant is None:
        tenant = model._default_manager.filter(pk=tenant_id).first()
    return None if tenant is None else bar_of(request, tenant, label)


def bar_of(request: HttpRequest, tenant: Any, label: str) -> TabBar:
    """Returns the bar of a tenant."""
    own = tenant._meta
    page = reverse(f"admin:{own.app_label}_{own.model_name}_change", args=[quote(str(tenant.pk))])
    tabs = [("Overview", page, label == own.label_lower)]
    found = [
        (declaration.tab, other)
        for other, declaration in declarations().items()
        if declaration.tab is not None and apps.get_model(other) in admin.site._registry
    ]
    for tab, other in sorted(found, key=lambda each: each[0].position):
        app, name = other.split(".")
        if request.user.has_perm(f"{app}.view_{name}"):
            query = urlencode({tab.lookup: str(tenant.pk)})
            url = f"{reverse(f'admin:{app}_{name}_changelist')}?{query}"
            tabs.append((tab.title, url, label == other))
    return TabBar(str(tenant), tabs[:_TABS], tabs[_TABS:])


def build_menu_bar(request: HttpRequest) -> TabBar | None:
    """Returns the bar of the entry to which the page of a request belongs; none for a single page.

    The longest address counts: some pages lie below the list of their model.
    """
    for _, pages in _entries(request):
        links = [page.link for page in pages if request.path.startswith(page.link)]
        if links and len(pages) > 1:
            present = max(links, key=len)
            return TabBar("", [(page.title, page.link, page.link == present) for page in pages])
    return None


def _tab_of(label: str) -> Tab | None:
    declaration = declarations().get(label)
    return None if declaration is None else declaration.tab
