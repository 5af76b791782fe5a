"""Answers of chat, whole and streamed, and its errors, in the words of Anthropic's Messages."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from catalog.dialects.base import InvalidReply, InvalidStream, decode_object
from catalog.dialects.shared.replies import GEMINI_FORMAT
from catalog.dialects.shared.sse import EventDecoder, EventTooLarge
from config.api.errors import UpstreamError
from inference.requests.messages import thoughts
from inference.requests.messages.thoughts import Detail

PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'

# Far above what any dialect lets through: these events are our own.
_EVENT_BYTES: Final = 67_108_864
# How much of a stream is kept while other blocks have their turn: far above what a model says.
_HELD_BYTES: Final = 16_777_216
_BLOCK_BYTES: Final = 1_024
_STOPS: Final = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
# Anthropic's own words that chat's say less exactly.
_NATIVE_STOPS: Final = frozenset(("stop_sequence", "model_context_window_exceeded"))
_ERRORS: Final = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_NO_USAGE: Final = {
    "input_tokens": 0,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 0,
}
_encode = msgspec.json.Encoder().encode


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    extra_content: Any = None

    @property
    def signature(self) -> str | None:
        """Returns what Google's servers of OpenAI's interface want back with the call."""
        found = self.extra_content
        for name in ("google", "thought_signature"):
            found = found.get(name) if isinstance(found, dict) else None
        return found if isinstance(found, str) and found else None

    @property
    def arguments(self) -> str:
        """Returns the arguments as text; some servers send the object itself."""
        given = None if self.function is None else self.function.arguments
        if given is None or isinstance(given, str):
            return given or ""
        return _encode(given).decode()


class _Said(msgspec.Struct):
    content: Any = None
    refusal: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    reasoning_details: Any = None
    tool_calls: list[_Call] | None = None

    @property
    def texts(self) -> list[str]:
        content = self.content
        if isinstance(content, list):
            content = "".join(_pieces(content, "text"))
        return [text for text in (content, self.refusal) if isinstance(text, str) and text]

    @property
    def details(self) -> list[Detail]:
        """Returns the reasoning in parts; servers that know no parts give a text alone."""
        given = self.reasoning_details
        details = list(_details(given)) if isinstance(given, list) else []
        if any(detail.text or detail.summary for detail in details):
            return details
        thinking = "".join(_pieces(self.content, "thinking"))
        for text in (self.reasoning, self.reasoning_content, thinking):
            if isinstance(text, str) and text:
                return [Detail(type="reasoning.text", text=text), *details]
        return details


def _pieces(content: Any, kind: str) -> Iterator[str]:
    """Yields the texts of one kind in a content of parts; what was thought may be parts again."""
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") == kind:
            inner = part.get(kind)
            if isinstance(inner, str):
                yield inner
            else:
                yield from _pieces(inner, "text")


def _details(given: list[Any]) -> Iterator[Detail]:
    """Yields the parts that have the common shape; nobody could send back any other."""
    for item in given:
        with contextlib.suppress(msgspec.ValidationError):
            yield msgspec.convert(item, Detail)


class _Choice(msgspec.Struct):
    index: int = 0
    message: _Said | None = None
    delta: _Said | None = None
    finish_reason: str | None = None
    native_finish_reason: Any = None
    stop_reason: Any = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: Any = 0
    cache_write_tokens: Any = 0


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: Any = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    cost: msgspec.Raw = msgspec.Raw()
    is_byok: msgspec.Raw = msgspec.Raw()
    cost_details: msgspec.Raw = msgspec.Raw()


class _Error(msgspec.Struct):
    code: int
    message: str
    metadata: dict[str, Any] = {}


class _Answer(msgspec.Struct):
    id: str = ""
    model: str = ""
    provider: msgspec.Raw = msgspec.Raw()
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None
    openrouter_metadata: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Answer).decode


def reply(body: bytes) -> bytes:
    """Returns a whole answer as a message.

    Raises :class:`InvalidReply`, and :class:`UpstreamError` for an answer that ended in an error.
    """
    try:
        answer = _decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidReply("A choice of the answer is malformed.") from None
    choice = next((each for each in answer.choices if each.index == 0), _Choice())
    if choice.finish_reason == "error":
        raise _failure(choice)
    said = choice.message or _Said()
    content = [*_thoughts(said), *({"type": "text", "text": text} for text in said.texts)]
    for number, call in enumerate(said.tool_calls or ()):
        begun = _begun_call(call, number)
        if call.signature is not None:
            content.append(_redacted(_signature(call.signature, begun["id"])))
        content.append({**begun, "input": _input(call)})
    message = _message(
        answer,
        content,
        _stop(choice, has_calls=bool(said.tool_calls)),
        _usage(answer.usage or _Usage()),
    )
    return _encode({**message, **_given(openrouter_metadata=answer.openrouter_metadata)})


def error_body(body: Mapping[str, Any], request_id: str) -> dict[str, Any]:
    """Returns our envelope as Anthropic's; what stands beside the error stays beside it."""
    beside = {name: value for name, value in body.items() if name != "error"}
    return {**_error(msgspec.convert(body["error"], _Error), request_id), **beside}


