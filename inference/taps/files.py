"""Reads the PDF files of requests in threads, before their admission."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from config.api.errors import Unavailable
from config.server.bodies import ClientGone
from config.server.bulkheads import Occupancy
from config.server.load.large_work import LargeWork
from inference.documents.parts import bound_scratch, read_files
from inference.faces.connection import CallerLate, Connection
from inference.requests.parsing import InferenceRequest

# How long a request waits for the text of its files, which takes up to 30 seconds of its turn.
_SECONDS: Final = 60.0
_WAIT: Final = "Too many PDF files of other requests are being read. Try again shortly."


class FileReader:
    """The threads that wait for the processes that read files: two, one of an organization."""

    def __init__(self, count: Callable[[int], None]) -> None:
        """Makes the threads; ``count`` counts the bytes that a running reading takes."""
        self._threads = LargeWork("file-reading", count)

    def close(self) -> None:
        self._threads.close()

    async def read(
        self, connection: Connection, request: InferenceRequest, occupancy: Occupancy
    ) -> InferenceRequest:
        """Returns the request with the text of its PDF files; a caller who leaves ends the wait.

        Raises :class:`CallerLate` at the end of its own time, :class:`InvalidRequest` for a file
        that is not read, :class:`Unavailable` if other files are read for too long, and the
        refusals of :meth:`Occupancy.reserve`.
        """
        owner, scratch = occupancy.organization_id, bound_scratch(request)
        try:
            connection.watch_caller()
            async with asyncio.timeout(_SECONDS):
                read = await self._threads.run(owner, read_files, request, scratch=scratch)
        except TimeoutError:
            raise Unavailable(_WAIT) from None
        except asyncio.CancelledError:
            if not connection.unwatch_caller():
                raise
            raise (CallerLate() if connection.is_late else ClientGone()) from None
        finally:
            connection.unwatch_caller()
        if (grown := len(read.fields["messages"]) - len(request.fields["messages"])) > 0:
            occupancy.reserve(grown)
        return read
