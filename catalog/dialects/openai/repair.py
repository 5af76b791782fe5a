"""Repairs choices that servers of OpenAI's format write in another way than its SDKs read them.

Nothing here runs for plain text. The parsers enter it when a decoded choice has a mark: tool calls,
a list where a text is due, no delta, or an index that is no number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from operator import itemgetter
from typing import Any, Final

import msgspec

from catalog.dialects.base import InvalidReply, decode_object
from catalog.dialects.openai.members import build_details, name_finish_reason, read_finish_reason
from catalog.dialects.shared.raw import decode_members, first_byte, is_empty, is_null
from catalog.dialects.shared.reasoning import REASONING_NAMES
from catalog.dialects.shared.replies import LATE_ARGUMENTS, choose_call_id

CALLS_REPAIRED: Final = "The tool calls were not written as OpenAI writes them; they were repaired."
FINISH_REPAIRED: Final = "The finish reason did not say that there are tool calls; it was replaced."
CONTENT_REPAIRED: Final = "The content is a list of parts; it became text and reasoning."
DELTA_MISSING: Final = "An event has a choice without a delta; it got an empty one."
MESSAGE_REPEATED: Final = "A whole message came after its pieces; its texts were left out."
ROLE_REPAIRED: Final = "A role is empty; it was repaired."
TEXT_MOVED: Final = "The text stands where the other kind of completions has it; it was moved."

_EMPTY_TEXT: Final = msgspec.Raw(b'""')
# The members that a whole message repeats after the deltas of its choice.
_SAID: Final = frozenset(
    ("content", *REASONING_NAMES, "reasoning_details", "refusal", "images", "audio")
)
_encode = msgspec.json.Encoder().encode
_decode_text = msgspec.json.Decoder(str).decode
_decode_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
# What tells whether an object of JSON is complete: escapes, quotes and brackets.
_TOKENS: Final = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)
_TEXT_TYPES: Final = ("text", "output_text", "input_text", "")
_THOUGHT_TYPES: Final = ("thinking", "reasoning", "reasoning_text", "summary_text")
# What arguments without members are written as.
_NO_ARGUMENTS: Final = frozenset(("", "{}", "null"))
# It also ends a call in the older member of this name, which passes as it is.
_OLD_CALL: Final = "function_call"


class _Call:
    """One tool call of a choice, as far as it has come."""

    __slots__ = ("_depth", "_is_escaped", "_is_in_text", "given_id", "given_index",
                 "has_arguments", "held", "is_complete", "is_ended", "name", "number", "start",
                 "texts")  # fmt: skip

    def __init__(self, number: int, given_id: str, given_index: int | None) -> None:
        self.number = number
        self.given_id = given_id
        self.given_index = given_index
        self.name = ""
        # While the call is held back: the members that begin it, its arguments, and the size in
        # bytes of the pieces that brought them.
        self.start: dict[str, Any] | None = None
        self.texts: list[str] = []
        self.held = 0
        # ``is_ended``: it got an empty object, since another call began before its arguments came.
        self.has_arguments = self.is_complete = self.is_ended = False
        self._depth = 0
        self._is_in_text = self._is_escaped = False

    def extend(self, arguments: str) -> None:
        """Follows the brackets of the arguments, which show whether they are complete."""
        if not arguments:
            return
        self.has_arguments = True
        for found in _TOKENS.finditer(arguments, int(self._is_escaped)):
            mark = found[0]
            if mark[0] == "\\":
                continue
            if mark == '"':
                self._is_in_text = not self._is_in_text
            elif not self._is_in_text:
                self._depth += 1 if mark in "{[" else -1
                self.is_complete = self._depth <= 0
        self._is_escaped = len(arguments) - len(arguments.rstrip("\\")) & 1 == 1


class _ChoiceState:
    """What has come of one choice of a stream."""

    __slots__ = ("_by_id", "_by_index", "_last", "begun", "ids", "is_finished", "open",
                 "whole")  # fmt: skip

    def __init__(self) -> None:
        # The last call with each id and with each index of the server's, and the last of all.
        self._by_id: dict[str, _Call] = {}
        self._by_index: dict[int | None, _Call] = {}
        self._last: _Call | None = None
        # The number of calls and of those whose arguments are complete, and the calls that may
        # still get their first arguments.
        self.begun = self.whole = 0
        self.open: list[_Call] = []
        self.ids: set[str] = set()
        self.is_finished = False

    def begin(self, given_id: str, index: int | None) -> _Call:
        """Returns a new call."""
        call = self._last = self._by_id[given_id] = self._by_index[index] = _Call(
            self.begun, given_id, index
        )
        self.begun += 1
        self.open.append(call)
        return call

    @property
    def held(self) -> int:
        return 0 if self._last is None else self._last.held

    def release(self) -> Iterator[dict[str, Any]]:
        """Yields the last call if it was held back until now."""
        call = self._last
        if call is not None and call.start is not None:
            function = {"name": call.name, "arguments": "".join(call.texts)}
            yield {"index": call.number, **call.start, "function": function}
            call.start, call.texts, call.held = None, [], 0

    def find(
        self, given_id: str, index: int | None, name: str, *, has_arguments: bool
    ) -> _Call | None:
        """Returns the call that a piece continues; ``None`` if the piece begins another one.

        Servers number parallel calls by position, from one, all as zero, or not at all, and repeat
        id and name in each piece or make a new id for each.
        """
        known = self._by_id.get(given_id) if given_id else None
        if known is not None:
            is_other = None not in (index, known.given_index) and index != known.given_index
            return None if is_other else known
        last = self._last if index is None else self._by_index.get(index)
        is_unnamed = last is not None and last.start is not None and not last.name
        if last is not None and name and is_unnamed and not (given_id and last.given_id):
            return last  # Some servers send the name after the id.
        if index is None or last is None:
            return None if given_id or name else self._last
        if not name:
            # A piece without a name has no other call to begin, whatever its id is.
            return last if not given_id or not last.is_complete else None
        if name != last.name:
            # A new id shows another call; without one it is the next piece of a name.
            is_piece = not given_id and not last.has_arguments and not has_arguments
            return last if is_piece else None
        if given_id and last.given_id and not last.has_arguments:
            return None
        return None if last.is_complete and (has_arguments or given_id) else last


class Repairs:
    """Repairs the choices of one stream, whose events continue each other."""

    __slots__ = ("_is_text", "_said", "_states")

    def __init__(self, said: set[int], *, is_text: bool) -> None:
        """``said`` are the choices whose deltas had output; the caller adds those of plain text."""
        self._is_text = is_text
        self._said = said
        self._states: dict[int, _ChoiceState] = {}

    def repair(self, raw: msgspec.Raw, notes: set[str]) -> list[dict[str, Any]]:
        """Returns the choices of one event as the SDKs read them."""
        choices: list[dict[str, Any]] = [*_decode_objects(raw)]
        for choice in choices:
            index = _read_index(choice.get("index"))
            choice["index"] = index = 0 if index is None else index
            state = self._states.setdefault(index, _ChoiceState())
            if not read_finish_reason(choice.get("finish_reason")):
                # Some servers write an empty one into each event.
                choice["finish_reason"] = None
            if not self._is_text:
                self._repair_delta(choice, state, notes)
            elif is_null(choice.get("text", msgspec.Raw())):
                self._repair_text(choice, notes)
        return choices

    def close(self) -> list[dict[str, Any]]:
        """Returns the ends of choices that have calls and no finish reason."""
        return [
            {
                "index": index,
                "delta": _end_calls({}, state, is_whole=True),
                "finish_reason": "tool_calls",
            }
            for index, state in self._states.items()
            if state.begun and not state.is_finished
        ]

    @property
    def held(self) -> int:
        """Returns about how many bytes the calls take that are held back."""
        return sum(state.held for state in self._states.values())

    def _repair_text(self, choice: dict[str, Any], notes: set[str]) -> None:
        """Gives a text completion its text, which some servers write in the words of chat.

        What chat has beside it, such as thoughts, joins the choice.
        """
        choice["text"] = ""
        for name in ("delta", "message"):
            part = decode_members(choice.pop(name, None)) or {}
            if part and name == "message" and choice["index"] in self._said:
                notes.add(MESSAGE_REPEATED)
                continue
            _repair_texts(part, notes)
            content = part.pop("content", None)
            if _is_said("content", content):
                self._said.add(choice["index"])
                choice["text"] = content
                notes.add(TEXT_MOVED)
            for member, value in part.items():
                if member != "role":
                    choice.setdefault(member, value)

    def _repair_delta(self, choice: dict[str, Any], state: _ChoiceState, notes: set[str]) -> None:
        given: Any = choice.get("delta")
        is_whole, has_said = first_byte(given) != b"{", choice["index"] in self._said
        if is_whole:
            given = choice.pop("message", None)
            if first_byte(given) != b"{" and first_byte(choice.get("text")) == b'"':
                given, is_whole = msgspec.Raw(b'{"content":%b}' % bytes(choice.pop("text"))), False
            notes.add(DELTA_MISSING if is_whole else TEXT_MOVED)
        delta: dict[str, Any] = _decode_members(given) if first_byte(given) == b"{" else {}
        if delta and is_whole and has_said:
            # Some servers repeat the whole message at the end of its choice.
            delta = {name: value for name, value in delta.items() if name not in _SAID}
            notes.add(MESSAGE_REPEATED)
        if "role" in delta and is_empty(delta["role"]):
            del delta["role"]
            notes.add(ROLE_REPAIRED)
        _repair_texts(delta, notes)
        calls = _read_calls(delta.pop("tool_calls", None))
        is_first = bool(delta) and not (is_whole or has_said)
        if is_first and any(_is_said(*member) for member in delta.items()):
            self._said.add(choice["index"])
        if pieces := [*_continue_calls(state, calls, notes)]:
            delta["tool_calls"] = pieces
        choice["delta"] = delta
        if choice["finish_reason"] is None:
            return
        state.is_finished = True
        if state.begun:
            choice["delta"] = _end_calls(delta, state, is_whole=not _is_broken(choice))
        are_whole = state.whole == state.begun
        _name_calls(choice, notes, has_calls=bool(state.begun), are_whole=are_whole)


def repair_whole(raw: msgspec.Raw, notes: set[str]) -> list[dict[str, Any]]:
    """Returns the choices of a whole answer of chat as the SDKs read them."""
    choices: list[dict[str, Any]] = [*_decode_objects(raw)]
    for position, choice in enumerate(choices):
        index = _read_index(choice.get("index"))
        choice["index"] = position if index is None else index
        if first_byte(choice.get("message")) != b"{":
            continue
        message: dict[str, Any] = _decode_members(choice["message"])
        if "role" in message and is_empty(message["role"]):
            message["role"] = "assistant"
            notes.add(ROLE_REPAIRED)
        _repair_texts(message, notes)
        ids: set[str] = set()
        given = _read_calls(message.pop("tool_calls", None))
        is_whole = not _is_broken(choice)
        calls = [_write_call(call, ids, is_whole=is_whole) for call in given]
        if calls != [{name: call[name] for name in call if name != "index"} for call in given]:
            notes.add(CALLS_REPAIRED)
        if calls:
            message["tool_calls"] = calls
        message.setdefault("content", None)
        choice["message"] = message
        are_whole = all(map(_has_object, given))
        _name_calls(choice, notes, has_calls=bool(calls), are_whole=are_whole)
    return choices


def _is_said(name: str, value: Any) -> bool:
    """Tells whether a member of a repaired delta is output, other than a call."""
    is_none = is_empty(value) if isinstance(value, msgspec.Raw) else not value
    return name in _SAID and not is_none


def _repair_texts(part: dict[str, Any], notes: set[str]) -> None:
    """Turns lists of parts into texts, and gives reasoning the names of this interface."""
    thoughts: list[str] = []
    content: Any = part.get("content")
    if first_byte(content) not in (b"", b'"', b"n"):
        texts: list[str] = []
        images: list[Any] = []
        for kind, value in _read_parts(_decode(content), "text"):
            {"text": texts, "thought": thoughts, "image": images}[kind].append(value)
        part["content"] = "".join(texts)
        if images:
            part["images"] = [*_read_list(part.get("images")), *images]
        notes.add(CONTENT_REPAIRED)
    reasoning: Any = "".join(thoughts)
    for name in REASONING_NAMES:
        value = part.get(name)
        if reasoning or value is None or is_empty(value):
            continue
        reasoning = value if first_byte(value) == b'"' else _join_thoughts(_decode(value))
    for name in REASONING_NAMES:
        if name in part and first_byte(part[name]) not in (b'"', b"n"):
            del part[name]
    if reasoning:
        part["reasoning"] = reasoning
        details = part.get("reasoning_details")
        if details is None or is_empty(details):
            part["reasoning_details"] = build_details(reasoning)


def _join_thoughts(value: Any) -> str:
    return "".join(text for kind, text in _read_parts(value, "thought") if kind != "image")


def _decode(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):  # a number out of range
        raise InvalidReply("A choice of the answer is malformed.") from None


def _read_parts(value: Any, kind: str) -> Iterator[tuple[str, Any]]:
    """Yields the texts, thoughts and pictures of a content; parts may hold parts themselves."""
    if isinstance(value, str):
        yield kind, value
    elif isinstance(value, list):
        for part in value:
            yield from _read_parts(part, kind)
    elif isinstance(value, dict):
        name = value.get("type", "")
        if name == "image_url" or (not name and "image_url" in value):
            place = value.get("image_url")
            place = {"url": place} if isinstance(place, str) else place
            yield "image", {"type": "image_url", "image_url": place}
            return
        inner = "thought" if name in _THOUGHT_TYPES else kind
        if name in _TEXT_TYPES or name in _THOUGHT_TYPES or name == "refusal":
            for member in ("text", name, "content", "summary"):
                if value.get(member):
                    yield from _read_parts(value[member], inner)
                    return
    elif value is not None:
        yield kind, _encode(value).decode()


def _read_list(raw: Any) -> list[Any]:
    value = _decode(raw) if first_byte(raw) == b"[" else []
    return value if isinstance(value, list) else []


def _read_index(raw: Any) -> int | None:
    """Reads a number that may be written as a text or a float."""
    value = _decode(raw) if isinstance(raw, msgspec.Raw) and raw else raw
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value < 1_000_000 else None


def _read_calls(raw: Any) -> list[dict[str, Any]]:
    """Decodes tool calls: a list, or one call without it; what is no object is left out."""
    value = _decode(raw) if isinstance(raw, msgspec.Raw) and raw else None
    calls = [value] if isinstance(value, dict) else value
    return [each for each in calls if isinstance(each, dict)] if isinstance(calls, list) else []


def _read_function(call: dict[str, Any]) -> tuple[str, Any]:
    """Returns the name and the arguments of a call, which some servers write without ``function``.

    The arguments are a text, an object, or ``None``.
    """
    function = call.get("function")
    members = function if isinstance(function, dict) else call
    name, arguments = members.get("name"), members.get("arguments")
    if arguments is None:
        arguments = members.get("parameters")
    return name if isinstance(name, str) else "", arguments


def _write_arguments(arguments: Any) -> str:
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return _encode(arguments).decode()


def _read_arguments(arguments: Any) -> str:
    """Returns the arguments of a whole call as text; some servers write their JSON twice."""
    text = _write_arguments(arguments)
    if text[:1] == '"':
        with suppress(msgspec.DecodeError):
            return _decode_text(text)
    return text


def _has_object(call: dict[str, Any]) -> bool:
    """Tells whether a whole call has an object as its arguments, so that nothing was cut off."""
    _, arguments = _read_function(call)
    text = _read_arguments(arguments)
    return decode_object(text.encode("utf-8", "surrogatepass")) is not None


def _beside(call: dict[str, Any]) -> dict[str, Any]:
    """Returns the further members of a call, such as the signature of its thoughts."""
    known = ("index", "id", "type", "function", "name", "arguments", "parameters")
    return {name: value for name, value in call.items() if name not in known and value is not None}


def _is_custom(call: dict[str, Any]) -> bool:
    return call.get("type") not in (None, "", "function") and "function" not in call


def _read_id(given: Any) -> str:
    return given if isinstance(given, str) else "" if given is None else str(given)


def _write_call(call: dict[str, Any], ids: set[str], *, is_whole: bool) -> dict[str, Any]:
    call_id = choose_call_id(_read_id(call.get("id")), ids)
    if _is_custom(call):
        return {**call, "id": call_id}
    name, arguments = _read_function(call)
    text = _read_arguments(arguments)
    text = "{}" if is_whole and text.strip() in _NO_ARGUMENTS else text
    function = {"name": name, "arguments": text}
    return {"id": call_id, "type": "function", "function": function, **_beside(call)}


def _continue_calls(
    state: _ChoiceState, pieces: list[dict[str, Any]], notes: set[str]
) -> Iterator[dict[str, Any]]:
    """Yields the pieces with one number for each call, its id and its name once.

    A call without a name is held back until its name comes, or another call begins.
    """
    begun = state.begun
    for position, piece in enumerate(pieces):
        given_id = _read_id(piece.get("id"))
        index = _read_index(piece.get("index"))
        if index is None and not given_id and len(pieces) > 1:
            index = position
        name, arguments = _read_function(piece)
        call = state.find(given_id, index, name, has_arguments=bool(arguments))
        if call is None:
            yield from state.release()
            yield from _end_earlier(state, begun, is_whole=bool(arguments))
            call = state.begin(given_id, index)
            call.start = {"id": choose_call_id(given_id, state.ids), "type": "function"}
            is_odd = call.start["id"] != given_id
        else:
            is_odd = name not in ("", call.name)
        if is_odd or call.number != piece.get("index"):
            notes.add(CALLS_REPAIRED)
        if _is_custom(piece):
            written, call.start = call.start or {}, None
            call.has_arguments = True
            yield {**piece, "index": call.number, **written, "type": piece["type"]}
            continue
        more = "" if name == call.name else name
        call.name += more
        text, was_complete = _write_arguments(arguments), call.is_complete
        if not (call.has_arguments or state.is_finished) and text.strip() in _NO_ARGUMENTS:
            # Some servers begin with an empty object; the end adds one if nothing follows.
            call.is_complete, text = bool(text.strip()), ""
        elif call.has_arguments and (call.is_complete or not isinstance(arguments, str | None)):
            # Some servers repeat the whole call at its end.
            if call.is_ended and text.strip() not in _NO_ARGUMENTS:
                raise InvalidReply(LATE_ARGUMENTS)
            text = ""
        call.extend(text)
        state.whole += call.is_complete - was_complete
        if call.start is None:
            members = (("name", more), ("arguments", text))
            function = {member: each for member, each in members if each}
            yield {"index": call.number, "function": function, **_beside(piece)}
            continue
        call.start |= _beside(piece)
        call.texts.append(text)
        if state.is_finished or call.name:
            yield from state.release()
        else:
            call.held += len(_encode(piece))


def _end_earlier(state: _ChoiceState, begun: int, *, is_whole: bool) -> Iterator[dict[str, Any]]:
    """Yields an empty object for each call without arguments before another one begins.

    Many clients take a call for finished as soon as the next one begins. Calls that one event
    begins without arguments may still get them in turn, so the end says that they have none.
    """
    if not state.open:
        return
    are_whole = is_whole or state.open[-1].is_complete
    if not are_whole and state.open[0].number >= begun:
        return
    ended = [call for call in state.open if are_whole or call.number < begun]
    state.open = state.open[len(ended) :]
    for call in ended:
        if not call.has_arguments:
            state.whole += not call.is_complete
            call.has_arguments = call.is_complete = call.is_ended = True
            yield {"index": call.number, "function": {"arguments": "{}"}}


def _end_calls(delta: dict[str, Any], state: _ChoiceState, *, is_whole: bool) -> dict[str, Any]:
    """Returns a delta with the call that was held back.

    If the choice is whole, each call without arguments gets an empty object: callers parse them.
    """
    calls = [*delta.get("tool_calls", ()), *state.release()]
    empty = [call for call in state.open if is_whole and not call.has_arguments]
    pieces = {each["index"]: each for each in reversed(calls)}
    for call in empty:
        call.has_arguments = True
        piece = pieces.get(call.number)
        if piece is None:
            calls.append({"index": call.number, "function": {"arguments": "{}"}})
        elif "function" in piece:
            piece["function"]["arguments"] = "{}"
    if is_whole:
        state.open = []
    return {**delta, "tool_calls": sorted(calls, key=itemgetter("index"))} if calls else delta


def _is_broken(choice: dict[str, Any]) -> bool:
    """Tells whether the server broke off a choice: a call without arguments lacks them then."""
    given = read_finish_reason(choice.get("finish_reason"))
    return given is not None and name_finish_reason(given) == "error"


def _name_calls(
    choice: dict[str, Any], notes: set[str], *, has_calls: bool, are_whole: bool
) -> None:
    """Makes the finish reason follow from the choice, and keeps the server's own beside it."""
    given = read_finish_reason(choice.get("finish_reason")) or None
    if given is None:
        choice["finish_reason"] = None
    named = name_finish_reason(given) if given else "stop"
    # Others are more exact. One that is not known may say that the calls are not whole.
    if has_calls and (named == "stop" or (named is None and are_whole)):
        choice["finish_reason"] = "tool_calls"
    elif given is None and choice.get("message", {}).get("content") not in (None, "", _EMPTY_TEXT):
        choice["finish_reason"] = "stop"
        return
    elif not has_calls and named == "tool_calls" and given != _OLD_CALL:
        choice["finish_reason"] = "stop"
    else:
        return
    notes.add(FINISH_REPAIRED)
    if given is not None and is_null(choice.get("native_finish_reason", msgspec.Raw())):
        choice["native_finish_reason"] = given
