"""The receiver of a destination: its URL, method and headers, and the check of a configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from accounts.destinations.rules import InvalidMember
from config.credentials import Secret
from config.egress.addresses import EgressPolicy, InvalidURL, parse_base_url
from config.egress.rules import find_header_problem

MASK: Final = "********"
METHODS: Final = ("POST", "PUT")
# The member of a configuration that has the URL, by the type of the destination.
URL_MEMBERS: Final[Mapping[str, str]] = {"otel-collector": "endpoint", "webhook": "url"}
_MEMBERS: Final[Mapping[str, frozenset[str]]] = {
    "otel-collector": frozenset(["endpoint", "headers"]),
    "webhook": frozenset(["url", "headers", "method"]),
}
_MAX_HEADERS: Final = 20


class InvalidReceiver(InvalidMember):
    """A configuration is not valid."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where a destination's requests go. The values of headers are secrets."""

    url: str
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def host(self) -> str:
        """The host of the URL, with its port if it has one."""
        return host_of(self.url)

    def secret(self) -> Secret:
        """Returns the headers as one secret."""
        return Secret(json.dumps(dict(self.headers)))


def host_of(url: str) -> str:
    """Returns the host of a canonical URL, with its port if it has one."""
    return url.removeprefix("https://").partition("/")[0]


def read_headers(secret: Secret) -> dict[str, str]:
    """Returns the headers of a secret that :meth:`Receiver.secret` made."""
    return json.loads(secret.reveal())


def read_receiver(
    kind: str, config: Any, policy: EgressPolicy, *, stored: Receiver | None = None
) -> Receiver:
    """Returns the receiver that a configuration describes; raises :class:`InvalidReceiver`.

    With a ``stored`` receiver, absent members keep their value, and so does a header with the value
    :data:`MASK`. A change of the host refuses stored headers: otherwise a person who may not read
    them could send them to a host of their own.
    """
    if not isinstance(config, Mapping):
        raise InvalidReceiver("", "Must be a JSON object.")
    for name in config:
        if name not in _MEMBERS[kind]:
            raise InvalidReceiver(name[:100], "Unknown field.")
    member = URL_MEMBERS[kind]
    if member in config:
        url = _read_url(member, config[member], policy)
    elif stored is not None:
        url = stored.url
    else:
        raise InvalidReceiver(member, "This field is required.")
    method = config.get("method", "POST" if stored is None else stored.method)
    if method not in METHODS:
        raise InvalidReceiver("method", f"Must be one of: {', '.join(METHODS)}.")
    kept = {} if stored is None else stored.headers
    given = config.get("headers")
    headers = _read_headers(given, kept) if "headers" in config else kept
    moves = stored is not None and host_of(url) != stored.host
    if moves and kept and ("headers" not in config or MASK in (given or {}).values()):
        raise InvalidReceiver(
            "headers",
            "Must be sent again with their values, because the host changes: stored headers go to "
            "no other host.",
        )
    return Receiver(url, method, headers)


def _read_url(path: str, text: Any, policy: EgressPolicy) -> str:
    if not isinstance(text, str):
        raise InvalidReceiver(path, "Must be a string.")
    try:
        return parse_base_url(text, policy=policy).text
    except InvalidURL as exc:
        why = str(exc)
        raise InvalidReceiver(path, f"{why[:1].upper()}{why[1:]}.") from None


def _read_headers(given: Any, kept: Mapping[str, str]) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidReceiver("headers", "Must be a JSON object of strings.")
    if len(given) > _MAX_HEADERS:
        raise InvalidReceiver("headers", f"Must have at most {_MAX_HEADERS} entries.")
    headers: dict[str, str] = {}
    for name, value in given.items():
        stated: Any = kept.get(name) if value == MASK else value
        if name.lower() in {other.lower() for other in headers}:
            raise InvalidReceiver(f"headers.{name}", "Must be given once.")
        if problem := find_header_problem(name, stated):
            raise InvalidReceiver(f"headers.{name[:100]}", problem)
        headers[name] = stated
    return headers
