"""Tells the triggers of the audit log which actor writes a row.

The triggers write entries only while there is an actor, so writes of the data plane and of
background duties are not logged. The name is set inside the transaction of each write and ends with
it, so a connection that returns to its pool during a request keeps no name.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from django.db import connection, transaction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from psycopg.pq import TransactionStatus

from config.audit.entries import AuditEntry
from config.server import logs

# The kind of the entries that imports write.
IMPORT: Final = "import"
# The kind of the entries of stored texts that operators and keys read.
READING: Final = "reading"
# The kind of the entries of sign-ins.
SIGN_IN: Final = "sign_in"
MAX_LENGTH: Final = 255
_ADMIN: Final = "admin"
_SAFE_METHODS: Final = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))
_ACTION: Final = re.compile(r"[a-z_]{1,64}")
# The parameters of a route, and the marks of its beginning and its end.
_PARAMETER: Final = re.compile(r"\(\?P<(?P<group>\w+)>[^)]*\)|<(?:\w+:)?(?P<converted>\w+)>|[$^]")
# Statements that begin with these words must not write, not even through a function.
_READS: Final = re.compile(r"[\s(]*(?:SELECT|SAVEPOINT|RELEASE|ROLLBACK|DECLARE|SHOW|SET)\b")
_SET_NAMES: Final = (
    "SELECT set_config('causeway.actor', %s, true), set_config('causeway.action', %s, true), "
    "set_config('causeway.request_id', %s, true)"
)

Execute = Callable[[Any, Any, bool, dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class _Acting:
    """The actor and the action, as functions, because a request is authenticated later."""

    actor: Callable[[], str]
    action: Callable[[], str]


_acting: ContextVar[_Acting | None] = ContextVar("acting", default=None)


def _attribute_statement(
    execute: Execute, sql: Any, params: Any, many: bool, context: dict[str, Any]
) -> Any:
    """Runs a statement of a connection; sets the actor in its transaction before a write."""
    acting = _acting.get()
    is_read = isinstance(sql, str) and _READS.match(sql)
    if is_read or acting is None or not (actor := _find_actor(acting)):
        return execute(sql, params, many, context)
    names = (actor[:MAX_LENGTH], acting.action()[:MAX_LENGTH], logs.request_id.get())
    database = context["connection"]
    if database.in_atomic_block:
        execute(_SET_NAMES, names, False, context)
        return execute(sql, params, many, context)
    with transaction.atomic(using=database.alias):
        execute(_SET_NAMES, names, False, context)
        return execute(sql, params, many, context)


def _find_actor(acting: _Acting) -> str:
    """Returns the name of the actor.

    A statement that finds the actor has none itself: the first reading of a session puts off its
    end, and would ask for the operator of that session again.
    """
    token = _acting.set(None)
    try:
        return acting.actor()
    finally:
        _acting.reset(token)


def current_actor() -> str:
    """Returns the name of who is acting; empty if nobody is."""
    acting = _acting.get()
    return "" if acting is None else _find_actor(acting)[:MAX_LENGTH]


@contextmanager
def _acting_as(acting: _Acting) -> Iterator[None]:
    with ExitStack() as stack:
        if _attribute_statement not in connection.execute_wrappers:
            stack.enter_context(connection.execute_wrapper(_attribute_statement))
        if _acting.get() is not None:
            _clear_names()
        token = _acting.set(acting)
        try:
            yield
        finally:
            _acting.reset(token)
            _clear_names()


def _clear_names() -> None:
    """Clears the names, which would otherwise last until the end of a surrounding transaction."""
    if not connection.in_atomic_block:
        return
    status: TransactionStatus = connection.connection.info.transaction_status
    if status is TransactionStatus.INTRANS:
        with connection.cursor() as cursor:
            cursor.execute(_SET_NAMES, ("", "", ""))


def acting_as(actor: str, action: str) -> AbstractContextManager[None]:
    """Attributes this thread's writes to an actor; each changed row gets an audit entry."""
    return _acting_as(_Acting(lambda: actor, lambda: action))


def acting_as_nobody() -> AbstractContextManager[None]:
    """Suspends audit entries of this thread's writes, for imports that write one entry."""
    return _acting_as(_Acting(str, str))


def command_actor(name: str) -> str:
    """Returns the actor of a management command: its name and its user."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "an unknown user"
    return f"command {name} by {user}"


def record_import(
    actor: str, action: str, *, organization_id: UUID | None, counts: Mapping[str, Any]
) -> AuditEntry:
    """Writes the entry of an import, which runs under :func:`acting_as_nobody`."""
    return AuditEntry.objects.create(
        actor=actor[:MAX_LENGTH],
        action=action[:MAX_LENGTH],
        kind=IMPORT,
        organization_id=organization_id,
        after=counts,
        request_id=logs.request_id.get(),
    )


def record_sign_in(actor: str, outcome: str, *, account: str, address: str, detail: str) -> None:
    """Writes the entry of a sign-in, of its failure, or of what follows from failures."""
    after = {"name": account, "outcome": outcome, "address": address, "detail": detail}
    AuditEntry.objects.create(
        actor=actor[:MAX_LENGTH],
        action=f"sign-in: {outcome}",
        kind=SIGN_IN,
        object_id=account,
        after={name: value for name, value in after.items() if value},
        request_id=logs.request_id.get(),
    )


def record_reading(
    actor: str,
    action: str,
    *,
    object_id: str,
    organization_id: UUID,
    reason: str = "",
    outcome: str,
) -> None:
    """Writes the entry of an operator or a key that reads what a caller sent and got."""
    after = {"reason": reason, "outcome": outcome}
    AuditEntry.objects.create(
        actor=actor[:MAX_LENGTH],
        action=action[:MAX_LENGTH],
        kind=READING,
        object_id=object_id,
        organization_id=organization_id,
        after={name: value for name, value in after.items() if value},
        request_id=logs.request_id.get(),
    )


class AuditMiddleware:
    """Attributes the writes of a request to its operator or its API key."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.method in _SAFE_METHODS:
            return self._get_response(request)
        with _acting_as(_Acting(lambda: actor_of(request), lambda: _action_of(request))):
            return self._get_response(request)


def actor_of(request: HttpRequest) -> str:
    """Returns the operator or the key of a request; empty before authentication."""
    user: Any = request.user
    if user is None or not user.is_authenticated:
        return ""
    return getattr(user, "actor", "") or f"operator {user.get_username()}"


def _action_of(request: HttpRequest) -> str:
    match = request.resolver_match
    if match is None:
        return str(request.method)
    if match.app_name == _ADMIN:
        action = request.POST.get("action", "")
        return f"admin: {match.url_name} {action if _ACTION.fullmatch(action) else ''}".rstrip()
    return f"{request.method} /{_PARAMETER.sub(_name_parameter, match.route)}"


def _name_parameter(found: re.Match[str]) -> str:
    name = found["group"] or found["converted"]
    return f"{{{name}}}" if name else ""
