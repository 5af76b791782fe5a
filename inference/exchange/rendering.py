"""Renders the reply and the events of a generation for its caller."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from catalog.capabilities import NativeFormat
from catalog.dialects.base import Chunk, Fields, NativeBody, Operation, Reply
from catalog.dialects.shared.images.replies import PARTIAL, split_reply
from catalog.dialects.shared.raw import LONG_BYTES, Piece, encode_pieces
from catalog.dialects.shared.reasoning import HiddenThoughts, hide_reasoning
from catalog.pricing import Usage, nano_usd, usd
from catalog.pricing.contract import describe_charges
from config.api.errors import GatewayError
from config.clocks.clock import clock
from inference.exchange.tally import NO_COST, Tally
from inference.requests.chat_replies import encode_named_event
from inference.requests.messages import relay
from inference.requests.parsing import InferenceRequest
from inference.requests.responses import envelope
from inference.routing.routes import Candidate

# The end mark of a stream.
DONE: Final = b"data: [DONE]\n\n"
# The ends of a line, as numbers: Python finds these in bytes ten times as fast as other bytes.
_LF: Final = 0x0A
_CR: Final = 0x0D
# A reported cost above a million USD is a mistake.
_MOST_USD: Final = 1_000_000
_TOOL_USE: Final = "server_tool_use_details"
# The member that numbers an event. No text holds it, because quotes are escaped there.
_NUMBER_NAME: Final = b'"sequence_number"'
_NUMBER: Final = re.compile(rb'"sequence_number"\s*:\s*([0-9]{1,18})')
_NULL: Final = msgspec.Raw(b"null")
_encode = msgspec.json.Encoder().encode
_decode_integer = msgspec.json.Decoder(int).decode


def _count_completion(usage: Usage) -> dict[str, Any]:
    counts: dict[str, Any] = {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
    }
    if usage.searches:
        counts["server_tool_use_details"] = {"web_search_requests": usage.searches}
    return counts


def _count_prompt(usage: Usage) -> dict[str, int]:
    return {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt + usage.completion}


def _count_audio(usage: Usage) -> dict[str, Any]:
    """Writes a usage as OpenAI does: tokens, or the length of the audio."""
    counts: dict[str, Any] = {"type": "tokens" if usage.prompt or usage.completion else "duration"}
    if usage.prompt or usage.completion or not usage.milliseconds:
        counts |= {
            "input_tokens": usage.prompt,
            "output_tokens": usage.completion,
            "total_tokens": usage.prompt + usage.completion,
        }
    if usage.milliseconds or counts["type"] == "duration":
        counts["seconds"] = usage.milliseconds / 1000
    return counts


def _count_search(usage: Usage) -> dict[str, int]:
    counts = {"search_units": usage.searches, "total_tokens": usage.prompt}
    return {name: count for name, count in counts.items() if count}


def _count_images(usage: Usage) -> dict[str, Any]:
    """Returns the counts by the names of both interfaces: OpenRouter's are those of chat."""
    shown = min(usage.image_prompt, usage.prompt)
    made = min(usage.image_output, usage.completion)
    return {
        **_count_completion(usage),
        "completion_tokens_details": {"image_tokens": made, "reasoning_tokens": usage.reasoning},
        "input_tokens": usage.prompt,
        "output_tokens": usage.completion,
        "input_tokens_details": {"image_tokens": shown, "text_tokens": usage.prompt - shown},
        "output_tokens_details": {"image_tokens": made, "text_tokens": usage.completion - made},
    }


class AnswerRow(NamedTuple):
    """How the answers of one operation are rendered.

    ``object`` and ``event_object`` are the types of a whole answer and of an event of a stream;
    ``left_out`` names members of the identity that the interface does not have here.
    ``has_fingerprint`` says that ``system_fingerprint`` is always there, if need be null.
    ``failed_choice`` is what the last event of a stream that fails has instead of output.
    ``counts`` writes the counts of a usage. ``split`` returns the chunks of a whole answer, for a
    provider that does not stream; ``None`` where such an answer is refused.
    """

    counts: Callable[[Usage], dict[str, Any]]
    object: str = ""
    event_object: str = ""
    left_out: tuple[str, ...] = ()
    has_fingerprint: bool = False
    failed_choice: Mapping[str, Any] = {}
    split: Callable[[Reply], list[Chunk]] | None = None


