"""Parses the members of answers: errors, usage and texts, and the choices of completions."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from catalog.dialects.audio import measure_base64
from catalog.dialects.base import InvalidReply, parse_error, read_count, read_usage
from catalog.dialects.shared.raw import first_byte, is_empty, is_null, measure_value
from catalog.dialects.shared.replies import UNSIGNED_FORMAT, split_writes
from catalog.pricing import Usage

Raw = TypeVar("Raw", bytes, msgspec.Raw)

NULL: Final = msgspec.Raw(b"null")


# The members of the details of a usage that count, and our names for them.
_PROMPT_DETAILS: Final = {
    "cached_tokens": "cached", "cache_write_tokens": "cache_write", "audio_tokens": "audio",
    "cache_creation_tokens": "cache_write", "cache_creation_input_tokens": "cache_write",
    "cache_read_tokens": "cached", "cache_read_input_tokens": "cached",
    "cached_content_tokens": "cached",
    "image_tokens": "image_prompt",
}  # fmt: skip
_COMPLETION_DETAILS: Final = {
    "reasoning_tokens": "reasoning", "image_tokens": "image_output",
    "thinking_tokens": "reasoning", "thoughts_tokens": "reasoning",
    "audio_tokens": "audio_output",
}  # fmt: skip
# Of the tokens written to the cache, those that stay for an hour.
_HOUR: Final = "ephemeral_1h_input_tokens"


# Other names that servers of this interface are known to send; any other name becomes "stop".
_REASONS: Final = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
    "error": "error",
    **dict.fromkeys(("function_call", "function_calls", "tool_call", "tool_use"), "tool_calls"),
    "max_tokens": "length",
    "model_length": "length",
    "max_output_tokens": "length",
    "model_context_window_exceeded": "length",
    "safety": "content_filter",
    "refusal": "content_filter",
    "sensitive": "content_filter",
    "recitation": "content_filter",
    "prohibited_content": "content_filter",
    "blocklist": "content_filter",
    **dict.fromkeys(("end_turn", "stop_sequence", "eos", "eos_token", "complete"), "stop"),
    # The answer was broken off: DeepSeek's two, Zhipu's, that of vLLM and SGLang, and Google's.
    **dict.fromkeys(
        (
            "insufficient_system_resource", "aborted", "network_error", "abort",
            "function_call_filter", "malformed_function_call", "unexpected_tool_call",
        ),
        "error",
    ),
}  # fmt: skip

# The reasons that fit every choice without tool calls. One with another may need a repair.
PLAIN_REASONS: Final = frozenset(("stop", "length", "content_filter", "error"))


class _Named(msgspec.Struct):
    """What a model writes of a call: its name, and its arguments or a custom tool's input."""

    name: msgspec.Raw = msgspec.Raw()
    arguments: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()


class _Call(_Named):
    function: _Named | None = None
    custom: _Named | None = None

    @property
    def written(self) -> list[msgspec.Raw]:
        parts = [part for part in (self, self.function, self.custom) if part is not None]
        return [raw for part in parts for raw in (part.name, part.arguments, part.input)]


_decode_calls = msgspec.json.Decoder(list[_Call]).decode
_decode_call = msgspec.json.Decoder(_Call).decode


def _list_written(
    raw: msgspec.Raw, decode: Callable[[msgspec.Raw], list[_Call] | _Call]
) -> list[msgspec.Raw]:
    """Returns what a model has written of its calls; all of those in a form that is not known."""
    try:
        called = decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return [raw]
    calls = called if isinstance(called, list) else [called]
    return [written for call in calls for written in call.written]


class _Sound(msgspec.Struct):
    """What a model says: its sound in Base64, and its words."""

    data: msgspec.Raw = msgspec.Raw()
    transcript: msgspec.Raw = msgspec.Raw()


_decode_sound = msgspec.json.Decoder(_Sound).decode
_SILENCE: Final = _Sound()


