"""Wire formats of providers, one module or package per dialect.

A dialect is a pure module with the shape of :class:`base.Dialect`: it turns a :class:`base.Call`
into an HTTP request, and bytes into a :class:`base.Reply` or into :class:`base.Chunk` objects. It
opens no connection and reads no setting. Replies and chunks of every dialect have the shape of
OpenAI's completion objects, which is the format of this gateway's callers.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from catalog.capabilities import UNDESCRIBED, Capabilities
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
_CLAUDE_DIALECTS: Final = {"azure": "azure_claude", "vertex": "vertex_claude"}


def get(name: str, capabilities: Capabilities = UNDESCRIBED) -> Dialect | None:
    """Returns the dialect of that name, or ``None`` for a name that this release does not support.

    Azure and Vertex have another dialect for models whose native format is Anthropic's.
    """
    if name in _CLAUDE_DIALECTS and capabilities.is_anthropic:
        return _load(_CLAUDE_DIALECTS[name])
    return _load(name) if name in _NAMES else None


@cache
def _load(name: str) -> Dialect:
    """Imports a dialect at its first use: the libraries of the clouds take ten megabytes."""
    return cast(Dialect, import_module(f"{__name__}.{name}"))


def check_credential(name: str, secret: Secret) -> None:
    """Raises :class:`credentials.InvalidCredential` when the secret lacks a host that it needs."""
    dialect = get(name)
    if dialect is not None:
        dialect.host(None, secret)
