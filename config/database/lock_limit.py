"""Limits the waits for locks of statements that cannot have a limit of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex
from typing import Any, Final

import psycopg

_LOOK_SECONDS: Final = 0.5
_CANCEL: Final = """
SELECT pg_cancel_backend(a.pid)
FROM pg_stat_activity AS a INNER JOIN pg_locks AS l ON l.pid = a.pid
WHERE a.application_name = %s AND NOT l.granted
    AND l.waitstart < clock_timestamp() - make_interval(secs => %s)
"""


@contextmanager
def limiting_waits(connection: Any, seconds: float) -> Iterator[None]:
    """Cancels each statement of a connection of Django that waits longer than this for a lock.

    It is for statements that are no transactions, such as one that builds an index concurrently,
    on a connection through a pooler, where a setting of the session would be somebody else's. A
    second connection finds them by the name of the application, which poolers carry over.
    """
    name = f"causeway-migrate-{token_hex(4)}"
    is_over = threading.Event()
    given = connection.get_connection_params()
    watch = threading.Thread(target=_watch, args=(given, name, seconds, is_over), daemon=True)
    connection.close()
    options = connection.settings_dict["OPTIONS"]
    connection.settings_dict["OPTIONS"] = {**options, "application_name": name}
    watch.start()
    try:
        yield
    finally:
        is_over.set()
        watch.join()
        connection.settings_dict["OPTIONS"] = options
        connection.close()


def _watch(given: dict[str, Any], name: str, seconds: float, is_over: threading.Event) -> None:
    while not is_over.wait(_LOOK_SECONDS):
        try:
            with psycopg.connect(**given, autocommit=True) as observer:
                while not is_over.wait(_LOOK_SECONDS):
                    observer.execute(_CANCEL, [name, seconds])
        except psycopg.Error:
            # The statement that is watched has lost its server too, and fails by itself.
            continue
