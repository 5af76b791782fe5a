"""Groups the console's pages into the sections of its sidebar and first page."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.text import slugify

from config.apps import declaring_apps


def build_sidebar(request: HttpRequest) -> list[dict[str, Any]]:
    """Returns the sections of the sidebar, with the pages that the operator may see."""
    return [
        {
            "title": title,
            "separator": True,
            "items": [
                {"title": model["name"], "icon": icon, "link": model["admin_url"]}
                for model, icon in entries
            ],
        }
        for title, entries in _sections(request)
    ]


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
