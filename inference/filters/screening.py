"""Screens requests with content filters: blocks, redacts or flags every text that is sent; pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from catalog.capabilities import NativeFormat
from catalog.dialects.base import NativeBody, Operation
from catalog.dialects.shared.raw import read_text
from config.api.errors import InvalidRequest
from inference.filters.definitions import Filters, Finding, are_compiled, work_of
from inference.filters.places import (
    BODIES,
    FIXED,
    MESSAGE,
    NATIVE_BODIES,
    PROMPTS,
    REPLACED,
    TEXT,
    Place,
)
from inference.filters.problems import ContentBlocked, TooLong, TooSlow, Unscreened
from inference.filters.reading import MAX_REDACTIONS, Reader, first_byte
from inference.requests.operations import ROWS
from inference.requests.parsing import InferenceRequest

# Messages of any other role count as the user's, because an upstream may read them so; and so does
# everything outside of messages.
_OTHER_ROLES: Final = frozenset(("system", "developer", "assistant", "tool"))
# Up to these sizes and this time requests are screened on the event loop: a thread takes longer.
# A byte takes a custom pattern up to 20 ns an instruction.
_AT_ONCE_BYTES: Final = 64 * 1024
_AT_ONCE_WORK: Final = 250_000
_AT_ONCE_SECONDS: Final = 0.005
_SECONDS: Final = 10.0
_SYSTEM_PROMPTS: Final = {NativeFormat.ANTHROPIC: "system", NativeFormat.RESPONSES: "instructions"}
_ROOM_BYTES: Final = 16 * 1024 * 1024
# While a text is read it is there in bytes, decoded, and anew; a match takes a few small objects.
_READING_COPIES: Final = 3
_MATCH_BYTES: Final = 256
_encode = msgspec.json.Encoder().encode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _Role(msgspec.Struct):
    role: str


class _Type(msgspec.Struct):
    type: Any = None


_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_type = msgspec.json.Decoder(_Type).decode
_decode_role = msgspec.json.Decoder(_Role).decode


@dataclass(frozen=True, slots=True)
class Screened:
    """A request as it may be sent, the filters that screened it, and their findings.

    ``growth`` is the number of bytes, at most, that it is longer than the request before.
    """

    filters: Filters
    request: InferenceRequest
    findings: tuple[Finding, ...] = ()
    growth: int = 0


class TimeSlice:
    """The time that filters may take of the event loop for one batch of requests, of any tenant."""

    def __init__(self, seconds: float = _AT_ONCE_SECONDS) -> None:
        self._left = seconds

    def screen(self, filters: Filters, request: InferenceRequest) -> Screened:
        """Screens a short request as :func:`screen` does.

        Raises :class:`Unscreened` for a long one, also if redactions make it long, and when the
        time is over.
        """
        size = measure(request)
        if not are_compiled(filters):
            raise Unscreened(filters)
        is_long = size * len(filters) > _AT_ONCE_BYTES or size * work_of(filters) > _AT_ONCE_WORK
        if is_long or self._left <= 0:
            raise Unscreened(filters)
        started = time.monotonic()
        try:
            return screen(filters, request, _AT_ONCE_BYTES, seconds=self._left)
        except (TooSlow, TooLong):
            raise Unscreened(filters) from None
        finally:
            self._left -= time.monotonic() - started


def screen(
    filters: Filters,
    request: InferenceRequest,
    room: int = _ROOM_BYTES,
    *,
    seconds: float = _SECONDS,
) -> Screened:
    """Returns the request with redacted texts replaced, and the findings.

    Values without a redaction stay the same to the byte. Raises :class:`ContentBlocked` when a
    filter blocks the request, :class:`TooSlow` when the time is over, :class:`TooLong` when labels
    need more than ``room`` bytes, and :class:`InvalidRequest` when the request cannot be read as
    text.
    """
    for each in filters:
        if not each.recognisers:
            text = "A content filter of a guardrail cannot run any more; change its pattern."
            raise ContentBlocked(each.report(), text)
    deadline = time.monotonic() + seconds
    reader = Reader(filters, deadline, room)
    given = request
    native = request.native
    try:
        if native is not None and native.problem is not None:
            # Its chat form is sent to nobody.
            request = _with_native(request, _screen_native(reader, native))
        else:
            request = _screen_fields(reader, filters, request)
            request = _screen_options(reader, request)
            if native is not None:
                twin = Reader(filters, deadline, reader.room)
                request = _with_native(request, _screen_twin(twin, native))
                reader.room = twin.room
        if request.files:
            reader.where = "a file"
            reader.meet_unreadable()
    except msgspec.DecodeError:
        raise InvalidRequest("The body is not valid JSON.") from None
    except RecursionError:
        raise InvalidRequest("The body nests too deep for the content filters.") from None
    if reader.growth:
        # The bound counts bytes of JSON, so a longer text raises it; a shorter one changes nothing.
        request = replace(request, prompt_bound=request.prompt_bound + reader.growth)
    if request is not given and (allow := ROWS[request.operation].allowed) is not None:
        # What is sent is counted, not what was given.
        request = replace(request, allowed=allow(request.fields))
    return Screened(filters, request, reader.findings(), room - reader.room)


def measure(request: InferenceRequest) -> int:
    """Returns the bytes of all fields that may be sent."""
    return sum(memoryview(raw).nbytes for fields in _sent(request) for raw in fields.values())


def bound_scratch(filters: Filters, size: int, room: int) -> int:
    """Returns about the most bytes that screening a request of this size takes while it runs."""
    labels = [len(each.label.encode()) + 2 for each in filters if each.action == "redact"]
    matches = min(size, MAX_REDACTIONS) if labels else 0
    grown = min(matches * max(labels, default=0), room)
    return _READING_COPIES * (size + grown) + matches * _MATCH_BYTES


def _with_native(request: InferenceRequest, native: NativeBody | None) -> InferenceRequest:
    return request if native is request.native else replace(request, native=native)


def _screen_twin(reader: Reader, native: NativeBody) -> NativeBody | None:
    """Screens the native form of a request that has a screened chat form too.

    Returns ``None`` when it has a match that cannot be replaced in it: the chat form does without.
    The findings of the chat form count.
    """
    try:
        return _screen_native(reader, native)
    except ContentBlocked:
        return None


def _screen_native(reader: Reader, native: NativeBody) -> NativeBody:
    """Returns the native form of a request with redacted texts replaced."""
    places, replaced = NATIVE_BODIES[native.format], REPLACED[native.format]
    changed: dict[str, Any] = {}
    for name, raw in native.fields.items():
        if name in replaced:
            continue
        if name not in places:
            reader.where = "a field of the request"
            reader.read_name(name, TEXT)
        reader.where = f"`{name}`"
        reader.is_of_user = name != _SYSTEM_PROMPTS[native.format]
        if name == "messages":
            value = _screen_turns(reader, raw, places[name])
        elif name == "input" and first_byte(raw) == b"[":
            value = _screen_items(reader, raw, places[name])
        else:
            value = reader.read_value(raw, places.get(name, TEXT))
        if value is not None:
            changed[name] = msgspec.Raw(value)
    reader.is_of_user = True
    for name, text in native.headers:
        reader.where = f"the header {name}"
        reader.read_value(_encode(text), FIXED)
    return replace(native, fields={**native.fields, **changed}) if changed else native


def _screen_turns(reader: Reader, raw: msgspec.Raw, place: Place) -> bytes | None:
    """Screens the turns of a message; the result of a tool is not the user's text."""
    turns: list[Any] = _decode_list(raw)
    is_changed = False
    for index, turn in enumerate(turns):
        members: dict[str, Any] = _decode_members(turn)
        is_of_user = _decode_role(turn).role not in _OTHER_ROLES
        reader.is_of_user = is_of_user
        content = members.get("content")
        if is_of_user and first_byte(content or b"") == b"[":
            blocks: list[Any] = _decode_list(members.pop("content"))
            has_new_block = reader.read_items(
                blocks, place.inner("content"), depth=2, is_of_user=_is_no_result
            )
            reader.is_of_user = is_of_user
            rest = reader.read_value(_encode(members), place, depth=1)
            if has_new_block or rest is not None:
                kept = members if rest is None else _decode_members(rest)
                turns[index] = {**kept, "content": blocks}
                is_changed = True
        elif (value := reader.read_value(turn, place, depth=1)) is not None:
            turns[index] = msgspec.Raw(value)
            is_changed = True
    reader.is_of_user = True
    return _encode(turns) if is_changed else None