Members = dict[str, Any]


class NativeForm(NamedTuple):
    """The functions that put the gateway's own members into answers in the caller's format.

    ``write_start`` returns an event that begins an answer with our identity, and the usage in it.
    ``is_end`` tells the events that say how the answer ended, which ``write_end`` returns with the
    usage and the end mark; it makes one if the upstream sent none. ``write_counts`` writes the
    counts of a usage as the format names them. ``defaults`` are members that every client needs.
    ``repeats_start`` says that the last event has our identity too. ``write_error`` writes the last
    event of an answer that fails, with this number; without it, an error is told as in chat.
    ``costs`` renames the parts of an upstream's cost.
    """

    write_start: Callable[[Members, Members], tuple[Members, Any]]
    is_end: Callable[[Members], bool]
    write_end: Callable[[Members | None, Members, Members], bytes]
    write_counts: Callable[[Usage], Members]
    defaults: Members
    repeats_start: bool = False
    write_error: Callable[[Members, Members, Members, int], bytes] | None = None
    costs: Mapping[str, str] = {}


NATIVE_FORMS: Final[Mapping[NativeFormat, NativeForm]] = {
    NativeFormat.ANTHROPIC: NativeForm(
        relay.write_start,
        relay.is_end,
        relay.write_end,
        relay.write_counts,
        relay.DEFAULTS,
    ),
    NativeFormat.RESPONSES: NativeForm(
        envelope.write_start,
        envelope.is_end,
        envelope.write_end,
        envelope.write_counts,
        {},
        repeats_start=True,
        write_error=envelope.write_error,
        costs=envelope.COSTS,
    ),
}
ANSWERS: Final[Mapping[Operation, AnswerRow]] = {
    Operation.CHAT: AnswerRow(
        _count_completion,
        "chat.completion",
        "chat.completion.chunk",
        has_fingerprint=True,
        failed_choice={"delta": {"content": ""}},
    ),
    Operation.TEXT: AnswerRow(
        _count_completion,
        "text_completion",
        "text_completion",
        failed_choice={"text": "", "logprobs": None},
    ),
    Operation.EMBEDDINGS: AnswerRow(_count_prompt, "list", left_out=("created",)),
    # The answer is bytes; its usage is stored, and told by /generation.
    Operation.SPEECH: AnswerRow(_count_audio),
    Operation.TRANSCRIPTION: AnswerRow(_count_audio, left_out=("object", "created")),
    Operation.RERANK: AnswerRow(_count_search, left_out=("object", "created")),
    Operation.IMAGES: AnswerRow(_count_images, left_out=("object",), split=split_reply),
}


def encode_event(fields: dict[str, Any]) -> bytes:
    """Encodes one JSON object as one server-sent event.

    JSON allows line ends between the parts of a raw member. They become spaces here, because a line
    end would end the event.
    """
    data = _encode(fields)
    if _LF in data or _CR in data:
        data = data.replace(b"\n", b" ").replace(b"\r", b" ")
    return b"data: " + data + b"\n\n"


