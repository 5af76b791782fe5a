"""Translates the tools of a request to functions of chat, and the names of their calls back.

Chat has functions only. A tool that the caller runs becomes a function with the same arguments, a
custom tool one with the argument ``input``. A tool that a server would run is left out and named:
it is an offer to the model, so an answer without it is still an answer. If ``tool_choice`` demands
it, the request is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec

from catalog.dialects.shared.raw import decode_members, is_unset
from inference.requests.limits import MAX_TOOLS
from inference.requests.problems import convert_each, field_error, missing_fields
from inference.requests.responses.reading import read, read_members

# The longest name of a function in chat.
_NAME_LENGTH: Final = 128
_UNSAFE: Final = re.compile(r"[^a-zA-Z0-9_-]")
_UNSAFE_IN_HEADERS: Final = re.compile(r"[^a-zA-Z0-9_:.-]")
_DIRECT: Final = "direct"
MAX_NAMES: Final = 32
_MORE: Final = "more"
_SEARCH: Final = "tool_search"
_MODES: Final = frozenset(("auto", "none", "required"))
# The types of tools that the caller runs, and that cost a provider nothing but tokens.
_FUNCTIONS: Final = frozenset(("function", "custom"))
_CALLERS: Final = _FUNCTIONS | {"namespace", "local_shell", "shell", "apply_patch", _SEARCH}
_encode = msgspec.json.Encoder().encode
_decode_any = msgspec.json.decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _Typed(msgspec.Struct):
    type: str


class _Function(msgspec.Struct):
    name: Annotated[
        str,
        msgspec.Meta(min_length=1, max_length=_NAME_LENGTH, pattern=r"^[a-zA-Z0-9_-]+\Z"),
    ]
    description: str | None = None
    parameters: dict[str, msgspec.Raw] | None = None
    strict: bool | None = None
    allowed_callers: list[str] | None = None
    cache_control: dict[str, msgspec.Raw] | None = None


class _NestedFunction(msgspec.Struct):
    function: _Function
    cache_control: dict[str, msgspec.Raw] | None = None


class _Grammar(msgspec.Struct):
    type: str
    syntax: str | None = None
    definition: str | None = None


class _Custom(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    description: str | None = None
    format: _Grammar | None = None


class _Namespace(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    tools: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_TOOLS)]
    description: str | None = None


class _Search(msgspec.Struct):
    execution: str | None = None
    description: str | None = None
    parameters: dict[str, msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    type: str
    name: str | None = None
    namespace: str | None = None
    mode: str | None = None
    tools: list[msgspec.Raw] | None = None
    function: _Function | None = None


_typed = msgspec.json.Decoder(_Typed)
_function = msgspec.json.Decoder(_Function)
_nested = msgspec.json.Decoder(_NestedFunction)
_custom = msgspec.json.Decoder(_Custom)
_namespace = msgspec.json.Decoder(_Namespace)
_search = msgspec.json.Decoder(_Search)
_choice = msgspec.json.Decoder(str | _Choice)
_reference = msgspec.json.Decoder(_Choice)


def _object(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required.split()}


_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer"}
_TEXTS: Final = {"type": "array", "items": _TEXT}
_INPUT: Final = _object("input", input=_TEXT)
# Tools of the interface that have no schema of their own, because their models know them.
_KNOWN: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "local_shell": (
        "Runs a command on the caller's computer and returns its output.",
        _object(
            "command",
            command=_TEXTS,
            working_directory=_TEXT,
            timeout_ms=_NUMBER,
            env={"type": "object", "additionalProperties": _TEXT},
            user=_TEXT,
        ),
    ),
    "shell": (
        "Runs commands in a shell on the caller's computer and returns their outputs.",
        _object("commands", commands=_TEXTS, timeout_ms=_NUMBER, max_output_length=_NUMBER),
    ),
    "apply_patch": (
        "Creates, changes or deletes a file on the caller's computer. `diff` is a V4A diff.",
        _object(
            "operation",
            operation=_object(
                "type path",
                type={**_TEXT, "enum": ["create_file", "update_file", "delete_file"]},
                path=_TEXT,
                diff=_TEXT,
            ),
        ),
    ),
}


class CallerTool(msgspec.Struct, frozen=True):
    """A tool that the caller runs: its type and its name in this interface."""

    kind: str
    name: str
    namespace: str | None = None


class Tools:
    """The tools of one request: as functions of chat, as the answer repeats them, and by name."""

    def __init__(self) -> None:
        self.functions: dict[str, dict[str, Any]] = {}
        self.echoes: list[Any] = []
        self.by_name: dict[str, CallerTool] = {}
        self._left_out: dict[str, None] = {}
        # The functions by type, name and namespace, and the first one of each type.
        self._found: dict[tuple[str, str | None, str | None], str] = {}

    @property
    def left_out(self) -> tuple[str, ...]:
        """The names of what is not sent: a header has room for the first of them."""
        names = tuple(self._left_out)
        return names if len(names) <= MAX_NAMES else (*names[:MAX_NAMES], _MORE)

    def add_all(self, raws: Iterable[msgspec.Raw], place: str) -> None:
        convert_each(raws, self._add, place)

    def add_loaded(self, raws: Iterable[msgspec.Raw], place: str) -> None:
        """Adds tools that came inside the conversation; those that are known already stay."""
        for index, raw in enumerate(raws):
            self._add(raw, f"{place}[{index}]", is_repeated=True)

    def choose(self, raw: msgspec.Raw) -> Any:
        """Returns chat's ``tool_choice``, after it has narrowed the functions; ``None`` without."""
        if is_unset(raw):
            return None
        choice = read(_choice, raw, "tool_choice")
        if isinstance(choice, str):
            if choice not in _MODES:
                raise field_error("tool_choice", "Expected 'auto', 'none', 'required' or object.")
            return self._choose_mode(choice)
        if choice.type != "allowed_tools":
            name = self._find(choice, "tool_choice")
            return {"type": "function", "function": {"name": name}}
        if choice.mode not in ("auto", "required"):
            raise field_error("tool_choice.mode", "Expected 'auto' or 'required'.")
        allowed = set()
        for index, each in enumerate(choice.tools or ()):
            place = f"tool_choice.tools[{index}]"
            reference = read(_reference, each, place)
            if reference.type not in self._left_out:
                allowed.add(self._find(reference, place))
        self.functions = {
            name: function for name, function in self.functions.items() if name in allowed
        }
        return self._choose_mode(choice.mode)

    def leave_out(self, kind: str) -> None:
        """Names what is not sent; the name must fit into a header."""
        self._left_out[_make_safe(kind)] = None

    def _choose_mode(self, mode: str) -> str | None:
        if self.functions:
            return mode
        if mode == "required":
            left_out = f" These cannot run here: {', '.join(self.left_out)}."
            raise field_error(
                "tool_choice",
                f"Requires a call, but no tool is left.{left_out if self.left_out else ''}",
            )
        return None

    def _find(self, choice: _Choice, place: str) -> str:
        """Returns the function of a named tool; raises :class:`InvalidRequest` without one."""
        name = choice.name or (choice.function.name if choice.function else None)
        if choice.type in ("function", "custom") and name is None:
            raise missing_fields(f"{place}.name")
        function = self._found.get((choice.type, name, choice.namespace))
        if function is not None:
            return function
        # A tool of a namespace may also be named as the model names it.
        if name is not None and name in self.by_name and self.by_name[name].kind == choice.type:
            return name
        if choice.type in self._left_out:
            text = f"No endpoint here runs the tool {choice.type[:64]!r}. Choose another tool."
            raise field_error(f"{place}.type", text)
        text = f"The request has no tool {(name or choice.type)[:128]!r} of this type."
        raise field_error(place if name is None else f"{place}.name", text)

    def _add(self, raw: msgspec.Raw, place: str, *, is_repeated: bool = False) -> None:
        kind = read(_typed, raw, place).type
        if kind == "function":
            self._add_function(raw, place, None, is_repeated)
        elif kind == "custom":
            self._add_custom(raw, place, is_repeated)
        elif kind == "namespace":
            self._add_namespace(raw, place, is_repeated)
        elif kind in _KNOWN and not _runs_elsewhere(read_members(raw, place)):
            description, parameters = _KNOWN[kind]
            function = {"name": kind, "description": description, "parameters": parameters}
            if self._put(CallerTool(kind, kind), function, f"{place}.type", is_repeated):
                self.echoes.append({"type": kind})
        elif kind == _SEARCH and (search := read(_search, raw, place)).execution == "client":
            function = {"name": kind, "parameters": search.parameters or _object("")}
            if search.description:
                function["description"] = search.description
            if self._put(CallerTool(kind, kind), function, f"{place}.type", is_repeated):
                self.echoes.append(raw)
        else:
            self.leave_out(kind)

    def _add_function(
        self, raw: msgspec.Raw, place: str, namespace: str | None, is_repeated: bool
    ) -> None:
        if "function" in (members := read_members(raw, place)) and "name" not in members:
            # Some callers send the shape of chat.
            nested = read(_nested, raw, place)
            tool = nested.function
            tool.cache_control = tool.cache_control or nested.cache_control
        else:
            tool = read(_function, raw, place)
        callers = tool.allowed_callers
        if callers and _DIRECT not in callers:
            self.leave_out(tool.name)
            return
        function: dict[str, Any] = {"name": qualify(tool.name, namespace)}
        if tool.description:
            function["description"] = tool.description
        if tool.parameters is not None:
            function["parameters"] = tool.parameters
        if tool.strict is not None:
            function["strict"] = tool.strict
        is_new = self._put(
            CallerTool("function", tool.name, namespace),
            function,
            f"{place}.name",
            is_repeated,
            cache_control=tool.cache_control,
        )
        if is_new and namespace is None:
            echo = {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": bool(tool.strict),
            }
            self.echoes.append(echo)

    def _add_custom(self, raw: msgspec.Raw, place: str, is_repeated: bool) -> None:
        tool = read(_custom, raw, place)
        texts = [tool.description or ""]
        grammar = tool.format
        if grammar is not None and grammar.type == "grammar":
            if grammar.definition is None:
                raise missing_fields(f"{place}.format.definition")
            syntax = grammar.syntax or "lark"
            texts.append(f"`input` must match this {syntax} grammar:\n{grammar.definition}")
        elif grammar is not None and grammar.type != "text":
            raise field_error(f"{place}.format.type", "Expected 'text' or 'grammar'.")
        description = "\n\n".join(filter(None, texts))
        function = {"name": qualify(tool.name, None), "parameters": _INPUT}
        if description:
            function["description"] = description
        if self._put(CallerTool("custom", tool.name), function, f"{place}.name", is_repeated):
            self.echoes.append(raw)

    def _add_namespace(self, raw: msgspec.Raw, place: str, is_repeated: bool) -> None:
        tool = read(_namespace, raw, place)
        for index, each in enumerate(tool.tools):
            inner = f"{place}.tools[{index}]"
            kind = read(_typed, each, inner).type
            if kind == "function":
                self._add_function(each, inner, tool.name, is_repeated)
            else:
                self.leave_out(kind)
        self.echoes.append(raw)

    def _put(
        self,
        tool: CallerTool,
        function: dict[str, Any],
        place: str,
        is_repeated: bool,
        **members: Any,
    ) -> bool:
        """Stores a tool; returns whether it is new."""
        name = function["name"]
        if name in self.by_name:
            if is_repeated:
                return False
            raise field_error(place, f"Another tool has the name {name!r}.")
        if len(self.functions) >= MAX_TOOLS:
            raise field_error("tools", f"Expected array of length <= {MAX_TOOLS}.")
        self.by_name[name] = tool
        self._found[tool.kind, tool.name, tool.namespace] = name
        self._found.setdefault((tool.kind, None, None), name)
        extra = {key: value for key, value in members.items() if value is not None}
        self.functions[name] = {"type": "function", "function": function, **extra}
        return True


