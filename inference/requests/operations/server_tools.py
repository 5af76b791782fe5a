"""The tools that a provider runs and bills, as a request asks for them.

A caller may offer them to the model or demand them. Only searches of the web can have a rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, Final

import msgspec

from catalog.dialects.shared.raw import is_empty, is_null
from catalog.dialects.shared.searches import (
    MOST_SEARCHES,
    SEARCH_FIELDS,
    SEARCH_PARAMETERS,
    SEARCH_SETTINGS,
    WEB_SEARCH_OPTIONS,
    SearchForm,
    find_options,
    is_search,
)
from inference.requests.operations.plugins import WebSearch
from inference.requests.problems import field_error

# Tools that the caller runs. Every other type is run by a provider.
_CALLERS: Final = frozenset(("function", "custom"))
# Fields that cause costs that no price covers, or that reach into the operator's account: they
# store answers there, or read the data sources of an Azure resource. They are sent with own
# credentials, and to endpoints that list them.
OPERATOR_FIELDS: Final = frozenset(("service_tier", "store", "data_sources", "dataSources"))
# A file of an account of the provider, which all tenants of the operator share.
FILE_ID: Final = "file_id"
# Fields that may set how long a provider keeps a cached prefix. Prices are for its usual lifetime.
LIFETIME_FIELDS: Final = frozenset(("prompt_cache_options", "prompt_cache_retention"))
# The fields that make a provider run, charge or store something.
PROVIDER_FIELDS: Final = SEARCH_FIELDS | OPERATOR_FIELDS | LIFETIME_FIELDS
_USUAL_LIFETIMES: Final = frozenset((None, "", "30m", "in_memory", "in-memory"))
_STANDARD_TIERS: Final = frozenset(("auto", "default", ""))
# The searches of one answer if the caller sets no bound; providers stop at fewer.
DEFAULT_SEARCHES: Final = 10


class ServerTools(msgspec.Struct, frozen=True):
    """What a request wants a provider to run.

    ``searches`` and ``others`` are the types of tools and the names of fields: those that search
    the web, and those that no price has a rate for. ``listed`` are fields that an endpoint may take
    at the operator's expense only if it lists them. ``demanded`` are those that must be run.
    ``dearer`` are settings that change what a provider charges: at the operator's expense an
    endpoint gets only those that it lists. ``most_searches`` bounds the searches of one answer.
    ``asked_by`` is the field that asks for a search, if it is not one of a provider. ``options``
    are the names of the options of each search; ``is_forced`` says that the model must search, and
    ``has_functions`` that it may also call functions of the caller.
    """

    searches: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()
    demanded: frozenset[str] = frozenset()
    dearer: frozenset[str] = frozenset()
    most_searches: int = 0
    asked_by: str | None = None
    options: Mapping[str, frozenset[str]] = {}
    is_forced: bool = False
    has_functions: bool = False

    def unsaid(self, form: SearchForm) -> frozenset[str]:
        """Returns the names of the searches that a format cannot express."""
        return frozenset(
            name
            for name in self.searches
            if not form.may_say(
                name,
                self.options.get(name, _NO_OPTIONS),
                is_forced=self.is_forced,
                has_functions=self.has_functions,
            )
        )

    def unpriced(self, *, has_search_rate: bool, listed: Set[str] | None) -> frozenset[str]:
        """Returns the names that an endpoint has no rate for; ``listed`` are its parameters."""
        names = self.others if has_search_rate else self.others | self.searches
        return names | self.listed.difference(listed or ())

    def unlisted(self, listed: Set[str] | None) -> frozenset[str]:
        """Returns the fields that an endpoint with this list of parameters would not get."""
        if listed is None or WEB_SEARCH_OPTIONS in listed:
            return frozenset()
        return self.searches & {WEB_SEARCH_OPTIONS}


NO_TOOLS: Final = ServerTools()
_NO_OPTIONS: Final[frozenset[str]] = frozenset()


class _Tool(msgspec.Struct):
    type: Any = None
    max_uses: Any = None
    search_context_size: Any = None
    search_type: Any = None
    parameters: Any = None

    @property
    def bound(self) -> Any:
        """The bound of its uses, which the tool of OpenRouter has among its parameters."""
        nested = self.parameters.get("max_uses") if isinstance(self.parameters, dict) else None
        return nested if self.max_uses is None else self.max_uses


class _Choice(msgspec.Struct):
    type: Any = None


class _Parameters(msgspec.Struct):
    mode: Any = None
    search_context_size: Any = None
    search_type: Any = None


class _Lifetime(msgspec.Struct):
    ttl: Any = None


_decode_tools = msgspec.json.Decoder(list[_Tool] | None).decode
_decode_choice = msgspec.json.Decoder(_Choice | str | None).decode
_decode_lifetime = msgspec.json.Decoder(_Lifetime | str | None).decode
_decode_parameters = msgspec.json.Decoder(_Parameters | bool | None).decode
_decode_value = msgspec.json.Decoder(Any).decode
_NOTHING: Final = msgspec.Raw()
_NULL: Final = msgspec.Raw(b"null")
_decode_raw_tools = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_type = msgspec.json.Decoder(_Choice).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def read_server_tools(
    fields: dict[str, msgspec.Raw],
    names: frozenset[str],
    search: WebSearch | None = None,
    *,
    has_file: bool = False,
) -> ServerTools:
    """Returns what a request wants a provider to run; ``names`` are the types of its tools.

    ``search`` is what the gateway's own fields ask for: it is added to the fields. ``has_file``
    says that the prompt names a file of the provider's account.
    """
    if search is not None and is_null(fields.get(WEB_SEARCH_OPTIONS, _NOTHING)):
        fields[WEB_SEARCH_OPTIONS] = search.options
    read = _Reader(has_file=has_file)
    if names:
        read.add_tools(fields)
    read.add_choice(_decode(_decode_choice, fields.get("tool_choice")))
    for name in SEARCH_FIELDS.intersection(fields):
        read.add_field(name, fields[name])
    listed = {name for name in OPERATOR_FIELDS.intersection(fields) if _costs(name, fields)}
    dearer = {name for name in LIFETIME_FIELDS.intersection(fields) if _lengthens(fields[name])}
    return ServerTools(
        frozenset(read.searches),
        frozenset(read.others),
        frozenset(listed),
        frozenset(read.demanded | listed),
        frozenset(read.dearer | dearer),
        read.most,
        None if search is None else search.field,
        read.options,
        read.is_forced,
        "function" in read.types,
    )


class _Reader:
    """Collects what the tools, the choice and the fields of one request ask a provider for."""

    def __init__(self, *, has_file: bool) -> None:
        self.searches: set[str] = set()
        self.others: set[str] = {FILE_ID} if has_file else set()
        self.demanded: set[str] = {*self.others}
        self.dearer: set[str] = set()
        self.options: dict[str, frozenset[str]] = {}
        self.types: set[str] = set()
        self.most = 0
        self.is_forced = False

    def add_tools(self, fields: dict[str, msgspec.Raw]) -> None:
        tools = _read(_decode_tools, "tools", fields.get("tools", _NULL)) or []
        raws = _decode_raw_tools(fields["tools"]) if tools else []
        self.types = {tool.type for tool in tools if isinstance(tool.type, str)}
        for tool, raw in zip(tools, raws, strict=True):
            if not isinstance(tool.type, str) or tool.type in _CALLERS:
                continue
            if not is_search(tool.type):
                self.others.add(tool.type)
                continue
            self._add_search(tool.type, raw)
            self.dearer |= _name_settings(tool)
            self.most += read_bound(tool.bound, MOST_SEARCHES, default=DEFAULT_SEARCHES)

    def add_choice(self, choice: Any) -> None:
        """Notes the tools that the choice demands: a named one, or all where none is a caller's."""
        named = choice.type if isinstance(choice, _Choice) else None
        if isinstance(named, str) and is_search(named) and self.searches:
            # Its names all mean the one search of a provider.
            self.demanded |= self.searches
            self.is_forced = True
        elif isinstance(named, str) and named in self.others:
            self.demanded.add(named)
        elif choice in ("required", "any") and self.types and self.types.isdisjoint(_CALLERS):
            self.demanded |= self.searches | self.others
            self.is_forced = bool(self.searches)

    def add_field(self, name: str, raw: msgspec.Raw) -> None:
        wish = _decode(_decode_parameters, raw)
        # Only xAI's field has a mode. To others it is an option like any, which ends no search.
        has_mode = name == SEARCH_PARAMETERS and isinstance(wish, _Parameters)
        mode = wish.mode if has_mode else None
        # What a provider makes of another shape, such as 1 or "true", is not known.
        if wish is False or mode == "off" or (wish is None and is_empty(raw)):
            return
        self._add_search(name, raw)
        if name == WEB_SEARCH_OPTIONS and isinstance(wish, _Parameters):
            self.dearer |= _name_settings(wish)
        self.most += DEFAULT_SEARCHES
        if mode != "auto":
            self.demanded.add(name)

    def _add_search(self, name: str, raw: msgspec.Raw) -> None:
        self.searches.add(name)
        self.options[name] = self.options.get(name, _NO_OPTIONS) | find_options(raw)