def _failure(choice: _Choice) -> UpstreamError:
    """Returns the error that an answer ended in: a message would say that the model was done."""
    native = choice.native_finish_reason
    return UpstreamError(
        "The upstream provider ended the answer with an error.",
        metadata={"provider_code": native[:64]} if isinstance(native, str) else {},
    )


def _error(error: _Error, request_id: str) -> dict[str, Any]:
    """The symbolic name and all that comes with it are what Anthropic calls details."""
    kind = "api_error" if error.code >= 500 else "invalid_request_error"
    metadata = dict(error.metadata)
    return {
        "type": "error",
        "error": {
            "type": _ERRORS.get(error.code, kind),
            "message": error.message,
            "details": {"error_code": metadata.pop("error_type", "server"), **metadata},
        },
        "request_id": request_id,
    }


class Events:
    """Turns the events of one chat stream, however they were cut, into those of a message."""

    __slots__ = (
        "_blocks", "_choice", "_decoder", "_has_calls", "_has_failed", "_has_started", "_out",
        "_request_id",
    )  # fmt: skip

    def __init__(self, request_id: str) -> None:
        self._decoder = EventDecoder(limit=_EVENT_BYTES)
        self._out: list[bytes] = []
        self._blocks = _Blocks(self._out)
        self._choice = _Choice()
        self._has_calls = False
        self._has_failed = False
        self._has_started = False
        self._request_id = request_id

    def feed(self, data: bytes) -> bytes:
        """Returns the events that these bytes complete; raises :class:`InvalidStream`."""
        try:
            for event in self._decoder.feed(data):
                self._read(event)
        except EventTooLarge:
            raise InvalidStream("An event of the stream is too large.") from None
        except (msgspec.DecodeError, RecursionError):
            raise InvalidStream("A choice of the stream is malformed.") from None
        made = b"".join(self._out)
        self._out.clear()
        return made

    def _read(self, event: bytes) -> None:
        if event == b"[DONE]":
            if not self._has_failed:
                self._out.append(_event({"type": "message_stop"}))
            return
        answer = _decode(event)
        if answer.error is not None:
            self._fail(answer, answer.error)
            return
        if not self._has_started:
            self._has_started = True
            message = _message(answer, [], (None, None), _NO_USAGE)
            self._out.append(_event({"type": "message_start", "message": message}))
        for choice in answer.choices:
            if choice.index == 0:
                self._say(choice)
        if answer.usage is not None:
            self._end(answer, answer.usage)

    def _say(self, choice: _Choice) -> None:
        said = choice.delta or _Said()
        for detail in said.details:
            self._blocks.think(detail)
        for text in said.texts:
            self._blocks.write(text)
        for number, call in enumerate(said.tool_calls or ()):
            self._has_calls = True
            self._blocks.call(call, number if call.index is None else call.index)
        if choice.finish_reason is not None:
            self._choice = choice

    def _end(self, answer: _Answer, usage: _Usage) -> None:
        """Closes the message: the usage comes once, after everything that was said."""
        if self._choice.finish_reason == "error":
            failure = _failure(self._choice).body()
            self._fail(answer, msgspec.convert(failure["error"], _Error))
            return
        self._blocks.end()
        reason, sequence = _stop(self._choice, has_calls=self._has_calls)
        self._out.append(
            _event(
                {
                    "type": "message_delta",
                    "delta": {"stop_reason": reason, "stop_sequence": sequence},
                    "usage": _usage(usage),
                    **_given(openrouter_metadata=answer.openrouter_metadata),
                }
            )
        )

    def _fail(self, answer: _Answer, error: _Error) -> None:
        """Ends the stream in an error, whatever block is open."""
        self._has_failed = True
        body = _error(error, self._request_id)
        self._out.append(_event({**body, **_given(openrouter_metadata=answer.openrouter_metadata)}))


