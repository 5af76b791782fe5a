"""Searches of the web that a chat request asks its provider for; pure.

A caller asks by a tool, in the words of OpenRouter or OpenAI, or by ``web_search_options``. A
search is an offer to the model, which decides whether and how often to search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec

from catalog.dialects.base import Untranslatable
from catalog.dialects.shared.raw import is_empty, is_null

WEB_SEARCH_OPTIONS: Final = "web_search_options"
# Fields that make a provider search the web.
SEARCH_PARAMETERS: Final = "search_parameters"
SEARCH_FIELDS: Final = frozenset((WEB_SEARCH_OPTIONS, SEARCH_PARAMETERS, "enable_search"))
# The members by which a search costs more or less; its price is that of the provider's usual one.
SEARCH_SETTINGS: Final = frozenset(("search_context_size", "search_type"))
# No provider searches as often for one answer, whatever bound the caller sets.
MOST_SEARCHES: Final = 1_000
# The name of the search among the tools of a model.
NAME: Final = "web_search"
# The engines that mean the provider's own search.
_OWN_ENGINES: Final = frozenset((b'"native"', b'"auto"'))
# The members of a place that searches start from.
_PLACE: Final = ("city", "region", "country", "timezone")


class SearchForm(NamedTuple):
    """The way in which a format asks its provider to search the web.

    ``fields`` are the fields that ask for it, and ``has_tools`` says that tools do. ``options`` are
    those that the format has for them; ``None`` where every search passes as it is.
    ``passes_fields`` says that the fields pass as they are, with options of any name.
    ``may_demand`` says that a request can force the model to search, and ``joins_functions`` that
    it may offer functions beside the search. ``result_tokens`` bounds the tokens that the results
    of one search add to the prompt.
    """

    fields: frozenset[str] = frozenset()
    options: frozenset[str] | None = frozenset()
    has_tools: bool = True
    passes_fields: bool = False
    may_demand: bool = True
    joins_functions: bool = True
    result_tokens: int = 0

    def may_say(
        self, name: str, options: Set[str], *, is_forced: bool, has_functions: bool
    ) -> bool:
        """Returns whether the format can express a search, by its name, with these options."""
        if name in SEARCH_FIELDS:
            if self.passes_fields or name not in self.fields:
                return name in self.fields
        elif not self.has_tools:
            return False
        if (is_forced and not self.may_demand) or (has_functions and not self.joins_functions):
            return False
        return self.options is None or options <= self.options


# OpenAI's format at a server that does not say what it knows, at one that knows the field, and at
# one that does not. OpenAI's own chat has no tool for a search, only the field.
PASSED: Final = SearchForm(SEARCH_FIELDS, None, passes_fields=True)
BY_FIELD: Final = SearchForm(SEARCH_FIELDS, frozenset(("user_location",)), passes_fields=True)
BY_NO_TOOL: Final = SearchForm(SEARCH_FIELDS, has_tools=False, passes_fields=True)
# Anthropic's ``web_search`` and Google's ``googleSearch``. The latter has no option, cannot be
# forced, and is refused beside functions by most models.
BY_TOOL: Final = SearchForm(
    frozenset((WEB_SEARCH_OPTIONS,)),
    frozenset(("max_uses", "allowed_domains", "excluded_domains", "user_location")),
    result_tokens=16_384,
)
BY_GROUNDING: Final = SearchForm(
    frozenset((WEB_SEARCH_OPTIONS,)),
    may_demand=False,
    joins_functions=False,
    result_tokens=16_384,
)
# A format without searches.
UNKNOWN: Final = SearchForm(has_tools=False)


@dataclass(frozen=True, slots=True)
class Search:
    """A search that the model may make: the domains to search, and the place to start from."""

    allowed_domains: tuple[str, ...] = ()
    excluded_domains: tuple[str, ...] = ()
    location: tuple[tuple[str, str], ...] = ()


_Members = dict[str, msgspec.Raw]
_Decoded = TypeVar("_Decoded")
_encode = msgspec.json.Encoder().encode
_decode_members = msgspec.json.Decoder(_Members).decode
_decode_tools = msgspec.json.Decoder(list[_Members]).decode
_decode_bound = msgspec.json.Decoder(Annotated[int, msgspec.Meta(ge=1, le=MOST_SEARCHES)]).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_domains = msgspec.json.Decoder(tuple[str, ...]).decode


def is_search(name: str) -> bool:
    """Returns whether a type of tool searches the web."""
    return name.removeprefix("openrouter:").startswith(NAME)


def find_options(raw: msgspec.Raw) -> frozenset[str]:
    """Returns the names of the options that a search sets, without its type and its settings.

    An engine that is the provider's own is no option.
    """
    try:
        members = _decode_members(raw)
    except msgspec.DecodeError:
        return frozenset()
    nested = _read_nested(members)
    names = {name for name, value in members.items() if not is_empty(value)}
    names -= SEARCH_SETTINGS | {"type", "parameters"}
    if members.get("name") == msgspec.Raw(b'"web_search"'):
        names.discard("name")
    names |= {name for name, value in nested.items() if not is_empty(value)}
    engines = {bytes(each["engine"]) for each in (members, nested) if "engine" in each}
    return frozenset(names - {"engine"} if engines <= _OWN_ENGINES else names)


def _read_nested(members: _Members) -> _Members:
    """Returns the options that OpenRouter's own tool has in ``parameters``."""
    nested = members.get("parameters")
    if nested is None or is_empty(nested):
        return {}
    try:
        return _decode_members(nested)
    except msgspec.DecodeError:
        return {"parameters": nested}