class Delta(msgspec.Struct):
    """The parts of a delta or message that count as output, and its role."""

    role: msgspec.Raw = msgspec.Raw()
    content: msgspec.Raw = msgspec.Raw()
    reasoning: msgspec.Raw = msgspec.Raw()
    reasoning_content: msgspec.Raw = msgspec.Raw()
    reasoning_text: msgspec.Raw = msgspec.Raw()
    thinking: msgspec.Raw = msgspec.Raw()
    refusal: msgspec.Raw = msgspec.Raw()
    tool_calls: msgspec.Raw = msgspec.Raw()
    function_call: msgspec.Raw = msgspec.Raw()
    images: msgspec.Raw = msgspec.Raw()
    audio: msgspec.Raw = msgspec.Raw()

    @property
    def sound(self) -> _Sound:
        return _decode_sound(self.audio) if first_byte(self.audio) == b"{" else _SILENCE

    @property
    def texts(self) -> list[msgspec.Raw]:
        """What the model has written: its texts, and the names and arguments of its calls.

        The words of its sound are apart.
        """
        # Servers that send two names of the reasoning repeat the same text.
        names = (self.reasoning, self.reasoning_content, self.reasoning_text, self.thinking)
        reasoning = next((raw for raw in names if raw and not is_empty(raw)), NULL)
        texts = [self.content, reasoning, self.refusal]
        if self.tool_calls and self.tool_calls != NULL:
            texts += _list_written(self.tool_calls, _decode_calls)
        if self.function_call and self.function_call != NULL:
            texts += _list_written(self.function_call, _decode_call)
        return texts

    @property
    def is_marked(self) -> bool:
        """Returns whether the part may need a repair: it has more than texts by their usual names.

        Reasoning in one text needs none; :func:`add_reasoning` copies it. An empty role does.
        """
        if len(self.role) == 2:
            return True
        texts = [raw for raw in (self.content, self.reasoning, self.reasoning_content) if raw]
        if any(memoryview(raw)[0] not in _TEXT_BYTES for raw in texts):
            return True
        calls = (self.tool_calls, self.function_call)
        rare = [raw for raw in (*calls, self.reasoning_text, self.thinking) if raw]
        if self.reasoning and self.reasoning_content:
            rare.append(self.reasoning_content)
        return any(not is_empty(raw) for raw in rare)


class Choice(msgspec.Struct):
    index: Any = None
    delta: Delta | None = None
    message: Delta | None = None
    text: msgspec.Raw = msgspec.Raw()
    finish_reason: str | None = None


_encode = msgspec.json.Encoder().encode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode


class _Pictured(msgspec.Struct):
    images: Any = None


class _PicturedChoice(msgspec.Struct):
    message: _Pictured | None = None
    delta: _Pictured | None = None


_decode_pictured = msgspec.json.Decoder(list[_PicturedChoice]).decode
decode_choices = msgspec.json.Decoder(list[Choice]).decode
_REASONING: Final = re.compile(rb'"(reasoning(?:_content)?)": ?("(?:[^"\\]|\\.)++")')
# The first bytes of a text and of null.
_TEXT_BYTES: Final = b'"n'


def parse_choices(fields: dict[str, msgspec.Raw]) -> list[Choice]:
    raw = fields.get("choices")
    if raw is None:
        raise InvalidReply("The answer has no choices.")
    try:
        choices = decode_choices(raw)
        if all(is_null(each.text) or memoryview(each.text)[0] == 0x22 for each in choices):
            return choices
        raise InvalidReply("A text of the answer is malformed.")
    except (msgspec.DecodeError, RecursionError):
        raise InvalidReply("The choices of the answer are malformed.") from None


def add_reasoning(choices: Raw) -> Raw:
    """Adds ``reasoning`` and ``reasoning_details`` where a server sends only a text.

    The choices have no mark (:attr:`Delta.is_marked`), so there is one text at most in each.
    """
    raw = bytes(choices)
    if b'"reasoning' not in raw or b'"reasoning_details"' in raw:
        return choices
    return type(choices)(_REASONING.sub(_write_reasoning, raw))


def _write_reasoning(found: re.Match[bytes]) -> bytes:
    text = found[2]
    name = b"" if found[1] == b"reasoning" else b',"reasoning":' + text
    return found[0] + name + b',"reasoning_details":' + _encode(build_details(msgspec.Raw(text)))


