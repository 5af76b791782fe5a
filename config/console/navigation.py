"""Groups the console's pages into the sections of its sidebar and first page."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import admin
from django.http import HttpRequest
from django.utils.text import slugify

SECTIONS: Final[tuple[tuple[str, dict[str, str]], ...]] = (
    (
        "Customers",
        {
            "accounts.organization": "domain",
            "accounts.workspace": "workspaces",
            "accounts.member": "person",
            "accounts.apikey": "key",
            "accounts.byokcredential": "encrypted",
            "accounts.guardrail": "policy",
            "endusers.enduser": "group",
        },
    ),
    (
        "Endpoints",
        {"endpoints.privateendpoint": "dns", "endpoints.validation": "fact_check"},
    ),
    (
        "Catalogue",
        {
            "catalog.provider": "cloud",
            "catalog.languagemodel": "neurology",
            "catalog.modelendpoint": "hub",
            "catalog.priceversion": "sell",
        },
    ),
    ("Traffic", {"inference.generation": "bolt", "inference.feedback": "feedback"}),
    (
        "Money",
        {
            "billing.account": "account_balance",
            "billing.transfer": "receipt_long",
            "billing.grantrequest": "approval_delegation",
            "billing.topup": "add_card",
            "billing.deposit": "savings",
            "billing.chainstate": "link",
        },
    ),
    (
        "Operators",
        {
            "auth.user": "badge",
            "auth.group": "groups",
            "otp_totp.totpdevice": "phonelink_lock",
            "config.auditentry": "history",
        },
    ),
)


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
    left = {
        model["model"]._meta.label_lower: model
        for application in admin.site.get_app_list(request)
        for model in application["models"]
        if model["admin_url"]
    }
    sections = [
        (title, [(left.pop(label), icon) for label, icon in entries.items() if label in left])
        for title, entries in SECTIONS
    ]
    sections.append(("Other", [(model, "database") for model in left.values()]))
    return [(title, entries) for title, entries in sections if entries]