def read_search(fields: Mapping[str, Any]) -> Search | None:
    """Returns the search that the fields of a call ask for; ``None`` if they ask for none.

    Raises :class:`Untranslatable` for options of a wrong shape, and for searches that differ.
    """
    found = {_read_options(members) for members in _list_searches(fields)}
    if len(found) > 1:
        raise Untranslatable("tools: Ask for one search of the web; these differ.")
    return found.pop() if found else None


def _list_searches(fields: Mapping[str, Any]) -> list[_Members]:
    """Returns the members of each tool that searches, and those of ``web_search_options``."""
    searches = [tool for tool in _read_tools(fields) if _is_search_tool(tool)]
    options = fields.get(WEB_SEARCH_OPTIONS)
    raw = options if isinstance(options, msgspec.Raw) else msgspec.Raw(_encode(options))
    if bytes(raw) != b"{}" and is_empty(raw):
        return searches
    return [*searches, _read(_decode_members, WEB_SEARCH_OPTIONS, raw, "an object")]


def _read_tools(fields: Mapping[str, Any]) -> list[_Members]:
    tools = fields.get("tools")
    if tools is None:
        return []
    raw = tools if isinstance(tools, msgspec.Raw) else msgspec.Raw(_encode(tools))
    return [] if is_null(raw) else _read(_decode_tools, "tools", raw, "a list of objects")


def _is_search_tool(tool: _Members) -> bool:
    return is_search(_read_text("tools.type", tool.get("type", msgspec.Raw(b'""'))))


def _read_options(members: _Members) -> Search:
    nested = _read_nested(members)
    given = {**members, **nested}
    for each in (members, nested):
        _require_bound(each.get("max_uses", msgspec.Raw()))
    allowed, excluded = (
        _read_domains(name, given.get(name, msgspec.Raw()))
        for name in ("allowed_domains", "excluded_domains")
    )
    if allowed and excluded:
        raise Untranslatable("allowed_domains: Send it or excluded_domains, not both.")
    place = given.get("user_location", msgspec.Raw())
    return Search(allowed, excluded, () if is_empty(place) else tuple(_read_place(place)))


def _require_bound(raw: msgspec.Raw) -> None:
    """Raises :class:`Untranslatable` for a bound that no provider can be told as it is."""
    if is_null(raw):
        return
    _read(_decode_bound, "max_uses", raw, f"a number from 1 to {MOST_SEARCHES:,}")


def _read_domains(name: str, raw: msgspec.Raw) -> tuple[str, ...]:
    return () if is_empty(raw) else _read(_decode_domains, name, raw, "a list of domains")


def _read_place(raw: msgspec.Raw) -> list[tuple[str, str]]:
    """Returns a place, which chat has in ``approximate`` and a tool beside its type."""
    place = "user_location"
    members = _read(_decode_members, place, raw, "an object")
    if not is_empty(members.get("approximate", msgspec.Raw())):
        members |= _read(_decode_members, place, members["approximate"], "an object")
    members = {name: value for name, value in members.items() if not is_empty(value)}
    if _read_text(f"{place}.type", members.pop("type", msgspec.Raw(b'""'))) not in (
        "", "approximate",
    ):  # fmt: skip
        raise Untranslatable(f"{place}.type: Must be 'approximate'.")
    members.pop("approximate", None)
    if unknown := sorted(members.keys() - set(_PLACE)):
        raise Untranslatable(f"{place}.{unknown[0][:64]}: This provider has no such option.")
    return [
        (name, _read_text(f"{place}.{name}", members[name])) for name in _PLACE if name in members
    ]


def _read_text(place: str, raw: msgspec.Raw) -> str:
    return _read(_decode_text, place, raw, "a text")


def _read(
    decode: Callable[[msgspec.Raw], _Decoded], place: str, raw: msgspec.Raw, wanted: str
) -> _Decoded:
    try:
        return decode(raw)
    except (msgspec.DecodeError, RecursionError):
        raise Untranslatable(f"{place}: Expected {wanted}.") from None


def write_options(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields with ``web_search_options`` in the place of tools that search.

    OpenAI's chat has no such tool. Its models that have the field always search, so nothing is
    left to choose, except that no tool may be called. The caller's own field comes first.
    """
    tools = _read_tools(fields)
    kept = [tool for tool in tools if not _is_search_tool(tool)]
    written = {**fields}
    if len(kept) == len(tools):
        return written
    search = read_search({"tools": fields["tools"]}) or Search()
    choice = fields.get("tool_choice")
    if choice != msgspec.Raw(b'"none"') and is_null(written.get(WEB_SEARCH_OPTIONS, msgspec.Raw())):
        settings = next(tool for tool in tools if _is_search_tool(tool))
        options: dict[str, Any] = {
            name: settings[name] for name in sorted(SEARCH_SETTINGS & settings.keys())
        }
        if search.location:
            place = dict(search.location)
            options["user_location"] = {"type": "approximate", "approximate": place}
        written[WEB_SEARCH_OPTIONS] = options
    if kept:
        written["tools"] = kept
    else:
        for name in ("tools", "parallel_tool_calls"):
            written.pop(name, None)
    if not kept or _chooses_search(choice):
        written.pop("tool_choice", None)
    return written


def _chooses_search(choice: Any) -> bool:
    if not isinstance(choice, msgspec.Raw) or is_empty(choice):
        return False
    try:
        kind = _decode_members(choice).get("type", msgspec.Raw(b'""'))
        return is_search(_decode_text(kind))
    except msgspec.DecodeError:
        return False