def build_details(text: Any) -> list[dict[str, Any]]:
    """Returns ``reasoning_details`` for a text, or for the raw JSON of one."""
    return [{"type": "reasoning.text", "text": text, "format": UNSIGNED_FORMAT, "index": 0}]


def add_long_reasoning(choices: msgspec.Raw) -> list[dict[str, Any]]:
    """Does the same for the whole choices of a long answer, which a substitution would copy."""
    given: list[dict[str, Any]] = [*_decode_objects(choices)]
    for choice in given:
        if first_byte(choice.get("message")) == b"{":
            message: dict[str, Any] = _decode_members(choice["message"])
            choice["message"] = message
            text = message.get("reasoning", message.get("reasoning_content"))
            if text is not None and not is_empty(text):
                message["reasoning"] = text
                message.setdefault("reasoning_details", build_details(text))
    return given


def find_finish_reason(choices: list[Choice]) -> str | None:
    for choice in choices:
        if choice.finish_reason:
            return choice.finish_reason
    return None


def normalize_finish_reasons(
    choices: msgspec.Raw | list[Any],
) -> tuple[Any, str | None, str | None]:
    """Returns choices with both names of each reason, then both names of the last reason.

    Choices that are not a list of objects are returned unchanged.
    """
    if isinstance(choices, msgspec.Raw):
        try:
            choices = [*_decode_objects(choices)]
        except msgspec.DecodeError:
            return choices, None, None
    reason = native = None
    for choice in choices:
        given = read_finish_reason(choice.get("finish_reason"))
        if given is not None:
            own = read_finish_reason(choice.get("native_finish_reason"))
            native = choice["native_finish_reason"] = given if own is None else own
            # Google's other interface adds its own name behind a colon.
            reason = choice["finish_reason"] = _REASONS.get(given.lower().partition(":")[0], "stop")
    return choices, reason, native


def name_finish_reason(native: str) -> str | None:
    """Returns our name of a provider's finish reason; ``None`` for one that is not known."""
    return _REASONS.get(native.lower().partition(":")[0])


def read_finish_reason(value: Any) -> str | None:
    """Returns a text that is raw JSON or not; ``None`` for any other value."""
    if isinstance(value, msgspec.Raw):
        return decode_text(value) if first_byte(value) == b'"' else None
    return value if isinstance(value, str) else None


def measure_choices(
    choices: list[Choice], measure: Callable[[msgspec.Raw], int] = measure_value
) -> tuple[int, int]:
    """Returns the sizes of some choices: of their texts, and of their sound.

    The first is the sum of a measure, bytes if not another; the second is in bytes of output.
    """
    size = sound = 0
    for choice in choices:
        part = choice.delta or choice.message
        texts = [] if part is None else part.texts
        if part is not None and part.audio:
            said = part.sound
            texts.append(said.transcript)
            sound += measure_base64(len(said.data) - 2) if first_byte(said.data) == b'"' else 0
        size += sum(measure(text) for text in (*texts, choice.text) if not is_null(text))
    return size, sound


def count_pictures(choices: Any) -> int:
    """Returns the number of pictures in the choices of an answer, raw or repaired."""
    counted = _decode_pictured(choices if isinstance(choices, msgspec.Raw) else _encode(choices))
    parts = [part for each in counted for part in (each.message, each.delta) if part is not None]
    return sum(len(part.images) for part in parts if isinstance(part.images, list))


def count_bytes(text: Any) -> int:
    """Returns the size of a text in bytes, or of the JSON of any other value."""
    if not isinstance(text, str):
        return len(_encode(text))
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


