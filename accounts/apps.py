from typing import ClassVar

from config.apps import INTERNAL, Audience, CausewayApp, ModelDeclaration, Role, Section, Tab


class AccountsConfig(CausewayApp):
    default = True
    name = "accounts"
    verbose_name = "Accounts"
    section = Section("Customers", position=1)
    tenant = "accounts.organization"
    collectors = ("accounts.cells.metrics.CellCollector",)
    models_declared: ClassVar = {
        "organization": ModelDeclaration("domain", title_columns=("name", "slug")),
        "workspace": ModelDeclaration(
            "workspaces",
            permissions={Role.SUPPORT: ("add", "change")},
            title_columns=("name", "slug"),
            tab=Tab("Workspaces", 3),
        ),
        "workspacebudget": ModelDeclaration(),
        "workspacemember": INTERNAL,
        "member": ModelDeclaration(
            "person",
            permissions={Role.SUPPORT: ("add", "change")},
            title_columns=("email",),
            tab=Tab("Members", 2),
        ),
        # Support adds no keys: a key spends the organization's credits.
        "apikey": ModelDeclaration(
            "key",
            permissions={Role.SUPPORT: ("change",)},
            title_columns=("name", "label"),
            tab=Tab("API keys", 1),
        ),
        "keydigest": INTERNAL,
        "byokcredential": ModelDeclaration(
            "encrypted", title_columns=("name", "label"), tab=Tab("Credentials", 4)
        ),
        "guardrail": ModelDeclaration(
            "policy",
            permissions={Role.SUPPORT: ("add", "change", "delete")},
            tab=Tab("Guardrails", 5),
        ),
        "keyassignment": ModelDeclaration(),
        "preset": ModelDeclaration(
            "tune",
            permissions={Role.SUPPORT: ("add", "change", "delete")},
            title_columns=("name", "slug"),
            tab=Tab("Presets", 6),
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
