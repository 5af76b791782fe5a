"""API keys in the headers of requests, for the control plane and the data plane."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from config import secrets
from config.api.errors import Forbidden, Unauthenticated
from config.clocks.clock import clock
from config.secrets import KeyDigests


class OrganizationSuspended(Forbidden):
    """The operator has suspended the organization; its data plane serves nothing."""

    error_type = "organization_suspended"


_BEARER: Final = re.compile(r"[ \t]*(?i:bearer)[ \t]+([!-+\--~]+)[ \t]*")
# Some clients write the scheme of a key that they do not have.
_NO_KEY: Final = re.compile(r"[ \t]*(?:(?i:bearer)[ \t]*)?")


def bearer_digests(authorization: str | None) -> KeyDigests:
    """Returns the digests of the key in an ``Authorization`` header, one for each pepper.

    No other function parses a key. Servers join two headers with a comma; the result is refused,
    because no key contains a comma. Blanks around the key are no part of it. The checksum detects a
    typo without a query, but for imported keys, which have none. Raises :class:`Unauthenticated`.
    """
    if not authorization:
        raise Unauthenticated
    match = _BEARER.fullmatch(authorization)
    if match is None:
        # Often a variable that is not set, or a key without its scheme.
        raise Unauthenticated
    if not secrets.may_be_key(match[1]):
        raise Unauthenticated("The API key is not valid.")
    return KeyDigests(match[1])


def key_digests(authorization: str | None, api_key: str | None) -> KeyDigests:
    """Returns the digests of the key in ``Authorization`` or in ``x-api-key``.

    Anthropic's clients send the latter. An empty header holds no key. Raises
    :class:`Unauthenticated` for an invalid key, and for two different keys.
    """
    if not api_key:
        return bearer_digests(authorization)
    digests = bearer_digests(f"Bearer {api_key}")
    is_alone = not authorization or _NO_KEY.fullmatch(authorization) is not None
    if not is_alone and bearer_digests(authorization)[0] != digests[0]:
        raise Unauthenticated("Authorization and x-api-key hold different keys; send one of them.")
    return digests


def require_usable(
    *, disabled: bool, expires_at: datetime | None, now: datetime | None = None
) -> None:
    """Raises :class:`Unauthenticated` for a disabled or expired key.

    ``now`` is the database's time, if the caller has just read it.
    """
    if disabled:
        raise Unauthenticated("The API key is disabled.")
    if expires_at is None:
        return
    if expires_at <= (clock.now() if now is None else now):
        raise Unauthenticated("The API key has expired.")


def require_active(suspension_reason: str) -> None:
    """Raises :class:`OrganizationSuspended`, which says the reason, unless the reason is empty."""
    if suspension_reason:
        raise OrganizationSuspended(f"The organization is suspended: {suspension_reason}")


def require_inference(*, is_management: bool) -> None:
    """Raises :class:`Forbidden` for a management key."""
    if is_management:
        raise Forbidden("Management keys cannot call inference; use an inference key.")
