"""Counts attempts to sign in, and refuses those beyond the limits before a password is hashed.

An attempt is counted before it is made, in one statement for each limit. Attempts that run at the
same time in all workers therefore cannot pass a limit together. A success is taken back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address, ip_network
from math import ceil
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.http import HttpRequest

from config.api.text import CONTROL_CHARACTERS
from config.console.sign_in import events
from config.console.sign_in.models import SignInLimit

_MAX_ACCOUNT: Final = 150
# An address from which an account signed in during these days is not subject to its limit over all
# addresses, nor the account to the address's, so that strangers cannot keep the owner out.
_FAMILIAR_DAYS: Final = 30
# Counters whose time is over are kept for a day.
_KEPT_SECONDS: Final = 86_400

_RESERVE: Final = """
INSERT INTO config_signinlimit AS l (scope, account, network, failures, resets_at)
VALUES (%(scope)s, %(account)s, %(network)s, 1, now() + make_interval(secs => %(seconds)s))
ON CONFLICT (scope, account, network) DO UPDATE SET
    failures = CASE WHEN l.resets_at <= now() THEN 1 ELSE l.failures + 1 END,
    resets_at = CASE WHEN l.resets_at <= now() THEN excluded.resets_at ELSE l.resets_at END
WHERE l.resets_at <= now() OR l.failures < %(limit)s
RETURNING l.failures
"""
# A success must not prolong the failures before it, so only a failure moves the time of the reset.
_EXTEND: Final = """
UPDATE config_signinlimit SET resets_at = now() + make_interval(secs => %(seconds)s)
WHERE (scope, account, network) = (%(scope)s, %(account)s, %(network)s)
"""
_SECONDS_LEFT: Final = """
SELECT extract(epoch FROM resets_at - now())::float8 FROM config_signinlimit
WHERE (scope, account, network) = (%(scope)s, %(account)s, %(network)s)
"""
_TAKE_BACK: Final = """
UPDATE config_signinlimit SET failures = greatest(failures - 1, 0)
WHERE (scope, account, network) = (%(scope)s, %(account)s, %(network)s)
"""
_SIGN_IN: Final = """
UPDATE config_signinlimit SET failures = 0, signed_in_at = now()
WHERE (scope, account, network) = (%(scope)s, %(account)s, %(network)s)
"""
_IS_FAMILIAR: Final = """
SELECT EXISTS (
    SELECT FROM config_signinlimit
    WHERE scope = 'pair' AND account = %(account)s AND network = %(network)s
      AND signed_in_at > now() - make_interval(days => %(days)s::int)
)
"""
_CLEAR: Final = """
DELETE FROM config_signinlimit
WHERE resets_at < now() - make_interval(secs => %(seconds)s)
  AND (signed_in_at IS NULL OR signed_in_at < now() - make_interval(days => %(days)s))
"""

Scope = SignInLimit.Scope


class SignInLocked(ValidationError):
    """Too many attempts have failed; the next one is allowed after ``retry_after`` seconds."""

    def __init__(self, retry_after: int) -> None:
        self.retry_after = retry_after
        minutes = ceil(retry_after / 60)
        super().__init__(
            f"Too many attempts have failed. Try again in {minutes} "
            f"minute{'' if minutes == 1 else 's'}, or ask an administrator to lift the lock.",
            code="locked",
        )


@contextmanager
def count_attempt(request: HttpRequest, account: str) -> Iterator[None]:
    """Counts an attempt to prove that somebody is an operator; the block makes the attempt.

    A ``ValidationError`` of the block is a failure; any other exception leaves the attempt counted.
    Raises :class:`SignInLocked` before the block
    when there were too many; such an attempt is not counted.
    """
    account, address = clean_account(account), address_of(request)
    rows = _rows_of(account, network_of(address))
    try:
        counts = _reserve(rows)
    except SignInLocked:
        events.record(events.REFUSED, account=account, address=address)
        raise
    try:
        yield
    except ValidationError as exc:
        detail = str(getattr(exc, "code", "") or "")
        events.record(events.FAILED, account=account, address=address, detail=detail)
        _execute([(_EXTEND, row) for row in rows])
        for row, count in zip(rows, counts, strict=True):
            if count == row["limit"]:
                name = Scope(row["scope"]).label
                events.record(events.LOCKED, account=account, address=address, detail=name)
        raise
    _execute([(_SIGN_IN if row["scope"] == Scope.PAIR else _TAKE_BACK, row) for row in rows])


def clear_limits() -> int:
    """Deletes the counters that count nothing any more; returns their number."""
    with connection.cursor() as cursor:
        cursor.execute(_CLEAR, {"seconds": _KEPT_SECONDS, "days": _FAMILIAR_DAYS})
        return cursor.rowcount


def clean_account(text: str) -> str:
    """Returns the name of an account as it was typed, without control characters, and cut."""
    return CONTROL_CHARACTERS.sub("?", text)[:_MAX_ACCOUNT]


def address_of(request: HttpRequest) -> str:
    """Returns the address of a request, which the server has taken from a trusted proxy."""
    return str(request.META.get("REMOTE_ADDR", ""))


def network_of(address: str) -> str:
    """Returns what counts as one address: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return "unknown"
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ip_network((int(parsed), 64), strict=False))


def _rows_of(account: str, network: str) -> list[dict[str, Any]]:
    """Returns the keys and limits of the counters of an attempt, always in the same order.

    So attempts cannot wait for each other's locks in a circle.
    """
    with connection.cursor() as cursor:
        names: dict[str, str | int] = {
            "account": account,
            "network": network,
            "days": _FAMILIAR_DAYS,
        }
        cursor.execute(_IS_FAMILIAR, names)
        [is_familiar] = cursor.fetchone()
    keys = {
        Scope.ADDRESS: {"account": "", "network": network},
        Scope.ACCOUNT: {"account": account, "network": ""},
        Scope.PAIR: {"account": account, "network": network},
    }
    return [
        {"scope": scope.value, "limit": limit.failures, "seconds": limit.seconds, **keys[scope]}
        for scope, limit in SignInLimit.LIMITS.items()
        if scope == Scope.PAIR or not is_familiar
    ]


def _execute(statements: list[tuple[str, dict[str, Any]]]) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        for statement, row in statements:
            cursor.execute(statement, row)


def _reserve(rows: list[dict[str, Any]]) -> list[int]:
    """Counts an attempt and returns the counts; raises :class:`SignInLocked`, counting nothing."""
    counts = []
    with transaction.atomic(), connection.cursor() as cursor:
        for row in rows:
            cursor.execute(_RESERVE, row)
            found = cursor.fetchone()
            if found is None:
                cursor.execute(_SECONDS_LEFT, row)
                [seconds] = cursor.fetchone()
                raise SignInLocked(max(1, ceil(seconds)))
            counts.append(found[0])
    return counts
