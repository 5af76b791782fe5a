"""Groups the console's pages into the sections of its sidebar and first page."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlencode
from uuid import UUID

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.http import HttpRequest
from django.urls import reverse
from django.utils.text import slugify

from config.api.text import parse_uuid
from config.apps import Tab, declarations, declaring_apps, tenant_label
from config.console.lists.waiting import read_badge


def build_sidebar(request: HttpRequest) -> list[dict[str, Any]]:
    """Returns the sections of the sidebar, with the pages that the operator may see.

    The first one leads to the first page, and says how much waits there for the operator.
    """
    sections = [
        {
            "title": title,
            "separator": True,
            "items": [
                *_list_pages(request, title),
                *(
                    {
                        "title": model["name"],
                        "icon": icon,
                        "link": model["admin_url"],
                        "active": partial(_is_of_list, model["admin_url"]),
                    }
                    for model, icon in entries
                ),
            ],
        }
        for title, entries in _sections(request)
    ]
    if not sections:
        return []
    first = {
        "title": "Overview",
        "icon": "home",
        "link": reverse("admin:index"),
        "badge": read_badge(request),
        "badge_variant": "primary",
    }
    return [{"title": "", "separator": False, "items": [first]}, *sections]


def _list_pages(request: HttpRequest, section: str) -> list[dict[str, Any]]:
    """Returns the pages of a section that are no lists, as far as the operator may see them."""
    return [
        {
            "title": page.title,
            "icon": page.icon,
            "link": reverse(page.name),
            "active": partial(_is_page, reverse(page.name)),
        }
        for app in declaring_apps()
        if app.section.title == section
        for page in app.pages
        if request.user.has_perm(page.permission)
    ]


def _is_page(link: str, request: HttpRequest) -> bool:
    return request.path == link


def _is_of_list(link: str, request: HttpRequest) -> bool:
    """Returns whether a request is for a list or for a page below it that has no own entry."""
    own = (reverse(page.name) for app in declaring_apps() for page in app.pages)
    return request.path.startswith(link) and request.path not in own


def group_by_section(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Replaces the list of applications in the first page's context with the sections."""
    return {
        **context,
        "title": "Overview",
        "app_list": [
            {
                "name": title,
                "app_label": slugify(title),
                "app_url": entries[0][0]["admin_url"],
                "models": [model for model, _ in entries],
            }
            for title, entries in _sections(request)
        ],
    }


def _sections(request: HttpRequest) -> list[tuple[str, list[tuple[dict[str, Any], str]]]]:
    """Returns the sections in their order, each with the pages and icons that it shows."""
    pages = {
        model["model"]._meta.label_lower: model
        for application in admin.site.get_app_list(request)
        for model in application["models"]
        if model["admin_url"]
    }
    sections: dict[str, list[tuple[dict[str, Any], str]]] = {}
    for app in sorted(declaring_apps(), key=lambda app: app.section.position):
        shown = sections.setdefault(app.section.title, [])
        shown += [
            (
                {**pages[label], "name": declaration.title or pages[label]["name"]},
                declaration.icon,
            )
            for label, declaration in app.declarations()
            if label in pages
        ]
    return [(title, entries) for title, entries in sections.items() if entries]


@dataclass(frozen=True, slots=True)
class TabBar:
    """The bar of one tenant: its name, and the title, address and state of each tab."""

    name: str
    tabs: list[tuple[str, str, bool]]


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
    return TabBar(str(tenant), tabs)


def _tab_of(label: str) -> Tab | None:
    declaration = declarations().get(label)
    return None if declaration is None else declaration.tab