class ReportedUsage(msgspec.Struct):
    """The counts of an answer by the names of all servers and operations."""

    prompt_tokens: Any = None
    completion_tokens: Any = None
    total_tokens: Any = None
    prompt_tokens_details: Any = None
    completion_tokens_details: Any = None
    # The searches of the web, as OpenRouter, Perplexity and xAI report them.
    server_tool_use: Any = None
    server_tool_use_details: Any = None
    num_search_queries: Any = None
    num_sources_used: Any = None
    # What Perplexity's research counts beside prompt and completion; some servers count their
    # thoughts here.
    citation_tokens: Any = None
    reasoning_tokens: Any = None
    # The names of Responses and of Anthropic, which proxies pass on.
    input_tokens: Any = None
    output_tokens: Any = None
    input_tokens_details: Any = None
    output_tokens_details: Any = None
    # Those of transcriptions.
    input_token_details: Any = None
    seconds: Any = None
    prompt_audio_seconds: Any = None
    # Cached tokens at Moonshot and Together, DeepSeek, Mistral, and behind proxies.
    cached_tokens: Any = None
    prompt_cache_hit_tokens: Any = None
    num_cached_tokens: Any = None
    cache_read_tokens: Any = None
    cache_read_input_tokens: Any = None
    cache_creation_input_tokens: Any = None
    cache_creation: Any = None

    @property
    def hour_writes(self) -> Any:
        """The written tokens that stay for an hour, as LiteLLM and Anthropic tell them apart."""
        details = self.prompt_tokens_details or self.input_tokens_details
        inner = find_detail(details, "cache_creation_token_details")
        return find_detail(inner, _HOUR) or find_detail(self.cache_creation, _HOUR)

    @property
    def own_prompt(self) -> Any:
        """The prompt by its other name; Anthropic counts cached tokens beside it."""
        beside = (self.cache_read_input_tokens, self.cache_creation_input_tokens)
        counts = [read_count(each) for each in (self.input_tokens, *beside)]
        if counts[0] is None or not any(counts[1:]):
            return self.input_tokens
        return sum(each or 0 for each in counts)

    @property
    def searches(self) -> Any:
        """The count of searches that the provider reports; ``None`` without one."""
        for tools in (self.server_tool_use_details, self.server_tool_use):
            if isinstance(tools, dict):
                count = tools.get("web_search_requests")
                if count is not None:
                    return count
        if self.num_search_queries is not None:
            return self.num_search_queries
        return self.num_sources_used


class _Timings(msgspec.Struct):
    cache_n: Any = None
    prompt_n: Any = None
    predicted_n: Any = None


_decode_usage = msgspec.json.Decoder(ReportedUsage | None).decode
_decode_timings = msgspec.json.Decoder(_Timings | None).decode
decode_text: Final = msgspec.json.Decoder(str).decode


