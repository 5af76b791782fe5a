"""Provider credentials: a secret whose text never appears in logs, and its parser."""

from __future__ import annotations

import hmac
import json
import re
from typing import Final

MAX_CREDENTIAL_LENGTH: Final = 16_384
# Only a key of this form has a label: four of its characters do not reveal it.
_SHOWABLE: Final = re.compile(r"[!-~]{16,}")
_BARE_KEY: Final = re.compile(r"[!-~]{8,4096}")
# The white space of JSON, and the byte order mark of a file.
_AROUND_OBJECT: Final = " \t\r\n\ufeff"


class Secret:
    """A secret text that does not print itself; only :meth:`reveal` returns the value.

    ``is_object`` says that it is the text of a JSON object, which may state more than a key. What
    stands around the object is left out.
    """

    __slots__ = ("_value", "is_object")

    def __init__(self, value: str) -> None:
        bare = value.strip(_AROUND_OBJECT)
        self.is_object = bare.startswith("{")
        self._value = bare if self.is_object else value

    def reveal(self) -> str:
        return self._value

    def in_header(self, name: str, prefix: str = "") -> dict[str, str]:
        """Returns the header that carries the value; none for ``NO_SECRET``."""
        return {name: f"{prefix}{self._value}"} if self._value else {}

    @property
    def label(self) -> str:
        """Returns the last four characters of the key, which lists may show."""
        key = _visible_key(self._value)
        return f"…{key[-4:]}" if _SHOWABLE.fullmatch(key) else "…"

    def __str__(self) -> str:
        return "********"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(
            self._value.encode(), other._value.encode()
        )

    def __hash__(self) -> int:
        return hash((Secret, self._value))


# Stands for the secret of a server that takes none: no header is sent for it.
NO_SECRET: Final = Secret("")


class NotACredential(ValueError):
    """The text is not a provider credential; the message never repeats the text."""

    def __init__(self) -> None:
        super().__init__(
            "Must be a bare key of 8 to 4096 visible ASCII characters, or one JSON object."
        )


def parse_credential(text: str) -> Secret:
    """Returns a provider's secret: one bare key, or the text of one JSON object.

    A bare key travels in a header, so it may hold visible ASCII characters only. Raises
    :class:`NotACredential`.
    """
    secret = Secret(text)
    if len(text) <= MAX_CREDENTIAL_LENGTH and (
        _BARE_KEY.fullmatch(text) or _is_json_object(secret.reveal())
    ):
        return secret
    raise NotACredential


def _visible_key(text: str) -> str:
    """Returns the key in a credential, or the identifier by which its owner knows the key."""
    try:
        members = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(members, dict):
        return text
    account = members.get("service_account")
    holder = members | account if isinstance(account, dict) else members
    names = ("api_key", "access_key_id", "private_key_id")
    return next((key for name in names if isinstance(key := holder.get(name), str)), "")


def _is_json_object(text: str) -> bool:
    try:
        text.encode()  # refuses a lone surrogate, which cannot be stored
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