class _Block:
    """A content block of a stream, and the deltas that wait until its turn has come."""

    __slots__ = ("_is_judged", "arguments", "begun", "index", "is_ended", "key", "waiting")

    def __init__(self, index: int, key: tuple[str, Any], begun: dict[str, Any]) -> None:
        self.index = index
        self.key = key
        self.begun = begun
        self.waiting: list[dict[str, Any]] = []
        # Of a tool call all of them: only so it is known to be complete.
        self.arguments: list[str] = []
        self.is_ended = False
        self._is_judged = False

    def ends(self) -> bool:
        """Tells whether the block is complete, now that another one waits behind it.

        A call is asked once: reading its arguments again with every piece would take a time that
        grows with the square. One that goes on then lasts to the end of the stream.
        """
        if self.begun["type"] != "tool_use":
            return True
        if self._is_judged:
            return False
        self._is_judged = True
        return decode_object("".join(self.arguments).encode()) is not None


class _Blocks:
    """Puts what comes in any order into blocks, each of which ends before the next begins.

    Chat may take turns between tool calls; what belongs to a later block waits meanwhile.
    """

    __slots__ = ("_calls", "_count", "_held", "_out", "_queue")

    def __init__(self, out: list[bytes]) -> None:
        self._out = out
        self._queue: deque[_Block] = deque()
        self._calls: dict[int, _Block] = {}
        self._count = 0
        self._held = 0

    def think(self, detail: Detail) -> None:
        if detail.data is not None:
            self._begin(("data", None), _redacted(detail))
            return
        text = detail.text or detail.summary
        key = ("thinking", detail.index)
        block = self._last(key) if text else self._last_thought()
        if block is None:
            block = self._begin(key, {"type": "thinking", "thinking": "", "signature": ""})
        if text:
            self._add(block, {"type": "thinking_delta", "thinking": text})
        if detail.signature is not None:
            delta = {"type": "signature_delta", "signature": thoughts.sealed(detail)}
            self._add(block, delta)
            block.is_ended = True

    def write(self, text: str) -> None:
        key = ("text", None)
        block = self._last(key) or self._begin(key, {"type": "text", "text": ""})
        self._add(block, {"type": "text_delta", "text": text})

    def call(self, call: _Call, number: int) -> None:
        block = self._calls.get(number)
        if block is None or (call.id and call.id != block.begun["id"]):
            self._hold(_BLOCK_BYTES)
            begun = {**_begun_call(call, number), "input": {}}
            if call.signature is not None:
                self.think(_signature(call.signature, begun["id"]))
            block = self._begin(("call", number), begun)
            self._calls[number] = block
        arguments = call.arguments
        if arguments and not block.is_ended:
            self._hold(len(arguments))
            block.arguments.append(arguments)
            self._add(block, {"type": "input_json_delta", "partial_json": arguments})

    def end(self) -> None:
        while self._queue:
            self._close()

    def _last(self, key: tuple[str, Any]) -> _Block | None:
        block = self._queue[-1] if self._queue else None
        return None if block is None or block.key != key or block.is_ended else block

    def _last_thought(self) -> _Block | None:
        """Returns the block that a signature without text belongs to."""
        block = self._queue[-1] if self._queue else None
        is_open = block is not None and block.key[0] == "thinking" and not block.is_ended
        return block if is_open else None

    def _begin(self, key: tuple[str, Any], begun: dict[str, Any]) -> _Block:
        block = _Block(self._count, key, begun)
        self._count += 1
        self._queue.append(block)
        if block is self._queue[0]:
            self._start(block)
        self._advance()
        if block is not self._queue[0]:
            self._hold(_BLOCK_BYTES + len(begun.get("data", "")))
        return block

    def _add(self, block: _Block, delta: dict[str, Any]) -> None:
        block.waiting.append(delta)
        if block is self._queue[0]:
            self._flush(block)
        else:
            self._hold(sum(map(len, delta.values())))

    def _hold(self, size: int) -> None:
        self._held += size
        if self._held > _HELD_BYTES:
            raise InvalidStream("The tool calls of the stream are too large.")

    def _advance(self) -> None:
        while len(self._queue) > 1 and self._queue[0].ends():
            self._close()

    def _close(self) -> None:
        block = self._queue.popleft()
        block.is_ended = True
        block.arguments.clear()
        self._out.append(_event({"type": "content_block_stop", "index": block.index}))
        if self._queue:
            self._start(self._queue[0])

    def _start(self, block: _Block) -> None:
        started = {"type": "content_block_start", "index": block.index}
        self._out.append(_event({**started, "content_block": block.begun}))
        self._flush(block)

    def _flush(self, block: _Block) -> None:
        for delta in block.waiting:
            event = {"type": "content_block_delta", "index": block.index, "delta": delta}
            self._out.append(_event(event))
        block.waiting.clear()


