"""How each kind of provider is spoken to.

A dialect is a pure module with the shape of :class:`base.Dialect`: a :class:`base.Call` in, an HTTP
request out; bytes in, a :class:`base.Reply` or :class:`base.Chunk` objects out. It opens no
connection and reads no setting. Whatever the provider speaks, what comes out has the shape of
OpenAI's completion objects, which is what callers of this service speak.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from catalog.dialects.base import Dialect
from config.credentials import Secret

if TYPE_CHECKING:
    from catalog.dialects import (
        anthropic,
        azure,
        azure_claude,
        bedrock,
        gemini,
        openai,
        vertex,
        vertex_claude,
    )

    _: list[Dialect] = [
        anthropic,
        azure,
        azure_claude,
        bedrock,
        gemini,
        openai,
        vertex,
        vertex_claude,
    ]

_NAMES: Final = frozenset(("openai", "anthropic", "gemini", "azure", "bedrock", "vertex"))
_OF_CLAUDE: Final = {"azure": "azure_claude", "vertex": "vertex_claude"}


def get(name: str, model: str = "") -> Dialect | None:
    """Returns the dialect of that name, or ``None`` while this release does not speak it.

    Two clouds speak another one to Claude: to what they, or whoever deployed it there, call
    ``claude…``.
    """
    if name in _OF_CLAUDE and model.startswith("claude"):
        return _imported(_OF_CLAUDE[name])
    return _imported(name) if name in _NAMES else None


@cache
def _imported(name: str) -> Dialect:
    """Imports a dialect when it is spoken first: those of clouds need ten megabytes of theirs."""
    return cast(Dialect, import_module(f"{__name__}.{name}"))


def check_credential(name: str, secret: Secret) -> None:
    """Raises :class:`credentials.InvalidCredential` for one that should say where, and does not."""
    dialect = get(name)
    if dialect is not None:
        dialect.host(None, secret)
