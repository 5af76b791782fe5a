"""What guardrails look for in a prompt, and what they do where they find it; pure.

Every filter reads the prompt as the caller sent it: what one of them replaces is not hidden from
the next, so that adding a guardrail never loosens another.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

import msgspec

from accounts.patterns import InvalidPattern, compile_pattern
from catalog.dialects.base import Operation
from config.api.errors import Forbidden, InvalidRequest, RequestTimeout, Unavailable
from inference.filters.pii_patterns import BUILTINS, Recogniser
from inference.requests.parsing import InferenceRequest

# What of a body becomes the model's prompt.
_PROMPTS: Final = ("messages", "prompt", "suffix", "input")
# Members that name, place or encode something and hold no text for the model.
_MARKS: Final = frozenset(
    (
        "role", "type", "id", "tool_call_id", "url", "image_url", "data", "file_data", "file_id",
        "signature", "encrypted_content",
    )
)  # fmt: skip
_FUNCTIONS: Final = frozenset(("function", "function_call"))
# Any other role may be taken for the user's by an upstream.
_NOT_USERS: Final = frozenset(("system", "developer", "assistant", "tool"))
_NUMBERS: Final = frozenset((b"-", *(b"%d" % digit for digit in range(10))))
_CUSTOM: Final = "custom"
_MAX_DEPTH: Final = 32
_MAX_REDACTIONS: Final = 100_000
# So little is read in less time than handing it to a thread would take.
_AT_ONCE_BYTES: Final = 64 * 1024
_AT_ONCE_SECONDS: Final = 0.005
_SECONDS: Final = 10.0
_encode = msgspec.json.Encoder().encode
_decode_text = msgspec.json.Decoder(str).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class ContentBlocked(Forbidden):
    """A filter forbids what the prompt holds; never says what that is."""

    error_type = "content_policy_violation"

    def __init__(self, found: Finding, message: str) -> None:
        metadata = {"guardrail_id": str(found.guardrail_id), "label": found.label}
        super().__init__(message, metadata=metadata)
        self.finding = found


class TooSlow(RequestTimeout):
    message = "The content filters did not get through the prompt in time."


class Unscreened(Unavailable):
    """A prompt takes longer to read than others should wait for it: read it apart, then return."""

    def __init__(self, filters: Filters) -> None:
        super().__init__()
        self.filters = filters


@dataclass(frozen=True, slots=True)
class Finding:
    """What a filter found: in how many texts of the prompt, and what was done about it."""

    guardrail_id: UUID
    action: str
    label: str
    kind: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter of a guardrail; ``kind`` is the slug of a builtin, or ``custom``.

    One without recognisers can be run no more: nothing passes it.
    """

    guardrail_id: UUID
    action: str
    label: str
    kind: str
    pattern: str | None = None
    is_of_users_only: bool = False
    recognisers: tuple[Recogniser, ...] = field(default=(), compare=False, repr=False)

    def spans(self, text: bytes) -> Iterator[tuple[int, int] | None]:
        for recogniser in self.recognisers:
            yield from recogniser.spans(text)

    def finding(self, count: int = 1) -> Finding:
        return Finding(self.guardrail_id, self.action, self.label, self.kind, count)


Filters = tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Screened:
    """A request as it may travel, and what was found in it by which filters."""

    filters: Filters
    request: InferenceRequest
    findings: tuple[Finding, ...] = ()


def filters_of(
    guardrail_id: UUID,
    builtins: Iterable[Mapping[str, Any]] | None,
    custom: Iterable[Mapping[str, Any]] | None,
) -> Filters:
    """Returns the filters of a guardrail as its row has them, the builtin ones first."""
    return (
        *(
            Filter(
                guardrail_id,
                entry["action"],
                entry["label"],
                entry["slug"],
                is_of_users_only=entry.get("scan_scope") == "user_only",
                recognisers=BUILTINS.get(entry["slug"], ()),
            )
            for entry in builtins or ()
        ),
        *(
            Filter(
                guardrail_id,
                entry["action"],
                entry["label"] or "REDACTED",
                _CUSTOM,
                entry["pattern"],
                recognisers=_recognisers(entry["pattern"]),
            )
            for entry in custom or ()
        ),
    )


