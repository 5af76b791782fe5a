"""What a gateway's file says: deployments of models, aliases, and what is left out; pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from config.api.text import CONTROL_CHARACTERS
from config.credentials import NO_SECRET, NotACredential, Secret, parse_credential
from config.egress.addresses import ANYWHERE, EgressPolicy, InvalidURL, parse_base_url

ANY_POLICY: Final = EgressPolicy(allowed_networks=ANYWHERE)
# Servers of one's own are given these where they want no key.
_NO_KEYS: Final = frozenset(
    ("-", "none", "null", "empty", "na", "n/a", "no-key", "not-needed", "dummy", "fake",
     "fake-key", "ollama", "vllm")
)  # fmt: skip
# What a template of a file has where its key will be.
_PLACEHOLDER: Final = re.compile(r"\$\w+|\$\{.*\}|\{\{.*\}\}|<.*>")
MOST_MODELS: Final = 10_000
_MOST_SHOWN: Final = 300
_LONGEST_ID: Final = 255
_DATED: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:-preview)?")
# Vertex AI knows Google's own models by their author; other gateways leave it out.
_GOOGLES: Final = re.compile(
    r"(?:gemini-|[a-z0-9]*gemma|image(?:n|generation)|(?:text|multimodal)[a-z-]*embedding)[^/*]*"
)
# Versions of Azure's interface that have no date in its URL.
_UNDATED: Final = ("", "latest", "preview", "v1")
# The reason why groups and teams become nothing.
ACCESS: Final = "guardrails and keys say who may use a model, see docs/guardrails.md"
# The reason why weights and priorities become nothing in the catalogue.
SHARED: Final = "endpoints are shared by price and health, see docs/routing.md"
_MOST_SHARE: Final = 1_000
# The name whose fallbacks are those of all names without ones of their own.
ANY_DEFAULT: Final = "*"


class NotTaken(Exception):
    """An entry has no counterpart; the message says why, and shows no secret."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A part of a file that becomes nothing: the line of its entry, its name, and the reason."""

    line: int
    name: str
    reason: str


class GatewayServer(NamedTuple):
    """Where a deployment is: the slug of the bundle's provider, the dialect and the base URL.

    The slug of a server of one's own is empty. The credential of a cloud has its address.
    """

    family: str
    dialect: str
    base_url: str | None

    @property
    def is_cloud(self) -> bool:
        return self.base_url is None


# The servers of the bundle's providers, by their slugs.
Servers = Mapping[str, GatewayServer]


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model at a server, as a file describes it.

    ``secret`` is ``None`` where the file and the environment name none. ``place`` has the members
    that a cloud's credential must have, as the file states them. ``pricing`` and ``lines`` are as
    in a catalogue file, and ``None`` where the file states no price. ``routing`` has the priority
    and the weight of a private endpoint. ``hint`` is another name of the model, and ``missing``
    says what a deployment without a key lacks.
    """

    line: int
    name: str
    server: GatewayServer
    upstream_id: str
    secret: Secret | None
    place: Mapping[str, str] = field(default_factory=dict)
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
    def own_name(self) -> str:
        """Returns the name of a model that nobody knows yet."""
        return self.upstream_id if "*" in self.name else self.name

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

    Both have the line of each name. ``wildcards`` are deployments whose model has a ``*``, which
    stands for all models that the catalogue has at the provider. ``shares`` are what the endpoints
    of an organization alone have.
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
        """Adds a deployment, or leaves it out."""
        upstream_id = deployment.upstream_id
        if not 1 <= len(upstream_id) <= _LONGEST_ID or CONTROL_CHARACTERS.search(upstream_id):
            self.leave(deployment, "the model's name there must be plain, of 1 to 255 characters")
        elif len(self.deployments) == MOST_MODELS:
            self.leave(deployment, f"the file has more than {MOST_MODELS:,} models")
        else:
            (self.wildcards if "*" in upstream_id else self.deployments).append(deployment)


def locate(dialect: str, address: str, servers: Servers) -> GatewayServer:
    """Returns the server at an address: that of a provider of the bundle, or one of one's own.

    Raises :class:`NotTaken` for what is no address.
    """
    try:
        base_url = parse_base_url(address, policy=ANY_POLICY, require_https=False).text
    except InvalidURL as exc:
        raise NotTaken(f"the address: {exc}") from None
    for server in servers.values():
        # Some leave out the version, which others add.
        if server.base_url in (base_url, f"{base_url}/v1"):
            return server
    if dialect == "gemini":
        raise NotTaken("the address: Google's format is spoken to Google's own address alone")
    return GatewayServer("", dialect, base_url)


def name_googles(name: str) -> str:
    """Returns the name that Vertex AI has for a model of Google's; other names stay."""
    return f"google/{name}" if _GOOGLES.fullmatch(name) else name


def read_share(value: Any, *, least: int = 1) -> int | None:
    """Returns a weight or a priority; ``None`` for one that a private endpoint cannot have."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and least <= value <= _MOST_SHARE else None


def read_secret(text: str | None, *, is_keyless: bool) -> Secret | None:
    """Returns the secret of a deployment; ``NO_SECRET`` for a keyless server.

    Raises :class:`NotTaken` for a text that is none; the message does not repeat it.
    """
    bare = (text or "").strip()
    if not bare or bare.lower() in _NO_KEYS:
        return NO_SECRET if is_keyless else None
    if _PLACEHOLDER.fullmatch(bare):
        raise NotTaken("the key: a placeholder stands in its place, which nothing has replaced")
    try:
        return parse_credential(bare)
    except NotACredential as exc:
        raise NotTaken(f"the key: {exc}") from None


def read_version(text: str | None) -> str | None:
    """Returns the date of a version of Azure's interface; ``None`` for the one without a date."""
    if (text or "") in _UNDATED:
        return None
    if text and _DATED.fullmatch(text):
        return text
    raise NotTaken("api_version: must be a date such as 2024-10-21, or latest")


def write_secret(place: Mapping[str, str], **members: Any) -> Secret | None:
    """Returns the secret of a cloud, one JSON object; members that are ``None`` are left out."""
    stated = {name: value for name, value in members.items() if value is not None}
    return read_secret(json.dumps({**place, **stated}, default=str), is_keyless=False)


def is_same(one: Secret | None, other: Secret | None) -> bool:
    """Tells whether two secrets say the same; the members of an object have no order."""
    if one is None or other is None or not (one.is_object and other.is_object):
        return one == other
    return bool(json.loads(one.reveal()) == json.loads(other.reveal()))


def is_at(secret: Secret | None, place: Mapping[str, str]) -> bool:
    """Tells whether a secret is one for the place that a deployment states."""
    if secret is None or not place:
        return secret is not None
    stated = json.loads(secret.reveal()) if secret.is_object else {}
    return all(
        str(stated.get(name, "")).rstrip("/") == value.rstrip("/") for name, value in place.items()
    )


def _clean(text: str) -> str:
    return "".join(char if char.isprintable() else "\ufffd" for char in text[:_MOST_SHOWN])
