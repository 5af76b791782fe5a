"""Reads environment variables, and finds names that nearly are the name of a setting."""

from __future__ import annotations

import base64
import binascii
import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from decimal import Decimal
from email.utils import parseaddr
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import environ
from django.core.exceptions import ImproperlyConfigured
from environ.fileaware_mapping import FileAwareMapping

# Servers and libraries read these without the settings.
_READ_ELSEWHERE: Final = ("FORWARDED_ALLOW_IPS",)
# A host that vanishes resets no connection: after this a statement that waits for it ends. These
# are libpq's own options, of which a pooler learns nothing, and sockets of Unix ignore them.
_NOTICE_VANISHED: Final = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
_ESCAPED: Final = "no quotes around it, and /, ? and # in the password as %2F, %3F and %23"
# A slash or a question mark in a password is read as the end of the host, before its at sign.
_BROKEN_OFF: Final = re.compile(r"[^:]*://[^/?]*(?:/[^?]*|\?.*)@")


class Variables(FileAwareMapping):  # type: ignore[misc]
    """The environment variables and the files that they name, without blanks around a value.

    A file ends in a line end, which is no part of its value.
    """

    def __getitem__(self, key: str) -> str:
        return str(super().__getitem__(key)).strip()


class Environment(environ.FileAwareEnv):  # type: ignore[misc]
    """The environment variables of the settings; remembers every name that was asked for."""

    ENVIRON = Variables()

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set(_READ_ELSEWHERE)

    def get_value(self, var: str, cast: Any = None, **kwargs: Any) -> Any:
        self.names.add(var)
        try:
            text = self.ENVIRON.get(var)
            if text is not None and text.startswith("$"):
                # The library would return the value of the variable that is named behind it.
                return self.parse_value(text, cast)
            return super().get_value(var, cast, **kwargs)
        except OSError as exc:
            raise ImproperlyConfigured(
                f"{var}_FILE: {exc.filename} cannot be read: {exc.strerror}."
            ) from None

    def percentage(self, name: str, default: str) -> Decimal:
        """Reads a percentage as an exact decimal."""
        text = self.str(name, default="").strip() or default
        if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,6})?", text) or Decimal(text) > 100:
            raise ImproperlyConfigured(f"{name} must be a number from 0 to 100.")
        return Decimal(text)

    def dollars(self, name: str, default: str) -> int:
        """Reads an amount of USD and returns it in nano-USD."""
        text = self.str(name, default="").strip() or default
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
            raise ImproperlyConfigured(f"{name} must be an amount of USD, such as 5 or 0.50.")
        return int(Decimal(text).scaleb(9))

    def mail_address(self, name: str) -> str:
        """Reads the address of a sender, or a name with one."""
        try:
            return parse_mail_address(self.str(name, default="").strip())
        except ValueError as exc:
            raise ImproperlyConfigured(f"{name}: {exc}.") from None

    def mail_server(self, name: str, *, sender: str) -> MailServer:
        """Reads the URL of a mail server, which needs a sender."""
        try:
            found = parse_mail_server(self.str(name, default="").strip())
        except ValueError as exc:
            raise ImproperlyConfigured(f"{name}: {exc}.") from None
        if found.host and not sender:
            raise ImproperlyConfigured(
                f"{name} is set, but DEFAULT_FROM_EMAIL is not: it is the sender of all mails."
            )
        return found


class MailServer(NamedTuple):
    """The parts of ``EMAIL_URL``; without a host no mail can be sent."""

    host: str = ""
    port: int = 25
    user: str = ""
    password: str = ""
    has_tls: bool = False
    starts_tls: bool = False


# The ports of RFC 8314 and RFC 6409.
_MAIL_PORTS: Final = {"smtp": 25, "smtps": 465, "smtp+tls": 587}
_MAIL_FORM: Final = (
    f"must be smtp://, smtps:// or smtp+tls://[USER:PASSWORD@]HOST[:PORT], with {_ESCAPED}"
)


def parse_mail_server(url: str) -> MailServer:
    """Returns the mail server of a URL; an empty one is none.

    ``smtps`` has TLS from the beginning, and ``smtp+tls`` begins it with STARTTLS. Raises
    ``ValueError``, whose text shows nothing of the URL.
    """
    if not url:
        return MailServer()
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(_MAIL_FORM) from None
    is_broken = parts.path.strip("/") or "@" in parts.query or "@" in parts.fragment
    if parts.scheme not in _MAIL_PORTS or not parts.hostname or is_broken:
        raise ValueError(_MAIL_FORM)
    return MailServer(
        parts.hostname,
        port or _MAIL_PORTS[parts.scheme],
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        parts.scheme == "smtps",
        parts.scheme == "smtp+tls",
    )


def parse_mail_address(text: str) -> str:
    """Returns an address, or ``Causeway <causeway@example.com>``; raises ``ValueError``."""
    _, address = parseaddr(text)
    if text and (not re.fullmatch(r"[^@\s]+@[^@\s]+", address) or not text.isprintable()):
        raise ValueError("must be an address, such as Causeway <causeway@example.com>")
    return text


