"""Runs content filters over prompts: blocks, redacts or flags their texts; pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from catalog.dialects.base import Operation
from config.api.errors import Forbidden, InvalidRequest, RequestTimeout, Unavailable
from inference.filters.definitions import Filters, Finding
from inference.requests.parsing import InferenceRequest

# The fields of a body that become the model's prompt.
_PROMPTS: Final = ("messages", "prompt", "suffix", "input")
# Members that name, locate or encode something and hold no text for the model.
_MARKS: Final = frozenset(
    (
        "role", "type", "id", "tool_call_id", "url", "image_url", "data", "file_data", "file_id",
        "signature", "encrypted_content",
    )
)  # fmt: skip
_FUNCTIONS: Final = frozenset(("function", "function_call"))
# Messages of any other role count as the user's, because an upstream may read them so.
_OTHER_ROLES: Final = frozenset(("system", "developer", "assistant", "tool"))
_NUMBERS: Final = frozenset((b"-", *(b"%d" % digit for digit in range(10))))
_MAX_DEPTH: Final = 32
_MAX_REDACTIONS: Final = 100_000
# Up to this size and time a prompt is screened on the event loop; a thread would take longer.
_AT_ONCE_BYTES: Final = 64 * 1024
_AT_ONCE_SECONDS: Final = 0.005
_SECONDS: Final = 10.0
_encode = msgspec.json.Encoder().encode
_decode_text = msgspec.json.Decoder(str).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class ContentBlocked(Forbidden):
    """A filter blocks the prompt; the error never quotes the matched text."""

    error_type = "content_policy_violation"

    def __init__(self, finding: Finding, message: str) -> None:
        metadata = {"guardrail_id": str(finding.guardrail_id), "label": finding.label}
        super().__init__(message, metadata=metadata)
        self.finding = finding


class TooSlow(RequestTimeout):
    message = "The content filters could not read the prompt in time."


class Unscreened(Unavailable):
    """Screening the prompt takes too long for the event loop; screen it in a thread and retry."""

    def __init__(self, filters: Filters) -> None:
        super().__init__()
        self.filters = filters


@dataclass(frozen=True, slots=True)
class Screened:
    """A request as it may be sent, the filters that screened it, and their findings."""

    filters: Filters
    request: InferenceRequest
    findings: tuple[Finding, ...] = ()


def screen_at_once(filters: Filters, request: InferenceRequest) -> Screened:
    """Screens a short prompt as :func:`screen` does; raises :class:`Unscreened` for a long one."""
    size = sum(len(memoryview(request.fields[name])) for name in _prompt_fields(request))
    if size * len(filters) > _AT_ONCE_BYTES:
        raise Unscreened(filters)
    try:
        return screen(filters, request, seconds=_AT_ONCE_SECONDS)
    except TooSlow:
        raise Unscreened(filters) from None


def screen(filters: Filters, request: InferenceRequest, *, seconds: float = _SECONDS) -> Screened:
    """Returns the request with redacted texts replaced, and the findings.

    Values without a redaction stay the same to the byte. Raises :class:`ContentBlocked` when a
    filter blocks the prompt, :class:`TooSlow` when the time is over, and :class:`InvalidRequest`
    when the prompt cannot be read as text.
    """
    for each in filters:
        if not each.recognisers:
            text = "A content filter of a guardrail cannot run any more; change its pattern."
            raise ContentBlocked(each.report(), text)
    screening = _Screening(filters, time.monotonic() + seconds)
    changed: dict[str, Any] = {}
    longer = 0
    try:
        for name in _prompt_fields(request):
            raw = request.fields[name]
            is_chat = name == "messages" and request.operation is Operation.CHAT
            value = screening.screen_messages(raw) if is_chat else screening.screen_prompt(raw)
            if value is not None:
                changed[name] = msgspec.Raw(value)
                longer += max(len(value) - len(memoryview(raw)), 0)
    except msgspec.DecodeError:
        raise InvalidRequest("The body is not valid JSON.") from None
    if changed:
        # The bound counts bytes of JSON, so a longer text raises it; a shorter one changes nothing.
        request = replace(
            request,
            fields={**request.fields, **changed},
            prompt_bound=request.prompt_bound + longer,
        )
    return Screened(filters, request, screening.findings())


def _prompt_fields(request: InferenceRequest) -> list[str]:
    return [name for name in _PROMPTS if name in request.fields]


class _Screening:
    """Screens one prompt until its deadline, and counts the findings."""

    def __init__(self, filters: Filters, deadline: float) -> None:
        self._all = list(enumerate(filters))
        self._unscoped = [item for item in self._all if not item[1].is_of_users_only]
        self._active = self._all
        self._deadline = deadline
        self._counts = dict.fromkeys(range(len(filters)), 0)
        self._redactions = 0

    def findings(self) -> tuple[Finding, ...]:
        return tuple(each.report(self._counts[i]) for i, each in self._all if self._counts[i])

    def screen_messages(self, raw: msgspec.Raw) -> bytes | None:
        """Screens chat messages; returns their replacement, ``None`` without a redaction."""
        messages: list[Any] = _decode_list(raw)
        is_changed = False
        for index, message in enumerate(messages):
            members = _decode_members(message)
            is_of_user = _decode_text(members["role"]) not in _OTHER_ROLES
            self._active = self._all if is_of_user else self._unscoped
            value = self._screen_object(members, "", depth=1)
            if value is not None:
                messages[index] = msgspec.Raw(value)
                is_changed = True
        return _encode(messages) if is_changed else None

    def screen_prompt(self, raw: msgspec.Raw) -> bytes | None:
        """Screens one or several prompts, which all count as the user's."""
        self._active = self._all
        if _first_byte(raw) == b"[":
            is_enforced = any(each.action != "flag" for _, each in self._all)
            if is_enforced and any(_first_byte(item) not in b'"{' for item in _decode_list(raw)):
                raise InvalidRequest(
                    "The content filters of a guardrail cannot read tokens; send text."
                )
        return self._screen_value(raw, "", depth=0)

    def _screen_value(
        self, raw: Any, name: str, *, depth: int, is_data: bool = False
    ) -> bytes | None:
        """Returns the replacement of a JSON value; ``None`` without a redaction.

        ``name`` is the name of the member that holds the value. With ``is_data`` everything counts
        as text, even the names of members and numbers.
        """
        if depth > _MAX_DEPTH:
            raise InvalidRequest(
                f"The content filters of a guardrail read no more than {_MAX_DEPTH} levels."
            )
        match _first_byte(raw):
            case b'"':
                text = _decode_text(raw)
                if name == "arguments" and not is_data:
                    replacement = self._screen_arguments(text, depth)
                else:
                    replacement = self._screen_text(text)
                return None if replacement is None else _encode(replacement)
            case b"{":
                return self._screen_object(_decode_members(raw), name, depth=depth, is_data=is_data)
            case b"[":
                items: list[Any] = _decode_list(raw)
                changed = {
                    index: msgspec.Raw(value)
                    for index, item in enumerate(items)
                    if (value := self._screen_value(item, name, depth=depth + 1, is_data=is_data))
                    is not None
                }
                return (
                    _encode([changed.get(index, item) for index, item in enumerate(items)])
                    if changed
                    else None
                )
            case lead if is_data and lead in _NUMBERS:
                label = self._screen_text(bytes(raw).decode())
                return None if label is None else _encode(label)
        return None

    def _screen_object(
        self, members: dict[str, Any], within: str, *, depth: int, is_data: bool = False
    ) -> bytes | None:
        """Returns the replacement of a JSON object; ``None`` without a redaction.

        ``within`` is the name of the member that holds the object.
        """
        changed: dict[str, Any] = {}
        for name, raw in members.items():
            label = None
            if is_data:
                label = self._screen_text(name)
            elif name in _MARKS or (name == "name" and within in _FUNCTIONS):
                continue
            value = self._screen_value(raw, name, depth=depth + 1, is_data=is_data)
            if value is not None or label is not None:
                changed[name] = (label or name, raw if value is None else msgspec.Raw(value))
        if not changed:
            return None
        return _encode(dict(changed.get(name, (name, raw)) for name, raw in members.items()))

    def _screen_arguments(self, text: str, depth: int) -> str | None:
        """Screens the arguments of a call, which are usually JSON and then stay JSON."""
        if not text.lstrip().startswith(("{", "[")):
            return self._screen_text(text)
        counts = dict(self._counts)
        try:
            value = self._screen_value(text.strip().encode(), "", depth=depth + 1, is_data=True)
        except (msgspec.DecodeError, RecursionError):
            self._counts = counts
            return self._screen_text(text)
        return None if value is None else value.decode()

    def _screen_text(self, text: str) -> str | None:
        """Returns the replacement of one text; ``None`` without a redaction."""
        raw = text.encode()
        cuts: list[tuple[int, int, int]] = []
        for order, each in self._active:
            self._require_time()
            is_found = False
            for span in each.find_spans(raw):
                self._require_time()
                if span is None:
                    continue
                if not is_found:
                    is_found = True
                    self._counts[order] += 1
                if each.action == "block":
                    raise ContentBlocked(
                        each.report(),
                        f"A guardrail blocks this content in the prompt: {each.label}.",
                    )
                if each.action == "flag":
                    break
                cuts.append((span[0], order, span[1]))
                self._redactions += 1
                if self._redactions > _MAX_REDACTIONS:
                    raise ContentBlocked(
                        each.report(), f"The prompt contains {each.label} too often to redact it."
                    )
        return self._redact(raw, cuts) if cuts else None

    def _require_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise TooSlow

    def _redact(self, raw: bytes, cuts: Sequence[tuple[int, int, int]]) -> str:
        """Replaces the matches; overlapping matches get one label, that of the first."""
        pieces: list[bytes] = []
        position = 0
        for start, order, end in sorted(cuts):
            if start >= position:
                pieces += (raw[position:start], _format_label(self._all[order][1].label))
            position = max(position, end)
        pieces.append(raw[position:])
        # A pattern may match single bytes and so cut a character in two.
        return b"".join(pieces).decode("utf-8", "replace")


def _format_label(label: str) -> bytes:
    return (label if label.startswith("[") and label.endswith("]") else f"[{label}]").encode()


def _first_byte(raw: Any) -> bytes:
    """Returns the first byte of a JSON value, which shows its type."""
    return bytes(memoryview(raw)[:1])
