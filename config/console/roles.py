"""The roles that operators may have: groups of Django's, made by migrations.

Rights are named here as text, because the floor knows no application.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from django.apps import apps

READ_ONLY: Final = "Read-only"
SUPPORT: Final = "Support"
FINANCE: Final = "Finance"
ADMINISTRATOR: Final = "Administrator"

# What everybody may see: all that has a page, but for the operators themselves.
_SEEN: Final = (
    "accounts.organization", "accounts.workspace", "accounts.workspacebudget", "accounts.member",
    "accounts.apikey", "accounts.byokcredential", "accounts.guardrail", "accounts.keyassignment",
    "accounts.memberassignment", "endusers.enduser", "endpoints.privateendpoint",
    "endpoints.validation", "endpoints.attestation", "catalog.provider", "catalog.languagemodel",
    "catalog.modelendpoint", "catalog.priceversion", "inference.generation", "inference.feedback",
    "billing.account", "billing.transfer", "billing.grantrequest", "billing.topup",
    "billing.deposit", "billing.chainstate", "config.auditentry",
)  # fmt: skip
_OPERATORS: Final = ("auth.user", "auth.group", "otp_totp.totpdevice")
_VERBS: Final = ("add", "change", "delete")

ROLES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    READ_ONLY: {},
    # Customers' day-to-day: no secret, no price, no money, and no new key, which would be money.
    SUPPORT: {
        "accounts.workspace": ("add", "change"),
        "accounts.member": ("add", "change"),
        "accounts.apikey": ("change",),
        "accounts.guardrail": ("add", "change", "delete"),
        "endusers.enduser": ("add", "change"),
        "endpoints.privateendpoint": ("add", "change", "delete"),
    },
    FINANCE: {
        "billing.transfer": ("add",),
        "billing.deposit": ("change",),
        "billing.chainstate": ("change",),
        "catalog.modelendpoint": ("change",),
    },
    ADMINISTRATOR: {
        **dict.fromkeys(_SEEN, _VERBS),
        **dict.fromkeys(_OPERATORS, ("view", *_VERBS)),
    },
}


def rights_of(role: str) -> Iterator[tuple[str, str]]:
    """Yields the label of a model and a verb for everything that a role may do."""
    for label in _SEEN:
        yield label, "view"
    for label, verbs in ROLES[role].items():
        for verb in verbs:
            yield label, verb


def create_roles(registry: Any = apps) -> None:
    """Makes the roles, and gives them the rights that they lack; takes none away.

    Runs inside a migration, when Django has not stored the permissions of any model yet: they are
    stored here as Django would store them, which finds them then.
    """
    group_of = registry.get_model("auth", "Group")._default_manager
    permission_of = registry.get_model("auth", "Permission")._default_manager
    kind_of = registry.get_model("contenttypes", "ContentType")._default_manager
    for role in ROLES:
        group, _ = group_of.get_or_create(name=role)
        rights = []
        for label, verb in rights_of(role):
            app, model = label.split(".")
            kind, _ = kind_of.get_or_create(app_label=app, model=model)
            name = f"Can {verb} {apps.get_model(label)._meta.verbose_name_raw}"
            right, _ = permission_of.get_or_create(
                content_type=kind, codename=f"{verb}_{model}", defaults={"name": name}
            )
            rights.append(right)
        group.permissions.add(*rights)
