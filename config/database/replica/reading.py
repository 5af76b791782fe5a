"""Reads from a streaming replica, ``DATABASE_REPLICA_URL``, where a few seconds do not matter.

This is the one place that decides where a read goes. Whoever reads says so, with :func:`read` or
:func:`answer`, and must do nothing but read. During such a read the thread's connection *is* the
replica's: the ORM and plain SQL both use it, and PostgreSQL itself refuses a write. An error there
is no answer, so the primary is asked instead. Authority, balances and all that decides about a
request or a change are never read so.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, ParamSpec, TypeVar

from django.db import DEFAULT_DB_ALIAS, Error, InterfaceError, OperationalError, connections
from prometheus_client import Counter

from config.database.replica.watch import ALIAS, watch

logger = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_READS: Final = Counter(
    "causeway_replica_reads_total",
    "Reads that may go to the replica, by the server that answered, and why it was the primary.",
    ("server", "reason"),
)
# What was written, though it may not be on the primary's disk yet.
_FIND_POSITION: Final = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
# Behind one address there may be several standbys, and the one that was checked is another one.
_ASK_SERVER: Final = "SELECT pg_is_in_recovery(), pg_last_wal_replay_lsn() - '0/0'::pg_lsn"
_UNREACHED: Final = 2**63


class _Unfit(Exception):
    """The server at the other end must not be read; the message is the reason, as a word."""


def has_replica() -> bool:
    """Returns whether ``DATABASE_REPLICA_URL`` is set."""
    return ALIAS in connections.settings


def find_position() -> int:
    """Returns a position in the primary's log behind all that is committed now.

    If the primary does not tell, no replica ever reaches what is returned.
    """
    try:
        with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
            cursor.execute(_FIND_POSITION)
            return int(cursor.fetchone()[0])
    except Error:
        return _UNREACHED


def wait_for_replica() -> None:
    """Waits until it is known whether the replica may be read, for a command; at most seconds."""
    if has_replica():
        watch.wait_for_check()


def answer(function: Callable[[], Result], *, after: int = 0) -> Result:
    """Calls a function that only reads, on the replica if that is fresh, else on the primary.

    ``after`` is a position that the replica must have reached. In a transaction, which may have
    written or locked, the function reads there.
    """
    connection = connections[DEFAULT_DB_ALIAS]
    if not has_replica() or connection.in_atomic_block or connection.alias == ALIAS:
        return function()
    reason = watch.find_problem(after)
    if reason is None:
        try:
            with _reading_replica(after):
                found = function()
        except _Unfit as exc:
            reason = str(exc)
        except Error as exc:
            reason = "error"
            logger.warning("a read is repeated on the primary: %s", _first_line(exc))
            if isinstance(exc, OperationalError | InterfaceError) and _is_lost(exc):
                watch.give_up()
        else:
            _READS.labels("replica", "").inc()
            return found
    _READS.labels("primary", reason).inc()
    return function()


def read(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Lets a function that only reads do so on the replica, if that is fresh."""

    @functools.wraps(function)
    def read_somewhere(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        return answer(lambda: function(*arguments, **named))

    return read_somewhere


@contextmanager
def _reading_replica(after: int) -> Iterator[None]:
    primary, replica = connections[DEFAULT_DB_ALIAS], connections[ALIAS]
    try:
        replica.ensure_connection()
        with watch.ending_with_replica(replica.connection):
            _require_fresh(replica, after)
            connections[DEFAULT_DB_ALIAS] = replica
            try:
                yield
            finally:
                connections[DEFAULT_DB_ALIAS] = primary
    finally:
        replica.close()


def _require_fresh(replica: Any, after: int) -> None:
    """Raises :class:`_Unfit` if this connection's server is behind the one that was checked."""
    with replica.cursor() as cursor:
        cursor.execute(_ASK_SERVER)
        is_standby, replayed = cursor.fetchone()
    if not is_standby:
        raise _Unfit("promoted")
    if (replayed or 0) < after:
        raise _Unfit("own_write")
    if (replayed or 0) < watch.find_position():
        raise _Unfit("lag")


def _is_lost(exc: BaseException) -> bool:
    """Returns whether the connection failed; recovery may also cancel a single query."""
    state: Any = getattr(exc.__cause__, "sqlstate", None)
    return state is None or state[:2] in ("08", "57", "58")


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
