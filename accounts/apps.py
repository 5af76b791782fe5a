import re
from typing import ClassVar

from config.apps import (
    INTERNAL,
    NAME,
    SLUG,
    Audience,
    CausewayApp,
    Finder,
    ModelDeclaration,
    Role,
    Section,
    Tab,
)


class AccountsConfig(CausewayApp):
    default = True
    name = "accounts"
    verbose_name = "Accounts"
    section = Section("Customers", position=1)
    tenant = "accounts.organization"
    collectors = ("accounts.cells.metrics.CellCollector",)
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
        "byokcredential": ModelDeclaration(
            "encrypted", title_columns=("name", "label"), tab=Tab("Credentials", 4)
        ),
        "guardrail": ModelDeclaration(
            "policy",
            permissions={Role.SUPPORT: ("add", "change", "delete")},
            tab=Tab("Guardrails", 5),
            finders=(NAME,),
        ),
        "keyassignment": ModelDeclaration(),
        "preset": ModelDeclaration(
            "tune",
            permissions={Role.SUPPORT: ("add", "change", "delete")},
            title_columns=("name", "slug"),
            tab=Tab("Presets", 6),
            finders=(NAME, SLUG),
        ),
        "presetversion": ModelDeclaration(title_columns=("version",)),
        "ratelimit": INTERNAL,
        "cell": ModelDeclaration("hub", Audience.ADMINISTRATORS, is_shared=True),
        "cellbeat": ModelDeclaration(
            audience=Audience.NOBODY, is_shared=True, shared_rows="cell = 'home'"
        ),
        "cellidentity": INTERNAL,
        "directoryentry": ModelDeclaration("travel_explore"),
        "memberassignment": ModelDeclaration(),
    }
