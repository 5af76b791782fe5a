"""The data plane's own connections to PostgreSQL: asynchronous, prepared, without the ORM."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import psycopg
from django.db import connection
from psycopg.rows import TupleRow

from config.errors import Unavailable

_DJANGO_ONLY: Final = frozenset(
    ("application_name", "connect_timeout", "context", "cursor_factory", "prepare_threshold")
)

# The statements are few and always the same: planning them anew costs more than running them.
_OPTIONS: Final = "-c plan_cache_mode=force_generic_plan -c jit=off -c enable_seqscan=off -c enable_bitmapscan=off"
_STATEMENT_SECONDS: Final = 5.0


class Store:
    """One connection, opened when it is needed and opened anew when it broke.

    Each statement commits by itself. Not for concurrent use: every island has its own.
    """

    def __init__(self) -> None:
        self._connection: psycopg.AsyncConnection[TupleRow] | None = None

    async def execute(
        self, query: str, parameters: Sequence[Any] | Mapping[str, Any]
    ) -> list[TupleRow]:
        """Runs one statement and returns its rows, if it has any.

        Raises :class:`Unavailable` when the database cannot be reached; a statement that was under
        way when the connection broke may or may not have been done.
        """
        for attempt in (1, 2):
            fresh = self._connection is None
            try:
                if self._connection is None:
                    self._connection = await self._connect()
                # A server that hangs answers nothing, not even to its own statement timeout.
                async with asyncio.timeout(_STATEMENT_SECONDS):
                    cursor = await self._connection.execute(query, parameters, prepare=True)
                    return await cursor.fetchall() if cursor.description else []
            except (psycopg.OperationalError, psycopg.InterfaceError, TimeoutError):
                await self.close()
                # An old connection may have died while it was idle: one new one is tried.
                if fresh or attempt == 2:
                    raise Unavailable from None
        raise AssertionError

    async def close(self) -> None:
        if self._connection is not None:
            broken, self._connection = self._connection, None
            await broken.close()

    @staticmethod
    async def _connect() -> psycopg.AsyncConnection[TupleRow]:
        parameters = {
            name: value
            for name, value in connection.get_connection_params().items()
            if name not in _DJANGO_ONLY
        }
        options = f"{parameters.pop('options', '')} {_OPTIONS}".strip()
        return await asyncio.wait_for(
            psycopg.AsyncConnection.connect(
                **parameters,
                options=options,
                application_name="causeway-data-plane",
                connect_timeout=2,
                autocommit=True,
                prepare_threshold=0,
            ),
            timeout=3,
        )
