"""Wire formats of providers, one module or package per dialect.

A dialect is a pure module with the shape of :class:`base.Dialect`: it turns a :class:`base.Call`
into an HTTP request, and bytes into a :class:`base.Reply` or into :class:`base.Chunk` objects. It
opens no connection and reads no setting. Replies and chunks of every dialect have the shape of
OpenAI's completion objects, which is the format of this gateway's callers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, cast

from catalog.abilities import DECLARABLE, Abilities
from catalog.capabilities import UNDESCRIBED, Capabilities, NativeFormat
from catalog.dialects.base import Dialect, NativeBody, Untranslatable
from catalog.dialects.openai.abilities import find_budget, has_word, read_wish
from catalog.dialects.shared import constraints, searches
from catalog.dialects.shared.constraints import Constraints
from catalog.dialects.shared.credentials import InvalidCredential
from catalog.dialects.shared.searches import SearchForm
from config.credentials import Secret
from config.local.bootstrap import install_command

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
        anthropic, azure, azure_claude, bedrock, gemini, openai, vertex, vertex_claude,
    ]  # fmt: skip

_NAMES: Final = frozenset(("openai", "anthropic", "gemini", "azure", "bedrock", "vertex"))
# The dialects whose models of Anthropic are served in Anthropic's format.
_CLAUDE_CLOUDS: Final = frozenset(("azure", "bedrock", "vertex"))
# The dialects of servers that may speak OpenAI's Responses.
_RESPONSES_DIALECTS: Final = frozenset(("openai", "azure"))
# The clouds that know a part of Anthropic's format alone.
_PARTIAL: Final = frozenset(("bedrock", "vertex"))
# The dialects into whose format a chat is translated. It knows no tools but functions of the caller
# and, apart from Bedrock's, a search of the web.
_TRANSLATED: Final = frozenset(("anthropic", "bedrock", "gemini"))
# The parameters of a chat that every other format has, and those that single ones have besides.
_SENT: Final = frozenset((
    "temperature", "top_p", "max_tokens", "max_completion_tokens", "stop", "tools", "tool_choice",
    "response_format", "structured_outputs", "reasoning", "reasoning_effort",
))  # fmt: skip
_SENT_BESIDES: Final = {
    "anthropic": frozenset(("top_k", "parallel_tool_calls", "web_search_options")),
    "bedrock": frozenset[str](),
    "gemini": frozenset(
        ("top_k", "seed", "frequency_penalty", "presence_penalty", "web_search_options")
    ),
}
_CLAUDE_DIALECTS: Final = {"azure": "azure_claude", "vertex": "vertex_claude"}
# The package that a dialect needs, which the extra of the dialect's name installs.
_PACKAGES: Final = {"bedrock": "botocore", "vertex": "google.auth"}


def get(name: str, capabilities: Capabilities = UNDESCRIBED) -> Dialect | None:
    """Returns the dialect of that name; ``None`` if this installation does not support it.

    Azure and Vertex have another dialect for models whose native format is Anthropic's.
    """
    if name not in _NAMES or missing_extra(name) is not None:
        return None
    return _load(_CLAUDE_DIALECTS[name] if _is_claude(name, capabilities) else name)


@cache
def missing_extra(name: str) -> str | None:
    """Returns the extra that a dialect needs and this installation lacks; ``None`` if none."""
    package = _PACKAGES.get(name)
    if package is None:
        return None
    try:
        is_installed = find_spec(package) is not None
    except ModuleNotFoundError:  # of the parent package
        is_installed = False
    return None if is_installed else name


def describe_missing_extra(name: str) -> str | None:
    """Returns the sentence that says what a dialect lacks here; ``None`` if it lacks nothing."""
    extra = missing_extra(name)
    if extra is None:
        return None
    return (
        f"This installation of Causeway does not speak the dialect {name}: its operator must "
        f"install the extra, {install_command(extra)}, and start it again."
    )


def native_format(name: str, capabilities: Capabilities) -> NativeFormat | None:
    """Returns the format, other than chat, in which requests to a dialect may pass unchanged."""
    if name == "anthropic" or (name in _CLAUDE_CLOUDS and capabilities.is_anthropic):
        return NativeFormat.ANTHROPIC
    if name in _RESPONSES_DIALECTS and capabilities.has_responses:
        return NativeFormat.RESPONSES
    return None


def lacks_chat(name: str | None, capabilities: Capabilities) -> bool:
    """Returns whether a dialect serves the model in OpenAI's Responses alone."""
    return capabilities.native_format is NativeFormat.RESPONSES and name in _RESPONSES_DIALECTS


def has_server_tools(name: str | None, capabilities: Capabilities) -> bool:
    """Returns whether a request of chat can ask a dialect for any tool that the provider runs."""
    return not _is_translated(name, capabilities)