def _screen_items(reader: Reader, raw: msgspec.Raw, place: Place) -> bytes | None:
    """Screens the items of a response; calls, outputs and reasoning are not the user's text."""
    items: list[Any] = _decode_list(raw)
    is_changed = False
    for index, item in enumerate(items):
        role = _decode_members(item).get("role", b"null")
        reader.is_of_user = read_text(role) == "user"
        if (value := reader.read_value(item, place, depth=1)) is not None:
            items[index] = msgspec.Raw(value)
            is_changed = True
    reader.is_of_user = True
    return _encode(items) if is_changed else None


def _is_no_result(block: msgspec.Raw) -> bool:
    kind = _decode_type(block).type if first_byte(block) == b"{" else None
    return not (isinstance(kind, str) and kind.endswith("tool_result"))


def _sent(request: InferenceRequest) -> Iterator[Mapping[str, Any]]:
    """Yields all fields that may be sent: the body's, and the options of each provider."""
    yield request.fields
    if request.native is not None:
        yield request.native.fields
    yield from (request.preferences.options or {}).values()


def _screen_fields(reader: Reader, filters: Filters, request: InferenceRequest) -> InferenceRequest:
    prompts = PROMPTS[request.operation]
    changed: dict[str, Any] = {}
    for name, raw in request.fields.items():
        if name in prompts:
            reader.where = "the prompt"
            if name == "messages":
                value = _screen_messages(reader, raw)
            else:
                _refuse_tokens(filters, raw)
                value = reader.read_value(raw, prompts[name])
        else:
            value = _screen_field(reader, request.operation, name, raw)
        if value is not None:
            changed[name] = msgspec.Raw(value)
    return replace(request, fields={**request.fields, **changed}) if changed else request


