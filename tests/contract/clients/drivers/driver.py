"""What the table asks of every client."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

QUESTION: Final = "one two"
PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "number": {"type": "integer"}},
    "required": ["city", "number"],
    "additionalProperties": False,
}
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"body": {"type": "object"}},
    "required": ["body"],
}
WEATHER: Final = "12 degrees"


class Failure(NamedTuple):
    """The name of the exception that a client raises, and the HTTP status that it tells."""

    name: str
    status: int | None


class Driver:
    """Makes one client do what a column of the table says.

    ``server`` is the address of the service and ``key`` an inference key. Each method calls
    ``model`` once, without retries; ``tools`` sends the results of the calls too.
    """

    def __init__(self, server: str, key: str) -> None:
        self.server = server
        self.key = key

    @property
    def base_url(self) -> str:
        return f"{self.server}/api/v1"

    def plain(self, model: str) -> str:
        """Asks ``QUESTION`` and returns the text of the answer."""
        raise NotImplementedError

    def stream(self, model: str) -> list[str]:
        """Asks ``QUESTION`` and returns the pieces of the answer."""
        raise NotImplementedError

    def tools(self, model: str) -> list[Any]:
        """Offers a tool, returns the arguments of its calls, and sends back ``WEATHER``."""
        raise NotImplementedError

    def structured(self, model: str) -> Any:
        """Asks for an answer that fits ``SCHEMA`` and returns the decoded answer."""
        raise NotImplementedError

    def error(self, model: str) -> Failure:
        """Asks for an answer that fails, and returns how the client tells it."""
        try:
            self.plain(model)
        except Exception as exc:
            return Failure(type(exc).__name__, getattr(exc, "status_code", None))
        raise AssertionError("the client told no error")

    def cancel(self, model: str) -> None:
        """Leaves a stream after the first piece of its text."""
        raise NotImplementedError
