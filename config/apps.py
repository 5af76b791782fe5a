"""Declarations of the apps, which the project package collects at start.

The project package imports no app. Instead, an app's ``apps.py`` subclasses :class:`CausewayApp`
and declares its entries of the menu, the permissions and icon of each model, and its metrics.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import cache
from typing import Any, ClassVar, Final

from django.apps import AppConfig, apps
from django.db.models import Q

from config.events.kinds import EventKind

VERBS: Final = ("add", "change", "delete")
"""Django's permissions for a model beyond ``view``."""


class Role(StrEnum):
    """The groups of operators that ``migrate`` creates."""

    READ_ONLY = "Read-only"
    SUPPORT = "Support"
    FINANCE = "Finance"
    ADMINISTRATOR = "Administrator"


class Audience(Enum):
    """The operators who may view the rows of a model in the console."""

    OPERATORS = "operators"
    ADMINISTRATORS = "administrators"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class MenuEntry:
    """An entry of the console's menu. It leads to its first page, and its pages are tabs there.

    Entries of several apps with one title are one entry; its pages are in the order of the apps.
    """

    title: str
    icon: str
    position: int
    pages: tuple[MenuPage, ...]


@dataclass(frozen=True, slots=True)
class MenuPage:
    """The list of a model, by its full label, or another page, by the name of its route.

    ``permission`` is that of the operators who may see a page that is no list.
    """

    title: str
    target: str
    permission: str = ""


@dataclass(frozen=True, slots=True)
class Tab:
    """A tab of a tenant's page: the list of a model, narrowed to the tenant by ``lookup``."""

    title: str
    position: int
    lookup: str = "organization__id__exact"


@dataclass(frozen=True, slots=True)
class Finder:
    """A condition by which the console's search finds rows of a model; an index must serve it.

    ``lookup`` is a lookup of Django, ``pattern`` what a term must look like as a whole, and
    ``value`` what is looked up, in which ``{}`` stands for the term.
    """

    lookup: str
    pattern: re.Pattern[str] = re.compile(r".{2,}")
    value: str = "{}"

    def condition(self, term: str) -> Q | None:
        """Returns the condition of a term, or ``None`` if it cannot name a row."""
        if self.pattern.fullmatch(term) is None:
            return None
        return Q((self.lookup, self.value.format(term)))


NAME: Final = Finder("name__istartswith")
SLUG: Final = Finder("slug__startswith", re.compile(r"[a-z0-9./:_-]{2,}"))
_HOST: Final = re.compile(r"[a-z0-9-]+(?:\.[a-z0-9-]+)*(?::\d+)?")
HOST: Final = Finder("base_url__startswith", _HOST, "https://{}")
TRANSACTION: Final = Finder("tx_hash", re.compile(r"0x[0-9a-f]{64}"))
"""The finders of several models: the beginnings of a name, a slug and a host, and a whole hash."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Rows of a model that wait for an operator who has a permission.

    ``where`` are lookups of Django, which an index or a small table must serve. ``query`` are the
    parameters of the list that shows the same rows. ``proposer`` is the column with the name of the
    operator who asked for something, and who may not decide it. ``needs`` is the column with the
    permission that the decision of a row needs besides.
    """

    title: str
    permission: str
    where: Mapping[str, Any]
    query: Mapping[str, str]
    proposer: str = ""
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Alert:
    """What is wrong now, for operators with a permission: a sentence, and where to look."""

    text: str
    permission: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class ModelDeclaration:
    """The icon, the viewers and the permissions of a model in the console.

    ``icon`` is the Material symbol of what the search finds. ``permissions`` are the
    verbs that a role has beyond viewing; an administrator has every verb. ``title_columns`` are
    the columns whose values name a row in the audit log. ``title`` replaces the plural name of the
    model of an installed package. ``words`` are others by which people look for the list. ``tab``
    shows the model's list on the page of a
    tenant. ``finders`` find a row in the search over everything, which finds a UUID by itself.
    ``waiting`` are the rows that the first page shows as waiting for an operator.
    """

    icon: str = "database"
    audience: Audience = Audience.OPERATORS
    permissions: Mapping[Role, tuple[str, ...]] = field(default_factory=dict)
    title_columns: tuple[str, ...] = ("name",)
    title: str = ""
    words: tuple[str, ...] = ()
    tab: Tab | None = None
    finders: tuple[Finder, ...] = ()
    waiting: tuple[Waiting, ...] = ()

    def verbs_of(self, role: Role) -> tuple[str, ...]:
        """Returns the permissions of a role, ``view`` first."""
        if self.audience is Audience.NOBODY:
            return ()
        if role is Role.ADMINISTRATOR:
            return ("view", *VERBS)
        if self.audience is Audience.ADMINISTRATORS:
            return ()
        return ("view", *self.permissions.get(role, ()))


INTERNAL: Final = ModelDeclaration(audience=Audience.NOBODY)
"""Declares a model without a page, such as a counter or a link between two models."""