def _screen_options(reader: Reader, request: InferenceRequest) -> InferenceRequest:
    """Screens ``provider.options``, whose members join the body at their provider."""
    changed: dict[str, dict[str, Any]] = {}
    for slug, fields in (request.preferences.options or {}).items():
        for name, raw in fields.items():
            value = _screen_field(reader, request.operation, name, raw)
            if value is not None:
                changed.setdefault(slug, dict(fields))[name] = msgspec.Raw(value)
    if not changed:
        return request
    options = {**(request.preferences.options or {}), **changed}
    return replace(request, preferences=replace(request.preferences, options=options))


def _screen_field(
    reader: Reader, operation: Operation, name: str, raw: msgspec.Raw
) -> bytes | None:
    """Returns the replacement of a field that is not the prompt; ``None`` without a redaction."""
    place = BODIES[operation].get(name)
    if place is None:
        reader.where = "a field of the request"
        reader.read_name(name, TEXT)
        place = TEXT
    reader.where = f"`{name}`"
    return reader.read_value(raw, place)


def _screen_messages(reader: Reader, raw: msgspec.Raw) -> bytes | None:
    messages: list[Any] = _decode_list(raw)
    is_changed = False
    for index, message in enumerate(messages):
        reader.is_of_user = _decode_role(message).role not in _OTHER_ROLES
        value = reader.read_value(message, MESSAGE, depth=1)
        if value is not None:
            messages[index] = msgspec.Raw(value)
            is_changed = True
    reader.is_of_user = True
    return _encode(messages) if is_changed else None


def _refuse_tokens(filters: Filters, raw: msgspec.Raw) -> None:
    """Raises :class:`InvalidRequest` for a prompt in tokens, unless filters only flag texts."""
    if first_byte(raw) != b"[" or all(each.action == "flag" for each in filters):
        return
    if any(first_byte(item) not in b'"{' for item in _decode_list(raw)):
        raise InvalidRequest("The content filters of a guardrail cannot read tokens; send text.")