def _event(body: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (body["type"].encode(), _encode(body))


def _message(
    answer: _Answer,
    content: list[dict[str, Any]],
    stop: tuple[str | None, str | None],
    usage: dict[str, Any],
) -> dict[str, Any]:
    return {
        "id": answer.id,
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": content,
        "stop_reason": stop[0],
        "stop_sequence": stop[1],
        "usage": usage,
        **_given(provider=answer.provider),
    }


def _given(**members: msgspec.Raw) -> dict[str, msgspec.Raw]:
    return {name: raw for name, raw in members.items() if bytes(raw)}


def _stop(choice: _Choice, *, has_calls: bool) -> tuple[str, str | None]:
    """Returns why the answer ended, and the stop sequence that it met, where a server tells."""
    reason = choice.finish_reason or "stop"
    if has_calls and reason == "stop":
        return "tool_use", None
    native = choice.native_finish_reason
    if isinstance(native, str) and native in _NATIVE_STOPS:
        return native, None
    if reason == "stop" and isinstance(choice.stop_reason, str):
        return "stop_sequence", choice.stop_reason
    return _STOPS.get(reason, "end_turn"), None


def _usage(usage: _Usage) -> dict[str, Any]:
    """Returns the counts, of which Anthropic's of the prompt leave the cache out, and the cost."""
    prompt = usage.prompt_tokens_details or _PromptDetails()
    read, written = _count(prompt.cached_tokens), _count(prompt.cache_write_tokens)
    details = usage.completion_tokens_details or _CompletionDetails()
    body: dict[str, Any] = {
        "input_tokens": max(usage.prompt_tokens - read - written, 0),
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "output_tokens": usage.completion_tokens,
    }
    if details.reasoning_tokens is not None:
        body["output_tokens_details"] = {"thinking_tokens": _count(details.reasoning_tokens)}
    return {
        **body,
        **_given(cost=usage.cost, is_byok=usage.is_byok, cost_details=usage.cost_details),
    }


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _thoughts(said: _Said) -> Iterator[dict[str, Any]]:
    for detail in said.details:
        if detail.data is not None:
            yield _redacted(detail)
            continue
        yield {
            "type": "thinking",
            "thinking": detail.text or detail.summary or "",
            "signature": "" if detail.signature is None else thoughts.sealed(detail),
        }


def _redacted(detail: Detail) -> dict[str, Any]:
    return {"type": "redacted_thinking", "data": thoughts.sealed(detail)}


def _signature(signature: str, call_id: str) -> Detail:
    """Returns the signature of a call as what led to it, encrypted: so Gemini's dialect has it."""
    return Detail(type="reasoning.encrypted", data=signature, id=call_id, format=GEMINI_FORMAT)


def _begun_call(call: _Call, number: int) -> dict[str, Any]:
    function = call.function or _Function()
    return {
        "type": "tool_use",
        "id": call.id or f"call_{number}",
        "name": function.name or "",
    }


def _input(call: _Call) -> dict[str, Any]:
    """Returns the arguments as an object; text that is none goes on, for the tool to refuse."""
    text = call.arguments
    found = decode_object(text.encode() or b"{}")
    return {"arguments": text} if found is None else found