def _make_safe(kind: str) -> str:
    return _UNSAFE_IN_HEADERS.sub("_", kind)[:64]


def keep_callers_tools(raw: msgspec.Raw) -> tuple[msgspec.Raw, list[str]]:
    """Returns the tools of a list that the caller runs itself, and the types of the others."""
    dropped: list[str] = []
    return _keep(raw, _CALLERS, dropped), dropped


def keep_callers_choice(raw: msgspec.Raw) -> msgspec.Raw:
    """Returns a choice that names no tool which is left out, in the shape of this interface."""
    if bytes(memoryview(raw)[:1]) != b"{":
        return raw
    choice = _decode_members(raw)
    if is_unset(choice.get("tools", msgspec.Raw())):
        flat = _flatten(choice)
        return raw if flat is choice else msgspec.Raw(_encode(flat))
    return msgspec.Raw(_encode({**choice, "tools": _keep(choice["tools"], _CALLERS, [])}))


def _keep(raw: msgspec.Raw, kinds: frozenset[str], dropped: list[str]) -> msgspec.Raw:
    kept: list[Any] = []
    for each in _decode_list(raw):
        members = _decode_members(each)
        kind = _decode_any(members.get("type", b"null"))
        if kind not in kinds or _runs_elsewhere(members):
            dropped.append(_make_safe(str(kind)))
        elif kind == "namespace" and "tools" in members:
            kept.append({**members, "tools": _keep(members["tools"], _FUNCTIONS, dropped)})
        else:
            flat = _flatten(members)
            kept.append(each if flat is members else flat)
    return msgspec.Raw(_encode(kept))


def _flatten(members: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """Returns the members of a tool, or of its choice, that came in the shape of chat.

    They are the same object if they came in the shape of this interface.
    """
    nested = decode_members(members.get("function"))
    if nested is None or not is_unset(members.get("name", msgspec.Raw())):
        return members
    return {**{name: raw for name, raw in members.items() if name != "function"}, **nested}


def _runs_elsewhere(tool: Mapping[str, msgspec.Raw]) -> bool:
    """Returns whether a tool of this description runs in a container of the provider."""
    environment = _decode_any(tool.get("environment", b"null"))
    if environment is None:
        return False
    return not isinstance(environment, dict) or environment.get("type") != "local"


def qualify(name: str, namespace: str | None) -> str:
    """Returns a name that chat accepts, the same one for every request of a conversation."""
    full = name if namespace is None else f"{namespace}__{name}"
    safe = _UNSAFE.sub("_", full)
    if safe == full and len(full) <= _NAME_LENGTH:
        return full
    mark = hashlib.sha256(full.encode()).hexdigest()[:8]
    return f"{safe[: _NAME_LENGTH - 9]}_{mark}"