def screen_at_once(filters: Filters, request: InferenceRequest) -> Screened:
    """Does as :func:`screen` for what is soon read; raises :class:`Unscreened` for the rest."""
    size = sum(len(memoryview(request.fields[name])) for name in _read(request))
    if size * len(filters) > _AT_ONCE_BYTES:
        raise Unscreened(filters)
    try:
        return screen(filters, request, seconds=_AT_ONCE_SECONDS)
    except TooSlow:
        raise Unscreened(filters) from None


def screen(filters: Filters, request: InferenceRequest, *, seconds: float = _SECONDS) -> Screened:
    """Returns a request with the texts replaced that filters redact, and everything found.

    The values in which nothing is redacted stay as they are, to the byte. Raises
    :class:`ContentBlocked` for what a filter blocks, :class:`TooSlow` past the time, and
    :class:`InvalidRequest` for a prompt that cannot be read as text.
    """
    for one in filters:
        if not one.recognisers:
            text = "A content filter of a guardrail can be run no more; it must be changed."
            raise ContentBlocked(one.finding(), text)
    screening = _Screening(filters, time.monotonic() + seconds)
    changed: dict[str, Any] = {}
    longer = 0
    try:
        for name in _read(request):
            raw = request.fields[name]
            is_chat = name == "messages" and request.operation is Operation.CHAT
            value = screening.messages(raw) if is_chat else screening.prompt(raw)
            if value is not None:
                changed[name] = msgspec.Raw(value)
                longer += max(len(value) - len(memoryview(raw)), 0)
    except msgspec.DecodeError:
        raise InvalidRequest("The body is not valid JSON.") from None
    if changed:
        # The bound counts bytes of JSON: what grew is added, what shrank is left as it was.
        request = replace(
            request,
            fields={**request.fields, **changed},
            prompt_bound=request.prompt_bound + longer,
        )
    return Screened(filters, request, screening.findings())


def _read(request: InferenceRequest) -> list[str]:
    return [name for name in _PROMPTS if name in request.fields]


def _recognisers(pattern: str) -> tuple[Recogniser, ...]:
    # It compiled when it was written; another release of RE2 may judge otherwise.
    try:
        return (Recogniser(compile_pattern(pattern)),)
    except InvalidPattern:
        return ()