class CausewayApp(AppConfig):
    """The configuration of an app with its declarations.

    A key of ``models_declared`` is the name of a model of the app, or the full label of a model of
    an installed package. ``collectors`` are dotted paths of Prometheus collectors. ``tenant`` is
    the full label of the model whose rows own the rows of other models, such as
    ``accounts.organization``; only one app declares it. ``menu`` are the entries of the console's
    menu that lead to pages of the app. ``alerts`` are dotted paths of
    functions that yield each :class:`Alert` for the first page. ``events`` are the kinds of events
    that the app records. ``outbound`` are dotted paths of the sources of what is sent to receivers.
    """

    models_declared: ClassVar[Mapping[str, ModelDeclaration]] = {}
    collectors: ClassVar[tuple[str, ...]] = ()
    tenant: ClassVar[str] = ""
    menu: ClassVar[tuple[MenuEntry, ...]] = ()
    alerts: ClassVar[tuple[str, ...]] = ()
    events: ClassVar[tuple[EventKind, ...]] = ()
    outbound: ClassVar[tuple[str, ...]] = ()

    def declarations(self) -> Iterator[tuple[str, ModelDeclaration]]:
        """Yields the full label and the declaration of each declared model."""
        for name, declaration in self.models_declared.items():
            yield (name if "." in name else f"{self.label}.{name}"), declaration


class FloorConfig(CausewayApp):
    """Declares the tables of the project package and of the packages that it installs."""

    name = "config"
    verbose_name = "Causeway"
    menu = (
        MenuEntry(
            "Operators",
            "badge",
            10,
            (
                MenuPage("Operators", "auth.user"),
                MenuPage("Roles", "auth.group"),
                MenuPage("Sign-ins", "config.signinlimit"),
                MenuPage("Second factors", "otp_totp.totpdevice"),
                MenuPage("Change sets", "config.changeset"),
                MenuPage("Change rules", "config.changerule"),
                MenuPage("Audit", "config.auditentry"),
            ),
        ),
        MenuEntry(
            "System",
            "dns",
            11,
            (
                MenuPage("Events", "config.event"),
                MenuPage("Partitions", "config.departure"),
                MenuPage("Leases", "config.lease"),
            ),
        ),
    )
    collectors = (
        "config.clocks.duties.DutyCollector",
        "config.partitions.metrics.PartitionCollector",
    )
    alerts = ("config.clocks.duties.find_late", "config.partitions.metrics.find_missing")
    events: ClassVar = (
        EventKind(
            "change.waiting",
            "A change set needs the approval of another operator.",
            "Change set {number} of {proposed_by} waits for another operator: {subject}.",
            {
                "number": 12,
                "subject": "endpoint Falcon at Acme AI",
                "proposed_by": "operator ann",
                "reason": "The provider has a new price list.",
            },
            for_operators=True,
        ),
    )
    models_declared: ClassVar = {
        "auth.user": ModelDeclaration(
            "badge",
            Audience.ADMINISTRATORS,
            title_columns=("username", "email"),
            finders=(Finder("username__istartswith"), Finder("email__istartswith")),
        ),
        "auth.group": ModelDeclaration("groups", Audience.ADMINISTRATORS),
        "otp_totp.totpdevice": ModelDeclaration(
            "phonelink_lock", Audience.ADMINISTRATORS, title="Second factors"
        ),
        "signinlimit": ModelDeclaration("lock_clock", Audience.ADMINISTRATORS),
        "auditentry": ModelDeclaration(
            "history", words=("logs",), tab=Tab("Audit", 15, "organization_id__exact")
        ),
        "departure": ModelDeclaration("inventory_2", words=("retention", "archives")),
        "event": ModelDeclaration("notifications", title_columns=("kind",)),
        "changeset": ModelDeclaration(
            "rule",
            permissions={Role.SUPPORT: ("change",), Role.FINANCE: ("change",)},
            title_columns=("subject",),
            waiting=(
                Waiting(
                    "Change sets to approve",
                    "config.change_changeset",
                    {"status": "proposed"},
                    {"status__exact": "proposed"},
                    proposer="proposed_by",
                    needs="needs",
                ),
            ),
        ),
        "changerule": ModelDeclaration(
            "group_add", Audience.ADMINISTRATORS, title_columns=("kind",)
        ),
        "lease": ModelDeclaration("schedule", words=("duties", "work")),
        "savedview": INTERNAL,
        "admin.logentry": INTERNAL,
        "auth.permission": INTERNAL,
        "auth.group_permissions": INTERNAL,
        "auth.user_groups": INTERNAL,
        "auth.user_user_permissions": INTERNAL,
        "contenttypes.contenttype": INTERNAL,
        "otp_static.staticdevice": INTERNAL,
        "otp_static.statictoken": INTERNAL,
        "sessions.session": INTERNAL,
    }


def declaring_apps() -> list[CausewayApp]:
    """Returns the installed apps with declarations, in the order of ``INSTALLED_APPS``."""
    return [app for app in apps.get_app_configs() if isinstance(app, CausewayApp)]


def declarations() -> dict[str, ModelDeclaration]:
    """Returns the declaration of every declared model by its full label."""
    return {label: found for app in declaring_apps() for label, found in app.declarations()}


@cache
def event_kinds() -> Mapping[str, EventKind]:
    """Returns the kinds of events of all apps by their names, in the order of the names."""
    kinds = sorted((kind for app in declaring_apps() for kind in app.events), key=lambda k: k.name)
    return {kind.name: kind for kind in kinds}


def tenant_label() -> str:
    """Returns the full label of the model whose rows own the rows of other models."""
    [label] = filter(None, (app.tenant for app in declaring_apps()))
    return label
