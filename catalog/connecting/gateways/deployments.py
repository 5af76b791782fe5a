"""What a gateway's file says: deployments of models, aliases, and what is left out; pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from config.api.text import CONTROL_CHARACTERS
from config.credentials import NO_SECRET, NotACredential, Secret, parse_credential

# Servers of one's own are given these where they want no key.
_NO_KEYS: Final = frozenset(
    ("", "none", "null", "empty", "na", "n/a", "no-key", "not-needed", "dummy", "fake", "fake-key")
)
# What a template of a file has where its key will be.
_PLACEHOLDER: Final = re.compile(r"\$\w+|\$\{.*\}|\{\{.*\}\}|<.*>")
_MOST_MODELS: Final = 10_000
_MOST_SHOWN: Final = 300
_LONGEST_ID: Final = 255
_DATED: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:-preview)?")
# The reason why weights and priorities become nothing in the catalogue.
SHARED: Final = "endpoints are shared by price and health, see docs/routing.md"
_MOST_SHARE: Final = 1_000


class NotTaken(Exception):
    """An entry has no counterpart; the message says why, and shows no secret."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A part of a file that becomes nothing: the line of its entry, its name, and the reason."""

    line: int
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model at a server, as a file describes it.

    ``family`` is the bundle's provider; empty for a server of one's own. ``secret`` is ``None``
    where the file and the environment name none. ``pricing`` and ``lines`` are as in a catalogue
    file, and ``None`` where the file states no price. ``routing`` has the priority and the weight
    of a private endpoint. ``hint`` is another name of the model, and ``missing`` says what a
    deployment without a key lacks.
    """

    line: int
    name: str
    family: str
    dialect: str
    base_url: str | None
    upstream_id: str
    secret: Secret | None
    output: str | None = None
    pricing: Mapping[str, Any] | None = None
    lines: tuple[Mapping[str, Any], ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    timeouts: Mapping[str, int] = field(default_factory=dict)
    routing: Mapping[str, int] = field(default_factory=dict)
    context_length: int | None = None
    max_completion_tokens: int | None = None
    hint: str = ""
    missing: str = "the file has no key"

    @property
    def key(self) -> Secret | None:
        """Returns the secret unless the server needs none."""
        return None if self.secret == NO_SECRET else self.secret

    @property
    def has_terms(self) -> bool:
        """Returns whether the file states more than which model it is, and where."""
        lengths = self.context_length or self.max_completion_tokens
        return bool(self.pricing or self.timeouts or self.routing or lengths)


@dataclass(slots=True)
class GatewayFile:
    """The content of a file. ``aliases`` are other names of names, ``fallbacks`` their next ones.

    Both have the line of each name. ``wildcards`` are deployments whose name and model have a
    ``*``, which stands for all models that the catalogue has at the provider. ``shares`` are what
    the endpoints of an organization alone have.
    """

    deployments: list[Deployment] = field(default_factory=list)
    wildcards: list[Deployment] = field(default_factory=list)
    aliases: dict[str, tuple[int, str]] = field(default_factory=dict)
    fallbacks: dict[str, tuple[int, list[str]]] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    shares: list[LeftOut] = field(default_factory=list)

    def leave_out(self, line: int, name: str, reason: str, *, is_share: bool = False) -> None:
        listed = self.shares if is_share else self.left_out
        listed.append(LeftOut(line, _clean(name), _clean(reason)))

    def leave(self, deployment: Deployment, reason: object) -> None:
        """Leaves out a deployment, or a part of it."""
        self.leave_out(deployment.line, deployment.name, str(reason))

    def leave_members(self, line: int, name: str, members: Iterable[str], reason: str = "") -> None:
        """Leaves out members of an entry that is taken, by one row."""
        if texts := list(members):
            self.leave_out(line, name, f"{', '.join(texts)}: {reason or 'no counterpart'}")

    def add(self, deployment: Deployment) -> None:
        upstream_id = deployment.upstream_id
        if not 1 <= len(upstream_id) <= _LONGEST_ID or CONTROL_CHARACTERS.search(upstream_id):
            raise NotTaken("the model's name there must be plain, and of 1 to 255 characters")
        is_wild = "*" in deployment.upstream_id or "*" in deployment.name
        (self.wildcards if is_wild else self.deployments).append(deployment)
        if len(self.deployments) > _MOST_MODELS:
            raise NotTaken(f"the file has more than {_MOST_MODELS:,} models")


def read_share(value: Any, *, least: int = 1) -> int | None:
    """Returns a weight or a priority; ``None`` for one that a private endpoint cannot have."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and least <= value <= _MOST_SHARE else None


def read_secret(text: str | None, *, is_own_server: bool) -> Secret | None:
    """Returns the secret of a deployment; ``NO_SECRET`` for a server of one's own without one.

    Raises :class:`NotTaken` for a text that is none; the message does not repeat it.
    """
    bare = (text or "").strip()
    if bare.lower() in _NO_KEYS:
        return NO_SECRET if is_own_server else None
    if _PLACEHOLDER.fullmatch(bare):
        raise NotTaken("the key: a placeholder stands in its place, which nothing has replaced")
    try:
        return parse_credential(bare)
    except NotACredential as exc:
        raise NotTaken(f"the key: {exc}") from None


def read_version(text: str | None) -> str | None:
    """Returns the version of Azure's interface; ``None`` for one that is no date."""
    return text if text and _DATED.fullmatch(text) else None


def write_secret(**members: Any) -> Secret | None:
    """Returns the secret of a cloud, one JSON object; members that are ``None`` are left out."""
    stated = {name: value for name, value in members.items() if value is not None}
    return read_secret(json.dumps(stated), is_own_server=False)


def _clean(text: str) -> str:
    return "".join(char if char.isprintable() else "\ufffd" for char in text[:_MOST_SHOWN])