class Renderer:
    """Adds the gateway's id, usage and cost to the reply or the events of the upstream.

    In a format that numbers its events, ``rendered`` is the number after the last event that was
    rendered. The exchange stores it in ``delivered`` once the caller has that event.
    """

    __slots__ = (
        "_answer", "_candidate", "_generation_id", "_identity", "_last_fields", "_prefix",
        "_request", "_tally", "_thoughts", "_usage_fields", "delivered", "rendered",
    )  # fmt: skip

    def __init__(
        self, request: InferenceRequest, generation_id: str, candidate: Candidate, tally: Tally
    ) -> None:
        self.rendered = self.delivered = 0
        self._answer = ANSWERS[request.operation]
        self._request = request
        self._generation_id = generation_id
        self._candidate = candidate
        self._tally = tally
        # The members of :meth:`_identify`, the same in every event of a stream.
        self._identity: dict[str, Any] = {}
        # The members of the last event, and its encoding up to the choices.
        self._last_fields: dict[str, Any] = {}
        self._prefix: bytes | None = None
        # The members beside the upstream's usage, for the gateway's own usage event.
        self._usage_fields: dict[str, Any] = {}
        # What the next turn of tools may need of thoughts that the caller excludes.
        hides = request.is_reasoning_hidden and request.tool_count
        self._thoughts = HiddenThoughts() if hides else None

    def render_reply(self, reply: Reply, metadata: dict[str, Any]) -> list[Piece]:
        """Returns the body of a whole reply in pieces, after counting it."""
        self._tally.add(reply)
        fields = reply.fields
        if self._request.is_reasoning_hidden:
            fields["choices"] = hide_reasoning(fields["choices"], self._thoughts)
        fields.update(self._identify(fields))
        for name in self._answer.left_out:
            del fields[name]
        if self._answer.has_fingerprint:
            fields.setdefault("system_fingerprint", None)
        elif fields.get("system_fingerprint") == _NULL:
            fields.pop("system_fingerprint", None)
        fields["usage"] = self._usage_body()
        fields.update(metadata)
        return encode_pieces(fields) if reply.size > LONG_BYTES else [_encode(fields)]

    def render_chunks(self, chunks: list[Chunk]) -> bytes:
        """Returns the events of several chunks."""
        return b"".join(map(self.render_chunk, chunks))

    def render_chunk(self, chunk: Chunk) -> bytes:
        """Returns the events of a chunk, after counting it.

        Usage is held back for the usage event, which adds the cost to it.
        """
        if chunk.repeats:
            self._tally.add_output(chunk.output_bytes, chunk.sound)
            prefix, repeats = self._prefix or self._encode_prefix(), chunk.repeats
            before, after = chunk.frame
            if self._request.is_reasoning_hidden:
                whole = map(msgspec.Raw, chunk.repeated_choices)
                repeats = [_encode(hide_reasoning(choices, self._thoughts)) for choices in whole]
                before = after = b""
            before, after = prefix + before, after + b"}\n\n"
            return before + (after + before).join(repeats) + after
        self._tally.add(chunk)
        if chunk.is_done:
            return b""
        fields = chunk.fields
        if self._request.is_reasoning_hidden and "choices" in fields:
            fields["choices"] = hide_reasoning(fields["choices"], self._thoughts)
        if "system_fingerprint" in fields and fields["system_fingerprint"] == _NULL:
            del fields["system_fingerprint"]
        if not self._identity:
            self._identity = self._identify(fields)
        usage = fields.pop("usage", None)
        if not (usage is None or chunk.has_choices or usage == _NULL):
            self._usage_fields.update(fields)
            return b""
        fields.update(self._identity)
        self._last_fields, self._prefix = fields, None
        return encode_event(fields)

    has_errors: ClassVar = True
    # Whether the answer has the format of the caller's interface already.
    is_native: ClassVar = False

    @property
    def has_preview(self) -> bool:
        """Whether the last event is a preview of a picture that is not finished."""
        return bool(self._last_fields.get("type") == PARTIAL)

    @property
    def has_own_errors(self) -> bool:
        """Whether the last event of a failure needs no conversion for the caller's interface."""
        return False

    def render_end(self, metadata: dict[str, Any]) -> bytes:
        """Returns the last events of a stream: the usage with its cost, and the end mark."""
        usage_event = {
            **self._usage_fields,
            **self._identity,
            "choices": [],
            "usage": self._usage_body(),
            **metadata,
        }
        return encode_event(usage_event) + DONE

    def render_error_event(self, error: GatewayError, metadata: dict[str, Any]) -> bytes:
        """Returns the last event of a stream that fails after its status 200 was sent."""
        choice = {"index": 0, "finish_reason": "error", **self._answer.failed_choice}
        self._tally.finish_reason = "error"
        identity = self._identity or self._identify({})
        return encode_event({**identity, **error.body(), **metadata, "choices": [choice]})

    def _encode_prefix(self) -> bytes:
        """Encodes the start of an event that repeats the last one except for its choices."""
        fields = {name: value for name, value in self._last_fields.items() if name != "choices"}
        self._prefix = encode_event(fields).removesuffix(b"}\n\n") + b',"choices":'
        return self._prefix

    def _identify(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Returns the members that identify the answer: the generation's id, model and provider."""
        answer = self._answer
        return {
            "id": self._generation_id,
            "object": answer.event_object if self._request.stream else answer.object,
            "created": _read_integer(fields.get("created")) or int(clock.time()),
            "model": self._candidate.route.model_slug,
            "provider": self._candidate.route.facts.provider_name,
        }

    def _read_usage(self, raw: Any) -> dict[str, Any]:
        """Returns the upstream's usage object; an empty one if it is malformed."""
        return _decode_counts(raw)

    def _count(self, usage: Usage, body: dict[str, Any], *, is_exact: bool) -> dict[str, Any]:
        """Returns the counts that replace those of the upstream's usage object."""
        counts = self._answer.counts(usage)
        if _TOOL_USE in body:
            # The upstream says more of its tools.
            counts.pop(_TOOL_USE, None)
        parts = {
            "cached_tokens": usage.cached,
            "cache_write_tokens": usage.cache_write + usage.cache_write_1h,
        }
        if any(parts.values()) and self._answer.counts is _count_completion:
            # Many servers name them otherwise, or at another place.
            found = {name: count for name, count in parts.items() if count}
            counts["prompt_tokens_details"] = {**body.get("prompt_tokens_details", {}), **found}
        return counts

    def _usage_body(self) -> dict[str, Any]:
        """Returns the usage with its cost: the upstream's usage, or an estimate without one."""
        candidate, tally = self._candidate, self._tally
        count = tally.count()
        usage = count.usage
        cost, parts = tally.price(usage, candidate), tally.parts
        if tally.is_blank(usage):
            cost = NO_COST
        body = self._read_usage(tally.usage_body) if tally.is_believed else {}
        reported = body.get("cost")
        tally.reported_cost_nano = None if reported is None else _read_cost(reported)
        return {
            **body,
            **self._count(usage, body, is_exact=not count.is_estimated),
            "cost": usd(cost.credits_nano),
            "is_byok": candidate.is_byok,
            "cost_details": {
                "upstream_inference_cost": usd(cost.upstream_nano),
                "upstream_inference_prompt_cost": usd(parts.prompt),
                "upstream_inference_completions_cost": usd(parts.completion),
                **(_detail_cost(tally, usage, candidate) if candidate.route.price.rules else {}),
            },
        }


class NativeRenderer(Renderer):
    """Relays an answer in its caller's own format, and changes its id, model and usage alone."""

    __slots__ = ("_form", "_held", "_started", "_started_usage", "_told")
    is_native: ClassVar = True

    def __init__(
        self,
        request: InferenceRequest,
        generation_id: str,
        candidate: Candidate,
        tally: Tally,
        native: NativeBody,
    ) -> None:
        super().__init__(request, generation_id, candidate, tally)
        self._form = NATIVE_FORMS[native.format]
        # The last event that says how the answer ended; it waits for the cost.
        self._held: Fields | None = None
        self._told = native.told
        # The members of the answer as it began.
        self._started: dict[str, Any] = {}
        self._started_usage: dict[str, Any] = {}

    def render_reply(self, reply: Reply, metadata: dict[str, Any]) -> list[Piece]:
        self._tally.add(reply)
        fields = {
            **self._form.defaults,
            **reply.fields,
            **self._identify({}),
            "usage": self._usage_body(),
            **metadata,
        }
        return encode_pieces(fields) if reply.size > LONG_BYTES else [_encode(fields)]

    def render_chunks(self, chunks: list[Chunk]) -> bytes:
        events = [*filter(None, map(self.render_chunk, chunks))]
        if events and self._form.write_error is not None:
            # Not all events of the upstream pass, so its own numbers count.
            last = events[-1]
            found = _NUMBER.match(last, max(last.rfind(_NUMBER_NAME), 0))
            self.rendered = int(found[1]) + 1 if found else self.rendered + len(events)
        return b"".join(events)

    def render_chunk(self, chunk: Chunk) -> bytes:
        self._tally.add(chunk)
        if chunk.is_done:
            return b""
        if not chunk.fields:
            return chunk.data
        identity = self._identify({})
        if self._form.is_end(chunk.fields):
            held, self._held = self._held, chunk.fields
            if self._form.repeats_start:
                self._held, _ = self._form.write_start(chunk.fields, identity)
            return b"" if held is None else encode_named_event(held)
        if not self._tally.is_believed:
            identity["usage"] = self._form.write_counts(self._tally.count().usage)
        fields, usage = self._form.write_start(chunk.fields, identity)
        self._started = fields
        self._started_usage = usage if isinstance(usage, dict) else _decode_counts(usage)
        return encode_named_event(fields)

    def render_end(self, metadata: dict[str, Any]) -> bytes:
        return self._form.write_end(self._held, self._usage_body(), metadata)

    @property
    def has_own_errors(self) -> bool:
        """Whether an answer of which the caller has events can end with an error like them."""
        return bool(self.delivered) and self._form.write_error is not None

    def render_error_event(self, error: GatewayError, metadata: dict[str, Any]) -> bytes:
        if not self.has_own_errors:
            return super().render_error_event(error, metadata)
        assert self._form.write_error is not None
        self._tally.finish_reason = "error"
        body = error.body()["error"]
        return self._form.write_error(self._started, body, metadata, self.delivered)

    def _identify(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self._generation_id,
            "model": self._candidate.route.model_slug,
            "provider": self._candidate.route.facts.provider_name,
            **self._told,
        }

    def _usage_body(self) -> dict[str, Any]:
        body = super()._usage_body()
        if costs := self._form.costs:
            details = body["cost_details"]
            body["cost_details"] = {costs.get(name, name): cost for name, cost in details.items()}
        return body

    def _read_usage(self, raw: Any) -> dict[str, Any]:
        """Returns the upstream's usage: the counts of the end, over those of the beginning."""
        started = self._started_usage
        if not _decode_counts(raw):
            return started  # none, or one that nests too deep to be written
        # Some servers repeat the counts of the beginning as zero.
        return started | {
            name: value
            for name, value in _decode_object(raw).items()
            if value or (value is not None and not started.get(name))
        }

    def _count(self, usage: Usage, body: dict[str, Any], *, is_exact: bool) -> dict[str, Any]:
        return {} if is_exact and body else self._form.write_counts(usage)


class BytesRenderer(Renderer):
    """Relays an answer of bytes, which has no place for an id, a usage or an error."""

    __slots__ = ()
    has_errors: ClassVar = False

    def render_chunk(self, chunk: Chunk) -> bytes:
        self._tally.add(chunk)
        return chunk.data

    def render_end(self, metadata: dict[str, Any]) -> bytes:
        return b""


def _detail_cost(tally: Tally, usage: Usage, candidate: Candidate) -> dict[str, Any]:
    """Returns the further members of an answer's ``cost_details`` for a price that has rules.

    A price of plain rates needs none: prompt and completion say it all. The usage was priced last.
    """
    price, usage = candidate.route.price, tally.complete(usage)
    details: dict[str, Any] = {"rules": describe_charges(price, usage, tally.at)}
    if usage.searches:
        details["server_tool_cost"] = usd(tally.parts.searches)
    return details


def read_reported_cost(tally: Tally) -> int | None:
    """Returns the cost that the provider's usage reports, for an answer that is not rendered."""
    return _read_cost(_read_usage_body(tally).get("cost"))


def _read_usage_body(tally: Tally) -> dict[str, Any]:
    """Returns the members of the upstream's usage; none of one that is not believed.

    They would contradict the counts that are.
    """
    return _decode_counts(tally.usage_body if tally.is_believed else None)


def _read_cost(cost: Any) -> int | None:
    """Returns the cost in nano-USD that the provider's usage reports, if it is an amount."""
    is_number = isinstance(cost, int | float) and not isinstance(cost, bool)
    return nano_usd(Decimal(str(cost))) if is_number and 0 <= cost <= _MOST_USD else None


def _decode_counts(raw: Any) -> dict[str, Any]:
    """Decodes a usage without its null members; returns an empty one if it is malformed."""
    try:
        return _without_nulls(_decode_object(raw))
    except RecursionError:
        return {}


def _decode_object(raw: Any) -> dict[str, Any]:
    """Decodes an object of the upstream; returns an empty one if it is malformed."""
    try:
        body = {} if raw is None else msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _read_integer(raw: Any) -> int | None:
    """Decodes a member that should be an integer; anything else counts as absent."""
    try:
        return None if raw is None else _decode_integer(raw)
    except msgspec.DecodeError:
        return None


def _without_nulls(body: dict[str, Any]) -> dict[str, Any]:
    """Drops null members: one of the public clients refuses them in nested objects.

    Details that are no object go too, such as the empty list that PHP writes for an empty object.
    """
    return {
        name: _without_nulls(inner) if isinstance(inner, dict) else inner
        for name, inner in body.items()
        if isinstance(inner, dict) or not (inner is None or name.endswith("_details"))
    }