def _costs(name: str, fields: dict[str, msgspec.Raw]) -> bool:
    """Returns whether a field has a value other than the usual one; renames a tier's alias."""
    value = _read(_decode_value, name, fields[name])
    if name != "service_tier":
        return bool(value)
    if value is not None and not isinstance(value, str):
        raise field_error(name, "Expected str.")
    if value == "fast":
        fields[name] = msgspec.Raw(b'"priority"')
    return value is not None and value not in _STANDARD_TIERS


def _name_settings(search: _Tool | _Parameters) -> set[str]:
    return {name for name in SEARCH_SETTINGS if getattr(search, name) is not None}


def _lengthens(raw: msgspec.Raw) -> bool:
    """Returns whether a field asks for another lifetime than the usual one.

    A value of another shape is left to the upstream, which refuses it.
    """
    value = _decode(_decode_lifetime, raw)
    lifetime = value.ttl if isinstance(value, _Lifetime) else value
    return not isinstance(lifetime, str | None) or lifetime not in _USUAL_LIFETIMES


def read_bound(value: Any, most: int, *, default: int) -> int:
    """Returns the bound that a caller sets for a tool, or ``default`` without one.

    It is ``most`` if it is larger or no count: the hold must cover what the provider makes of it.
    """
    if not value:
        return default
    is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return min(value, most) if is_count else most