class _Screening:
    """The reading of one prompt: what was found so far, and until when it may go on."""

    def __init__(self, filters: Filters, deadline: float) -> None:
        self._all = list(enumerate(filters))
        self._not_users = [item for item in self._all if not item[1].is_of_users_only]
        self._active = self._all
        self._deadline = deadline
        self._counts = dict.fromkeys(range(len(filters)), 0)
        self._redactions = 0

    def findings(self) -> tuple[Finding, ...]:
        return tuple(one.finding(self._counts[i]) for i, one in self._all if self._counts[i])

    def messages(self, raw: msgspec.Raw) -> bytes | None:
        """Reads the messages of a chat; returns what replaces them, ``None`` where nothing does."""
        messages: list[Any] = _decode_list(raw)
        is_changed = False
        for index, message in enumerate(messages):
            members = _decode_members(message)
            is_users = _decode_text(members["role"]) not in _NOT_USERS
            self._active = self._all if is_users else self._not_users
            value = self._object(members, "", depth=1)
            if value is not None:
                messages[index] = msgspec.Raw(value)
                is_changed = True
        return _encode(messages) if is_changed else None

    def prompt(self, raw: msgspec.Raw) -> bytes | None:
        """Reads a prompt, or several; all of them are the user's."""
        self._active = self._all
        if _first(raw) == b"[":
            is_enforced = any(one.action != "flag" for _, one in self._all)
            if is_enforced and any(_first(item) not in b'"{' for item in _decode_list(raw)):
                raise InvalidRequest(
                    "The content filters of a guardrail cannot read tokens; send text."
                )
        return self._value(raw, "", depth=0)

    def _value(self, raw: Any, name: str, *, depth: int, is_data: bool = False) -> bytes | None:
        """Returns what replaces a JSON value; ``None`` where nothing in it is replaced.

        ``name`` is that of the member whose value it is. In ``is_data`` everything is text, the
        names of members and numbers too.
        """
        if depth > _MAX_DEPTH:
            raise InvalidRequest(
                f"The content filters of a guardrail read no more than {_MAX_DEPTH} levels."
            )
        match _first(raw):
            case b'"':
                text = _decode_text(raw)
                if name == "arguments" and not is_data:
                    text_or_none = self._arguments(text, depth)
                else:
                    text_or_none = self._text(text)
                return None if text_or_none is None else _encode(text_or_none)
            case b"{":
                return self._object(_decode_members(raw), name, depth=depth, is_data=is_data)
            case b"[":
                items: list[Any] = _decode_list(raw)
                changed = {
                    index: msgspec.Raw(value)
                    for index, item in enumerate(items)
                    if (value := self._value(item, name, depth=depth + 1, is_data=is_data))
                    is not None
                }
                return (
                    _encode([changed.get(index, item) for index, item in enumerate(items)])
                    if changed
                    else None
                )
            case lead if is_data and lead in _NUMBERS:
                label = self._text(bytes(raw).decode())
                return None if label is None else _encode(label)
        return None

    def _object(
        self, members: dict[str, Any], within: str, *, depth: int, is_data: bool = False
    ) -> bytes | None:
        changed: dict[str, Any] = {}
        for name, raw in members.items():
            label = None
            if is_data:
                label = self._text(name)
            elif name in _MARKS or (name == "name" and within in _FUNCTIONS):
                continue
            value = self._value(raw, name, depth=depth + 1, is_data=is_data)
            if value is not None or label is not None:
                changed[name] = (label or name, raw if value is None else msgspec.Raw(value))
        if not changed:
            return None
        return _encode(dict(changed.get(name, (name, raw)) for name, raw in members.items()))

    def _arguments(self, text: str, depth: int) -> str | None:
        """Reads the arguments of a call: JSON, as a rule, which stays JSON."""
        if not text.lstrip().startswith(("{", "[")):
            return self._text(text)
        counts = dict(self._counts)
        try:
            value = self._value(text.strip().encode(), "", depth=depth + 1, is_data=True)
        except (msgspec.DecodeError, RecursionError):
            self._counts = counts
            return self._text(text)
        return None if value is None else value.decode()

    def _text(self, text: str) -> str | None:
        """Returns what replaces one text; ``None`` where nothing in it is replaced."""
        raw = text.encode()
        cuts: list[tuple[int, int, int]] = []
        for order, one in self._active:
            self._require_time()
            is_found = False
            for span in one.spans(raw):
                self._require_time()
                if span is None:
                    continue
                if not is_found:
                    is_found = True
                    self._counts[order] += 1
                if one.action == "block":
                    raise ContentBlocked(
                        one.finding(), f"A guardrail blocks what the prompt holds: {one.label}."
                    )
                if one.action == "flag":
                    break
                cuts.append((span[0], order, span[1]))
                self._redactions += 1
                if self._redactions > _MAX_REDACTIONS:
                    raise ContentBlocked(
                        one.finding(), f"The prompt holds {one.label} too often to replace it."
                    )
        return self._redacted(raw, cuts) if cuts else None

    def _require_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise TooSlow

    def _redacted(self, raw: bytes, cuts: Sequence[tuple[int, int, int]]) -> str:
        """Replaces what was found; of matches that overlap, the first one names them all."""
        pieces: list[bytes] = []
        position = 0
        for start, order, end in sorted(cuts):
            if start >= position:
                pieces += (raw[position:start], _shown(self._all[order][1].label))
            position = max(position, end)
        pieces.append(raw[position:])
        # A pattern may ask for single bytes, and cut a character in two.
        return b"".join(pieces).decode("utf-8", "replace")


def _shown(label: str) -> bytes:
    return (label if label.startswith("[") and label.endswith("]") else f"[{label}]").encode()


def _first(raw: Any) -> bytes:
    """Returns the first byte of a JSON value, which tells its type."""
    return bytes(memoryview(raw)[:1])
