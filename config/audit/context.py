"""Tells the triggers that keep the audit log on whose behalf rows are written.

The triggers write an entry only where somebody is named, so the data plane and the background
duties leave none. The name is told inside the transaction of each write and ends with it: a
connection that goes back to its pool, even in the middle of a request, takes no name along.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from uuid import UUID

from django.db import connection, transaction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from psycopg.pq import TransactionStatus

from config.models import AuditEntry
from config.server import logs

# What the triggers watch, and the one kind that is written without them.
IMPORT: Final = "import"
KINDS: Final = frozenset(
    (
        "accounts.apikey", "accounts.byokcredential", "accounts.guardrail",
        "accounts.keyassignment", "accounts.member", "accounts.memberassignment",
        "accounts.organization", "accounts.workspace", "accounts.workspacebudget",
        "accounts.workspacemember", "auth.group", "auth.group_permissions", "auth.user",
        "auth.user_groups", "auth.user_user_permissions", "billing.chainstate", "billing.deposit",
        "billing.grantrequest",
        "billing.topup", "billing.transfer", "catalog.languagemodel", "catalog.modelendpoint",
        "catalog.priceversion", "catalog.provider", "endpoints.privateendpoint",
        "endusers.enduser", "otp_static.staticdevice", "otp_totp.totpdevice",
    )
)  # fmt: skip
MAX_LENGTH: Final = 255
_ADMIN: Final = "admin"
_SAFE_METHODS: Final = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))
_ACTION: Final = re.compile(r"[a-z_]{1,64}")
# A function that writes would have to be called by other words than these.
_READS: Final = re.compile(r"[\s(]*(?:SELECT|SAVEPOINT|RELEASE|ROLLBACK|DECLARE|SHOW|SET)\b")
_TELL: Final = (
    "SELECT set_config('causeway.actor', %s, true), set_config('causeway.action', %s, true), "
    "set_config('causeway.request_id', %s, true)"
)

Execute = Callable[[Any, Any, bool, dict[str, Any]], Any]


class _Attribution:
    """A wrapper around a connection's statements; asks who acts only when something is written."""

    def __init__(self, actor: Callable[[], str], action: Callable[[], str]) -> None:
        self._actor = actor
        self._action = action

    def __call__(
        self, execute: Execute, sql: Any, params: Any, many: bool, context: dict[str, Any]
    ) -> Any:
        if (isinstance(sql, str) and _READS.match(sql)) or not (actor := self._actor()):
            return execute(sql, params, many, context)
        told = (actor[:MAX_LENGTH], self._action()[:MAX_LENGTH], logs.request_id.get())
        database = context["connection"]
        if database.in_atomic_block:
            execute(_TELL, told, False, context)
            return execute(sql, params, many, context)
        with transaction.atomic(using=database.alias):
            execute(_TELL, told, False, context)
            return execute(sql, params, many, context)


@contextmanager
def _attributed(actor: Callable[[], str], action: Callable[[], str]) -> Iterator[None]:
    try:
        with connection.execute_wrapper(_Attribution(actor, action)):
            yield
    finally:
        # Inside a transaction of somebody else's, the name would last until its end.
        if connection.in_atomic_block and _is_usable():
            with connection.cursor() as cursor:
                cursor.execute(_TELL, ("", "", ""))


def _is_usable() -> bool:
    status: TransactionStatus = connection.connection.info.transaction_status
    return status is TransactionStatus.INTRANS


@contextmanager
def acting_as(actor: str, action: str) -> Iterator[None]:
    """Has this thread's writes attributed to somebody, each changed row with an entry."""
    with _attributed(lambda: actor, lambda: action):
        yield


def command_actor(name: str) -> str:
    """How the log names who runs a management command."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "an unknown user"
    return f"command {name} by {user}"


def record_import(
    actor: str, action: str, *, organization_id: UUID | None, counts: Mapping[str, Any]
) -> AuditEntry:
    """Writes the one entry of an import, which names nobody to the triggers."""
    return AuditEntry.objects.create(
        actor=actor[:MAX_LENGTH],
        action=action[:MAX_LENGTH],
        kind=IMPORT,
        organization_id=organization_id,
        after=counts,
        request_id=logs.request_id.get(),
    )


class AuditMiddleware:
    """Attributes what a request writes to its operator or its key, which is known only later."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.method in _SAFE_METHODS:
            return self._get_response(request)
        with _attributed(lambda: _actor_of(request), lambda: _action_of(request)):
            return self._get_response(request)


def _actor_of(request: HttpRequest) -> str:
    """Returns who sent the request as histories name them; nobody before the key is known."""
    user: Any = request.user
    if user is None or not user.is_authenticated:
        return ""
    actor: str = getattr(user, "actor", "") or f"operator {user.get_username()}"
    return actor


def _action_of(request: HttpRequest) -> str:
    match = request.resolver_match
    if match is None:
        return str(request.method)
    if match.app_name == _ADMIN:
        action = request.POST.get("action", "")
        return f"admin: {match.url_name} {action if _ACTION.fullmatch(action) else ''}".rstrip()
    path = request.path
    for name, value in match.kwargs.items():
        path = path.replace(str(value), f"{{{name}}}")
    return f"{request.method} {path}"