def leave_out(fields: dict[str, Any], names: frozenset[str]) -> None:
    """Removes the tools, the fields and the settings of these names from the fields of a call."""
    for name in names & (SEARCH_FIELDS | LIFETIME_FIELDS):
        fields.pop(name, None)
    settings = names & SEARCH_SETTINGS
    if settings and WEB_SEARCH_OPTIONS in fields:
        fields[WEB_SEARCH_OPTIONS] = _drop_members(fields[WEB_SEARCH_OPTIONS], settings)
    if "tools" not in fields or names <= SEARCH_FIELDS | LIFETIME_FIELDS:
        return
    kept = [raw for raw in _decode_raw_tools(fields["tools"]) if _type_of(raw) not in names]
    if settings:
        kept = [
            _drop_members(raw, settings) if is_search(_type_of(raw) or "") else raw for raw in kept
        ]
    if kept:
        fields["tools"] = msgspec.Raw(msgspec.json.encode(kept))
        return
    for name in ("tools", "tool_choice", "parallel_tool_calls"):
        fields.pop(name, None)


def keep_searches(fields: dict[str, Any]) -> None:
    """Removes all tools but searches, for an endpoint whose model knows no functions."""
    tools = _decode(_decode_raw_tools, fields.get("tools")) or []
    kept = [raw for raw in tools if is_search(_type_of(raw) or "")]
    if kept:
        fields["tools"] = msgspec.Raw(msgspec.json.encode(kept))
    else:
        fields.pop("tools", None)


def _drop_members(raw: msgspec.Raw, names: Set[str]) -> msgspec.Raw:
    """Returns an object without these members; a value of another shape as it is."""
    members = _decode(_decode_members, raw)
    if members is None or names.isdisjoint(members):
        return raw
    kept = {name: value for name, value in members.items() if name not in names}
    return msgspec.Raw(msgspec.json.encode(kept))


def _type_of(raw: msgspec.Raw) -> str | None:
    """Returns the type of a tool; ``None`` for one without, or with a type that is not text."""
    tool = _decode(_decode_type, raw)
    return tool.type if tool is not None and isinstance(tool.type, str) else None


def _read(decode: Any, name: str, raw: msgspec.Raw) -> Any:
    """Decodes a field; raises :class:`InvalidRequest`: what is not read would cost nothing."""
    try:
        return decode(raw)
    except msgspec.DecodeError:
        raise field_error(name, "Has a number that is out of range.") from None


def _decode(decode: Any, raw: msgspec.Raw | None) -> Any:
    """Decodes a member; ``None`` for one that has another shape, which the upstream refuses."""
    if raw is None or is_null(raw):
        return None
    try:
        return decode(raw)
    except msgspec.DecodeError:
        return None