@cache
def unsent_parameters(name: str | None, capabilities: Capabilities) -> frozenset[str]:
    """Returns the parameters of a chat that a dialect lacks, whatever its endpoints list."""
    if name is None or not _is_translated(name, capabilities):
        return frozenset()
    sent = _SENT | _SENT_BESIDES["anthropic" if _is_claude(name, capabilities) else name]
    if name == "bedrock" and capabilities.is_anthropic:
        sent |= {"top_k"}
    return frozenset(DECLARABLE) - sent


def keep_sent(name: str, capabilities: Capabilities, parameters: Iterable[str]) -> list[str]:
    """Returns those of an endpoint's parameters that its dialect sends."""
    unsent = unsent_parameters(name, capabilities)
    return [each for each in parameters if each not in unsent]


def search_form(
    name: str | None, capabilities: Capabilities, listed: Set[str] | None
) -> SearchForm:
    """Returns how a request of chat asks a dialect for searches of the web.

    ``listed`` are the parameters that the endpoint lists, or ``None`` without a list.
    """
    if name == "bedrock":
        return searches.UNKNOWN
    if name == "anthropic" or _is_claude(name, capabilities):
        return searches.BY_TOOL
    if name == "gemini":
        return searches.BY_GROUNDING
    if listed is None:
        return searches.PASSED
    return searches.BY_FIELD if searches.WEB_SEARCH_OPTIONS in listed else searches.BY_NO_TOOL


def tells_thinking(
    name: str | None,
    capabilities: Capabilities,
    abilities: Abilities,
    listed: Set[str] | None,
    fields: Mapping[str, Any],
) -> bool:
    """Returns whether a provider is told of the thinking that a request of chat asks for, or
    refuses it; true where it asks for nothing.
    """
    try:
        wish = read_wish(fields)
    except Untranslatable:
        return True  # the dialect refuses it
    if wish.is_on is None:
        return True
    if name == "bedrock" and not capabilities.is_anthropic:
        # The common format has the effort alone.
        return wish.effort not in (None, "none")
    return _is_translated(name, capabilities) or has_word(wish, abilities.reasoning, listed)


def find_thinking_budget(
    name: str | None,
    capabilities: Capabilities,
    abilities: Abilities,
    listed: Set[str] | None,
    fields: Mapping[str, Any],
) -> int | None:
    """Returns the most tokens of a thought that a provider is told of; ``None`` without a number.

    ``fields`` are those of a request of chat that the dialect gets. Other formats than OpenAI's
    count thoughts towards the bound of an answer, so their numbers bound nothing beside it.
    """
    if _is_translated(name, capabilities):
        return None
    return find_budget(fields, abilities.reasoning, listed)


def _is_translated(name: str | None, capabilities: Capabilities) -> bool:
    """Returns whether a dialect puts requests of chat into another format."""
    return name in _TRANSLATED or _is_claude(name, capabilities)


def _is_claude(name: str | None, capabilities: Capabilities) -> bool:
    """Returns whether a cloud serves the model in Anthropic's format, by a dialect of its own."""
    return name in _CLAUDE_DIALECTS and capabilities.is_anthropic


def speaks(name: str | None, capabilities: Capabilities, native: NativeBody) -> bool:
    """Returns whether a dialect serves all of a request in its caller's own format."""
    if name is None or native_format(name, capabilities) is not native.format:
        return False
    return name not in _PARTIAL or name in native.clouds


def constraints_of(name: str | None, capabilities: Capabilities) -> Constraints:
    """Returns what a dialect's targets accept of names."""
    if name == "anthropic" or _is_claude(name, capabilities):
        return constraints.ANTHROPIC
    return constraints.GEMINI if name == "gemini" else constraints.OPENAI


def get_native(name: str, capabilities: Capabilities) -> Dialect | None:
    """Returns the dialect that relays requests in the format of :func:`native_format`."""
    kind = native_format(name, capabilities)
    if kind is None:
        return None
    is_anthropic = kind is NativeFormat.ANTHROPIC
    module: Any = _load(_CLAUDE_DIALECTS.get(name, name) if is_anthropic else name)
    native: Dialect = module.native
    return native


@cache
def _load(name: str) -> Dialect:
    """Imports a dialect at its first use: the libraries of the clouds take ten megabytes."""
    return cast(Dialect, import_module(f"{__name__}.{name}"))


def check_credential(name: str, secret: Secret) -> None:
    """Raises :class:`credentials.InvalidCredential` when the secret lacks a host that it needs.

    So it does when the dialect lacks a package here: nobody could say whether the secret is right.
    """
    if (problem := describe_missing_extra(name)) is not None:
        raise InvalidCredential(problem)
    dialect = get(name)
    if dialect is not None:
        dialect.host(None, secret)