def read_databases(url: str, direct_url: str, replica_url: str) -> dict[str, dict[str, Any]]:
    """Returns the setting ``DATABASES``; an empty URL, or ``embedded``, is the embedded database.

    The others are ``DATABASE_DIRECT_URL`` and ``DATABASE_REPLICA_URL``. Raises
    :class:`ImproperlyConfigured`.
    """
    is_embedded = url in ("", "embedded")
    own = "postgres:///causeway" if is_embedded else url
    found = {"default": _read_database("DATABASE_URL", own, also=", or be 'embedded'")}
    # A connection to the replica is checked by its use, because a check could wait for ever.
    others = (
        ("direct", "DATABASE_DIRECT_URL", "no pooler is before the embedded database", direct_url),
        ("replica", "DATABASE_REPLICA_URL", "the embedded database has no replica", replica_url),
    )
    for alias, name, reason, other in others:
        if not other:
            continue
        if is_embedded:
            raise ImproperlyConfigured(f"{name} needs DATABASE_URL: {reason}.")
        # Whoever runs the tests has one database.
        database = _read_database(name, other)
        checks = {"CONN_HEALTH_CHECKS": alias != "replica"}
        found[alias] = {**database, "TEST": {"MIRROR": "default"}, **checks}
    return found


def _read_database(name: str, url: str, *, also: str = "") -> dict[str, Any]:
    """Returns the configuration of a database; raises :class:`ImproperlyConfigured`.

    Neither the refusal nor a warning shows anything of the URL, which holds a password.
    """
    found: dict[str, Any] = {}
    with warnings.catch_warnings(), suppress(ValueError):
        warnings.simplefilter("ignore")
        found = environ.Env.db_url_config(url)
    if found.get("ENGINE") != "django.db.backends.postgresql" or _BROKEN_OFF.match(url):
        raise ImproperlyConfigured(
            f"{name} must name a PostgreSQL database, postgres://USER:PASSWORD@HOST/NAME{also}; "
            f"with {_ESCAPED}."
        )
    own = {"connect_timeout": 2, "application_name": "causeway"}
    options = {**_NOTICE_VANISHED, **found.get("OPTIONS", {}), **own}
    # A connection that a pooler or a restart has closed is replaced before it is used.
    health = {"CONN_HEALTH_CHECKS": True}
    return {**found, "ENGINE": "config.database.postgresql", "OPTIONS": options, **health}


def find_misspelt(
    present: Iterable[str], known: Collection[str], *, foreign: Collection[str]
) -> Mapping[str, str]:
    """Returns the present names that nearly are a known name, each with the nearest known name.

    Known names also end in ``_FILE``. A name is near if one letter of it differs, or two letters
    of a known name of nine letters or more; exchanged neighbours count once, and so does a wrong
    case. A known name of fewer than six letters has no near names: too many programs would have
    one of them. ``foreign`` names belong to other programs.
    """
    wanted = [*known, *(f"{name}_FILE" for name in known)]
    candidates = [(name, set(name), _tolerance(name)) for name in wanted if len(name) >= 6]
    found: dict[str, str] = {}
    for name in set(present) - set(wanted) - set(foreign):
        upper = name.upper()
        letters = set(upper)
        # The two comparisons before the distance keep out nearly all names of a large environment.
        near = [
            (distance, other)
            for other, others, most in candidates
            if abs(len(upper) - len(other)) <= most
            and len(letters ^ others) <= 2 * most
            and (distance := measure_distance(upper, other)) <= most
        ]
        if near:
            found[name] = min(near)[1]
    return dict(sorted(found.items()))


def measure_distance(one: str, other: str) -> int:
    """Returns how many letters to insert, remove, replace or exchange with their neighbour.

    This is the optimal string alignment distance, the usual form of Damerau and Levenshtein's.
    """
    before: list[int] = []
    above = list(range(len(other) + 1))
    for row, letter in enumerate(one, 1):
        line = [row]
        for column, wanted in enumerate(other, 1):
            cost = min(
                above[column] + 1,
                line[column - 1] + 1,
                above[column - 1] + (letter != wanted),
            )
            if row > 1 and column > 1 and (letter, one[row - 2]) == (other[column - 2], wanted):
                cost = min(cost, before[column - 2] + 1)
            line.append(cost)
        before, above = above, line
    return above[-1]


def _tolerance(name: str) -> int:
    return 2 if len(name) >= 9 else 1


def parse_credential_keys(text: str) -> list[bytes]:
    """Returns the keys of ``CREDENTIAL_KEYS``; raises :class:`ImproperlyConfigured`."""
    try:
        keys = [base64.b64decode(part, validate=True) for part in text.split(",") if part]
    except (binascii.Error, ValueError):
        raise ImproperlyConfigured("CREDENTIAL_KEYS is a comma list of base64 texts.") from None
    if not keys or any(len(key) != 32 or not any(key) for key in keys):
        raise ImproperlyConfigured(
            "CREDENTIAL_KEYS needs at least one key of 32 random bytes in base64: "
            "openssl rand -base64 32"
        )
    return keys
