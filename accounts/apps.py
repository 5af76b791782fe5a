import re
from typing import ClassVar

from config.apps import (
    INTERNAL,
    NAME,
    SLUG,
    CausewayApp,
    Finder,
    MenuEntry,
    MenuPage,
    ModelDeclaration,
    Role,
    Tab,
)
from config.events.kinds import EventKind


class AccountsConfig(CausewayApp):
    default = True
    name = "accounts"
    verbose_name = "Accounts"
    menu = (
        MenuEntry(
            "Organizations", "domain", 1, (MenuPage("Organizations", "accounts.organization"),)
        ),
        MenuEntry("Keys", "key", 2, (MenuPage("Keys", "accounts.apikey"),)),
        MenuEntry(
            "Alerts",
            "campaign",
            9,
            (
                MenuPage("Webhooks", "accounts.subscription"),
                MenuPage("Deliveries", "accounts.delivery"),
                MenuPage("Destinations", "accounts.broadcastdestination"),
            ),
        ),
    )
    tenant = "accounts.organization"
    events: ClassVar = (
        EventKind(
            "key.created",
            "An API key is created.",
            "The API key {name} ({label}) was created.",
            {
                "hash": "5d41402abc4b2a76b9719d911017c5925d41402abc4b2a76b9719d911017c592",
                "name": "Production",
                "label": "sk-cw-7f3a1Kd…9aQ",
                "is_management": False,
            },
        ),
        EventKind(
            "key.revoked",
            "An API key is revoked.",
            "The API key {name} ({label}) was revoked.",
            {
                "hash": "5d41402abc4b2a76b9719d911017c5925d41402abc4b2a76b9719d911017c592",
                "name": "Production",
                "label": "sk-cw-7f3a1Kd…9aQ",
                "is_management": False,
            },
        ),
        EventKind(
            "key.rotated",
            "An API key is rotated.",
            "The API key {name} was rotated; it is {label} now.",
            {
                "hash": "5d41402abc4b2a76b9719d911017c5925d41402abc4b2a76b9719d911017c592",
                "name": "Production",
                "label": "sk-cw-7f3a1Kd…9aQ",
                "is_management": False,
            },
        ),
        EventKind(
            "webhook.disabled",
            "A receiver is disabled: it answered 410 Gone, or failed for five days.",
            "The webhook {receiver} was disabled: {reason}",
            {
                "id": "0192f0c1-8f6e-4b1e-9f43-3a1d0e9b7a13",
                "receiver": "https://hooks.example.com/causeway",
                "reason": "The receiver answered 410 Gone.",
            },
        ),
        EventKind(
            "webhook.test",
            "Somebody asks for a test of a subscription.",
            "This is a test of the subscription {id}.",
            {"id": "0192f0c1-8f6e-4b1e-9f43-3a1d0e9b7a13"},
            direct=True,
        ),
        EventKind(
            "events.held_back",
            "More events came within an hour than a receiver gets.",
            "{count} events were held back, because there were too many within an hour.",
            {
                "count": 31,
                "kinds": {"key.created": 30, "key.revoked": 1},
                "organization_id": "0192f0c1-8f6e-4b1e-9f43-3a1d0e9b7a14",
                "since": "2026-11-23T15:00:00Z",
            },
            direct=True,
        ),
    )
    outbound = ("accounts.webhooks.delivering.event_source",)
    collectors = ("accounts.webhooks.metrics.DeliveryCollector",)
    models_declared: ClassVar = {
        "organization": ModelDeclaration(
            "domain", title_columns=("name", "slug"), finders=(NAME, SLUG)
        ),
        "workspace": ModelDeclaration(
            "workspaces",
            permissions={Role.SUPPORT: ("add", "change")},
            title_columns=("name", "slug"),
            tab=Tab("Workspaces", 3),
            finders=(NAME, SLUG),
        ),
        "workspacebudget": ModelDeclaration(),
        "workspacemember": INTERNAL,
        "member": ModelDeclaration(
            "person",
            permissions={Role.SUPPORT: ("add", "change")},
            title_columns=("email",),
            tab=Tab("Members", 2),
            finders=(Finder("email__istartswith"),),
        ),
        # Support adds no keys: a key spends the organization's credits.
        "apikey": ModelDeclaration(
            "key",
            permissions={Role.SUPPORT: ("change",)},
            title_columns=("name", "label"),
            tab=Tab("API keys", 1),
            finders=(
                NAME,
                Finder("label", re.compile(r"[sm]k-cw-\S+…\S+")),
                Finder("digest", re.compile("[0-9a-f]{64}")),
            ),
        ),
        "keydigest": INTERNAL,
        "creation": INTERNAL,
        "credentialrest": INTERNAL,
        "byokcredential": ModelDeclaration(
            "encrypted", title_columns=("name", "label"), tab=Tab("Credentials", 9)
        ),
        "guardrail": ModelDeclaration(
            "policy",
            permissions={Role.SUPPORT: ("add", "change", "delete")},
            tab=Tab("Guardrails", 6),
            finders=(NAME,),
        ),
        "guardrailshadow": ModelDeclaration(),
        "keyassignment": ModelDeclaration(),
        "preset": ModelDeclaration(
            "tune",
            permissions={Role.SUPPORT: ("add", "change", "delete")},
            title_columns=("name", "slug"),
            tab=Tab("Presets", 10),
            finders=(NAME, SLUG),
        ),
        # A destination receives what an organization spends, so support adds and changes none.
        "broadcastdestination": ModelDeclaration(
            "cell_tower", tab=Tab("Destinations", 14), finders=(NAME,)
        ),
        "broadcastprogress": INTERNAL,
        "broadcastwait": INTERNAL,
        "presetversion": ModelDeclaration(title_columns=("version",)),
        "ratelimit": INTERNAL,
        "manualsends": INTERNAL,
        "memberassignment": ModelDeclaration(),
        # Adding a receiver shows its secret and chooses its host, so Support may not do it.
        "subscription": ModelDeclaration(
            "campaign",
            permissions={Role.SUPPORT: ("change", "delete")},
            title_columns=("name", "url", "email"),
            words=("webhooks", "mail"),
            tab=Tab("Webhooks", 16),
        ),
        "delivery": ModelDeclaration(
            "outgoing_mail",
            title_columns=("id",),
            words=("webhooks", "logs"),
            tab=Tab("Deliveries", 17),
        ),
    }