def decode_usage(raw: msgspec.Raw) -> ReportedUsage | None:
    """Returns a usage as it is reported; ``None`` for null and for what is no object.

    Members that no decoder takes, such as a number out of range, are left out.
    """
    try:
        return _decode_usage(raw)
    except (msgspec.DecodeError, RecursionError):
        kept = {}
    try:
        members = _decode_members(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    for name, value in members.items():
        with suppress(msgspec.DecodeError, RecursionError):
            kept[name] = msgspec.json.decode(value)
    return msgspec.convert(kept, ReportedUsage)


def find_detail(details: Any, name: str) -> Any:
    """Returns a count of some details; ``None`` where there are none."""
    return details.get(name) if isinstance(details, dict) else None


def raise_for_error(fields: dict[str, msgspec.Raw]) -> None:
    error = fields.get("error")
    if error is not None and error != NULL:
        raise parse_error(b'{"error":' + bytes(error) + b"}")


def raise_for_lone_error(fields: dict[str, msgspec.Raw]) -> None:
    """Raises :class:`ProviderFailure` for an object that is an error itself, as FastAPI's is."""
    kinds = (read_text(fields, "object"), read_text(fields, "type"))
    if "error" in kinds or "detail" in fields or ("message" in fields and "code" in fields):
        raise parse_error(_encode(fields))


def parse_usage(fields: dict[str, msgspec.Raw], *, completion: int | None = None) -> Usage | None:
    """Returns the usage; ``completion`` replaces the count that embeddings do not have."""
    raw = fields.get("usage")
    if raw is None:
        return None
    try:
        usage = _decode_usage(raw)
    except (msgspec.DecodeError, RecursionError):
        usage = decode_usage(raw)
    if usage is None:
        return None
    parts: dict[str, Any] = {}
    for details, names in (
        (usage.prompt_tokens_details or usage.input_tokens_details, _PROMPT_DETAILS),
        (usage.completion_tokens_details or usage.output_tokens_details, _COMPLETION_DETAILS),
    ):
        if isinstance(details, dict):
            for name, part in names.items():
                if name in details:
                    parts[part] = parts.get(part) or details[name]
            if isinstance(inner := details.get("cached_tokens_details"), dict):
                parts["audio_cached"] = inner.get("audio_tokens")
    if not parts.get("cached"):
        parts["cached"] = (
            usage.cached_tokens
            or usage.prompt_cache_hit_tokens
            or usage.num_cached_tokens
            or usage.cache_read_tokens
            or usage.cache_read_input_tokens
        )
    if written := parts.get("cache_write") or usage.cache_creation_input_tokens:
        parts |= {"cache_write": written, "cache_write_1h": usage.hour_writes}
    if (searches := usage.searches) is not None:
        parts["searches"] = searches
    if usage.citation_tokens is not None:
        parts["citations"] = usage.citation_tokens
        parts["research"] = usage.reasoning_tokens
    elif not parts.get("reasoning"):
        parts["reasoning"] = usage.reasoning_tokens
    prompt = usage.own_prompt if usage.prompt_tokens is None else usage.prompt_tokens
    made = usage.output_tokens if usage.completion_tokens is None else usage.completion_tokens
    made = made if completion is None else completion
    if not prompt or (not made and completion is None):
        prompt, made = _complete(prompt, made, usage.total_tokens)
    counted = read_usage(prompt, made, **parts)
    counted = split_writes(counted) if written else counted
    if counted is None or completion is not None:
        return counted
    total = usage.total_tokens
    if counted.reasoning:
        # Some servers do not count reasoning as part of the completion: the total shows it, or a
        # part that is more than the whole.
        beside = counted.completion + counted.reasoning
        if read_count(total) == counted.prompt + beside or counted.reasoning > counted.completion:
            return replace(counted, completion=beside)
    elif total is not None and total != counted.prompt + counted.completion:
        return _add_rest(counted, usage)
    return counted


def _add_rest(counted: Usage, usage: ReportedUsage) -> Usage:
    """Returns a usage with what its total alone shows: Google's thoughts, and Mistral's sound.

    A rest may be anything where the server tells its thoughts or its research, or where it counts
    parts of the prompt beside it.
    """
    rest = (read_count(usage.total_tokens) or 0) - counted.prompt - counted.completion
    if rest <= 0:
        return counted
    if usage.prompt_audio_seconds:
        return replace(counted, prompt=counted.prompt + rest, audio=counted.audio or rest)
    written = counted.cache_write + counted.cache_write_1h
    beside = (counted.cached, written, counted.cached + written, counted.audio)
    details = usage.completion_tokens_details or usage.output_tokens_details
    tells = (usage.reasoning_tokens, usage.citation_tokens, usage.searches)
    if details or rest in beside or any(each is not None for each in tells):
        return counted
    return replace(counted, completion=counted.completion + rest, reasoning=rest)


def _complete(prompt: Any, made: Any, total: Any) -> tuple[Any, Any]:
    """Returns both counts where one of them is missing or zero and the total is not."""
    whole, known = read_count(total), read_count(prompt or made)
    if not whole or known is None or prompt == made == 0:
        return prompt, made
    other = max(whole - known, 0)
    return (known, other) if prompt else (other, known)


def find_usage(fields: dict[str, msgspec.Raw]) -> Usage | None:
    """Returns the usage that stands elsewhere: Groq's in ``x_groq``, llama.cpp's in ``timings``."""
    groq = fields.get("x_groq", NULL)
    if first_byte(groq) == b"{":
        return parse_usage(_decode_members(groq))
    try:
        timings = _decode_timings(fields.get("timings", NULL))
    except (msgspec.DecodeError, RecursionError):
        return None
    if timings is None:
        return None
    cached = read_count(timings.cache_n) or 0
    new = read_count(timings.prompt_n)
    return read_usage(None if new is None else cached + new, timings.predicted_n, cached=cached)


def read_text(fields: dict[str, msgspec.Raw], name: str) -> str | None:
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return decode_text(raw)
    except msgspec.DecodeError:
        return None
