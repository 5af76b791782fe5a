"""Records which functions of the product one request runs on the loop of its worker."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from config.asgi import Application

ROOT: Final = Path(__file__).resolve().parents[3]
APPS: Final = ("accounts", "billing", "catalog", "config", "endpoints", "endusers", "inference")
START: Final = "/start-recording"
STOP: Final = "/stop-recording"
# Later versions of Python run these within the function that has them.
_COMPREHENSIONS: Final = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")


class Road(NamedTuple):
    """The functions that a request runs, by file, and how often a request calls one of them.

    ``switches`` counts the calls whose function stands in another file than that of the call
    before.
    """

    functions: dict[str, list[str]]
    calls: int
    switches: int

    def count_by_room(self) -> dict[str, list[int]]:
        """Returns the numbers of functions and files of each room."""
        found: dict[str, list[int]] = {}
        for path, names in self.functions.items():
            counts = found.setdefault("/".join(Path(path).parts[:2]), [0, 0])
            counts[0] += len(names)
            counts[1] += 1
        return dict(sorted(found.items()))


class RecordedApplication:
    """The application of one worker; requests to two more paths start and stop the recording.

    Duties are left out: the tasks that ran before the start, and what timers call.
    """

    def __init__(self) -> None:
        self._application = Application()
        self._calls: Counter[CodeType] = Counter()
        self._files: dict[str, str | None] = {}
        self._last = ""
        self._switches = 0
        self._duties: set[asyncio.Task[Any]] = set()
        self._base: FrameType | None = None
        self._is_duty = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path")
        if path not in (START, STOP):
            await self._application(scope, receive, send)
            return
        sys.setprofile(None)
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        if path == START:
            self._begin()

    def read_road(self, requests: int) -> Road:
        """Returns what nine of ten of these requests ran between start and stop.

        Others run in some requests alone, such as the functions whose result lasts for a second.
        """
        functions: dict[str, list[str]] = {}
        calls = 0
        for code, count in self._calls.items():
            each = int(count / requests + 0.1)
            path = self._files[code.co_filename]
            if each and path is not None:
                functions.setdefault(path, []).append(code.co_qualname)
                calls += each
        ordered = {path: sorted(set(names)) for path, names in sorted(functions.items())}
        return Road(ordered, calls, round(self._switches / requests))

    def _begin(self) -> None:
        self._calls.clear()
        self._last, self._switches = "", 0
        self._duties = asyncio.all_tasks()
        loop: Any = asyncio.get_running_loop()
        loop.call_later = self._wrap(loop.call_later)
        loop.call_at = self._wrap(loop.call_at)
        base = sys._getframe()
        while base.f_back is not None and base.f_code.co_filename != asyncio.runners.__file__:
            base = base.f_back
        self._base = base
        sys.setprofile(self._note)

    def _wrap(self, schedule: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a method of the loop whose timers are known as such when they are over."""

        def run(callback: Callable[..., object], *arguments: Any) -> None:
            self._is_duty = True
            callback(*arguments)

        def call(
            when: float, callback: Callable[..., object], *arguments: Any, **context: Any
        ) -> Any:
            return schedule(when, run, callback, *arguments, **context)

        return call

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        if frame.f_back is self._base:
            # The loop begins its next step.
            self._is_duty = asyncio.current_task() in self._duties
        code = frame.f_code
        name = code.co_filename
        if name not in self._files:
            self._files[name] = _find_path(name)
        path = self._files[name]
        if path is None or self._is_duty or code.co_name in _COMPREHENSIONS:
            return
        self._calls[code] += 1
        if path != self._last:
            self._last = path
            self._switches += 1


def _find_path(filename: str) -> str | None:
    """Returns the path of a file of the product below its root."""
    path = Path(filename)
    if not path.is_relative_to(ROOT):
        return None
    relative = path.relative_to(ROOT)
    return str(relative) if relative.parts[0] in APPS else None
