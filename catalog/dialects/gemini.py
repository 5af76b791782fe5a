"""Google's Gemini API, as https://ai.google.dev/api/generate-content describes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote, urlsplit

import msgspec

from catalog.dialects.base import (
    Call,
    Chunk,
    InvalidReply,
    InvalidStream,
    Operation,
    Reply,
    StreamParser,
    decode_object,
    parse_error,
)
from catalog.dialects.shared import messages
from catalog.dialects.shared import replies as answers
from catalog.dialects.shared.messages import Chat, Media, Text, Thought, ToolCall, ToolResult
from catalog.dialects.shared.replies import GEMINI_FORMAT, Finish, Said
from catalog.dialects.shared.sse import EventDecoder
from catalog.pricing import Usage
from config.credentials import Secret
from config.egress import OutboundRequest

operations: Final = frozenset((Operation.CHAT,))
names_deployments: Final = False

# A picture comes whole in one event.
_MAX_EVENT_BYTES: Final = 16_777_216
# Models since the third generation refuse a call whose signature is missing. This one, which Google
# documents for calls that they did not make, stands for a signature that the caller did not keep.
_NO_SIGNATURE: Final = "skip_thought_signature_validator"
# The second generation takes a budget of tokens to think, the later ones a level.
_TAKES_BUDGET: Final = re.compile(r"gemini-2\.")
_BUDGETS: Final = {"minimal": 1024, "low": 4096, "medium": 8192, "high": 16384}
_MOST: Final = 24576
_LEVELS: Final = {"minimal": "MINIMAL", "low": "LOW", "medium": "MEDIUM"}
_MODES: Final = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
_FINISHES: Final = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    **dict.fromkeys(
        (
            "SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII",
            "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "MODEL_ARMOR",
        ),
        "content_filter",
    ),
    **dict.fromkeys(
        (
            "OTHER", "MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL",
            "TOO_MANY_TOOL_CALLS", "MISSING_THOUGHT_SIGNATURE", "NO_IMAGE", "IMAGE_OTHER",
        ),
        "error",
    ),
}  # fmt: skip
_encode = msgspec.json.Encoder().encode


class _Struct(msgspec.Struct, rename="camel"):
    """The names here, the provider's spelling there."""


class _FunctionCall(_Struct):
    name: str
    id: str | None = None
    args: dict[str, msgspec.Raw] | None = None


class _Blob(_Struct):
    mime_type: str
    data: str


class _Part(_Struct):
    text: str = ""
    thought: bool = False
    thought_signature: str | None = None
    function_call: _FunctionCall | None = None
    inline_data: _Blob | None = None


class _Content(_Struct):
    parts: list[_Part] = []


class _Candidate(_Struct):
    content: _Content | None = None
    finish_reason: str | None = None
    index: int = 0


class _Feedback(_Struct):
    block_reason: str | None = None


class _Tokens(_Struct):
    modality: str = ""
    token_count: Any = 0


class _Usage(_Struct):
    prompt_token_count: Any = None
    tool_use_prompt_token_count: Any = None
    candidates_token_count: Any = None
    thoughts_token_count: Any = None
    cached_content_token_count: Any = None
    candidates_tokens_details: list[_Tokens] = []

    @property
    def counted(self) -> Usage | None:
        """Adds the counts up; thoughts are part of what was written."""
        if self.prompt_token_count is None:
            return None
        details = self.candidates_tokens_details
        drawn = next((part.token_count for part in details if part.modality == "IMAGE"), 0)
        return answers.count_usage(
            (self.prompt_token_count, self.tool_use_prompt_token_count),
            (self.candidates_token_count, self.thoughts_token_count),
            cached=self.cached_content_token_count,
            reasoning=self.thoughts_token_count,
            image_output=drawn,
        )


class _Answer(_Struct):
    candidates: list[_Candidate] = []
    prompt_feedback: _Feedback | None = None
    usage_metadata: _Usage | None = None
    model_version: str | None = None
    response_id: str | None = None
    error: dict[str, msgspec.Raw] | None = None

    @property
    def refused(self) -> str | None:
        """Returns why the prompt was refused, which leaves no candidate to answer it."""
        feedback = self.prompt_feedback
        return None if self.candidates or feedback is None else feedback.block_reason


_decode = msgspec.json.Decoder(_Answer).decode


def host(base_url: str | None, secret: Secret) -> str:
    return urlsplit(base_url or "").hostname or ""


def build(call: Call) -> OutboundRequest:
    method = "streamGenerateContent?alt=sse" if call.stream else "generateContent"
    return OutboundRequest(
        method="POST",
        url=f"{call.base_url}/models/{quote(call.model, safe='')}:{method}",
        headers={
            "x-goog-api-key": call.secret.reveal(),
            "Content-Type": "application/json",
            "Accept": "text/event-stream" if call.stream else "application/json",
        },
        body=_encode(_body(call.model, messages.read(call))),
    )


def parse_reply(operation: Operation, body: bytes) -> Reply:
    try:
        answer = _decode(body.decode())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidReply("The answer holds no candidates.") from None
    if answer.error is not None:
        raise parse_error(body)
    made = []
    for candidate in answer.candidates:
        calls = _Calls(answer.response_id, candidate.index)
        said = calls.said(candidate, is_stream=False)
        made.append((said, calls.finish(candidate.finish_reason or "STOP")))
    if answer.refused is not None:
        made.append((Said(), Finish("content_filter", answer.refused)))
    if not made:
        raise InvalidReply("The answer holds no candidates.")
    return answers.reply(
        made,
        usage=None if answer.usage_metadata is None else answer.usage_metadata.counted,
        model=answer.model_version,
        upstream_id=answer.response_id,
    )


def stream_parser(operation: Operation, choices: int = 1) -> StreamParser:
    reader = _Reader(choices)
    return answers.Parser(EventDecoder(limit=_MAX_EVENT_BYTES), reader.read, reader.ended)


def _body(model: str, chat: Chat) -> dict[str, Any]:
    choice = chat.tool_choice
    calling: dict[str, Any] | None = None
    if choice is not None and chat.tools:
        calling = {"mode": _MODES[choice.mode]}
        if choice.name is not None:
            calling["allowedFunctionNames"] = [choice.name]
    return messages.without_nones(
        contents=[
            {"role": "model" if turn.role == "assistant" else "user", "parts": parts}
            for turn in chat.turns
            if (parts := _parts(turn))
        ],
        systemInstruction={"parts": [{"text": part.text} for part in chat.system]}
        if chat.system
        else None,
        tools=[
            {
                "functionDeclarations": [
                    messages.without_nones(
                        name=tool.name,
                        description=tool.description,
                        parametersJsonSchema=tool.schema,
                    )
                    for tool in chat.tools
                ]
            }
        ]
        if chat.tools
        else None,
        toolConfig=None if calling is None else {"functionCallingConfig": calling},
        generationConfig=_generation_config(model, chat) or None,
    )


def _generation_config(model: str, chat: Chat) -> dict[str, Any]:
    return messages.without_nones(
        maxOutputTokens=chat.max_tokens,
        temperature=chat.temperature,
        topP=chat.top_p,
        topK=chat.top_k,
        stopSequences=chat.stop or None,
        candidateCount=chat.choices,
        seed=chat.seed,
        presencePenalty=chat.presence_penalty,
        frequencyPenalty=chat.frequency_penalty,
        responseMimeType="application/json" if chat.is_json else None,
        # Its other name for a schema, responseSchema, takes a dialect that lacks keywords which
        # OpenAI's strict schemas must have.
        responseJsonSchema=chat.schema,
        responseModalities=[modality.upper() for modality in chat.modalities] or None,
        thinkingConfig=_thinking(model, chat),
    )


def _thinking(model: str, chat: Chat) -> dict[str, Any] | None:
    """Returns how much to think; only the second generation can be told not to think at all."""
    wanted = chat.reasoning
    if wanted.is_on is None:
        return None
    takes_budget = _TAKES_BUDGET.search(model) is not None
    if not wanted.is_on:
        return {"thinkingBudget": 0} if takes_budget else {"thinkingLevel": "MINIMAL"}
    config: dict[str, Any] = {"includeThoughts": not wanted.is_hidden}
    if wanted.max_tokens is not None:
        config["thinkingBudget"] = wanted.max_tokens
    elif wanted.effort is not None and takes_budget:
        config["thinkingBudget"] = _BUDGETS.get(wanted.effort, _MOST)
    elif wanted.effort is not None:
        config["thinkingLevel"] = _LEVELS.get(wanted.effort, "HIGH")
    return config


def _parts(turn: messages.Turn) -> list[dict[str, Any]]:
    """Returns the parts of a turn; a call carries the signature that came with it.

    Of calls made together, only the first has one.
    """
    signatures = {
        part.id: part.data
        for part in turn.parts
        if isinstance(part, Thought) and part.format == GEMINI_FORMAT and part.data is not None
    }
    parts: list[dict[str, Any]] = []
    has_calls = False
    for part in turn.parts:
        match part:
            case Text():
                parts.append({"text": part.text})
            case Media():
                parts.append(_media(part))
            case ToolCall():
                call = {"id": part.id, "name": part.name, "args": part.arguments}
                made: dict[str, Any] = {"functionCall": call}
                if part.id in signatures or not has_calls:
                    made["thoughtSignature"] = signatures.get(part.id, _NO_SIGNATURE)
                has_calls = True
                parts.append(made)
            case ToolResult():
                response = {"id": part.id, "name": part.name, "response": _response(part)}
                parts.append({"functionResponse": response})
                parts += [_media(inner) for inner in part.parts if isinstance(inner, Media)]
            case Thought():
                pass
    return parts


def _response(result: ToolResult) -> Any:
    """Returns what a tool answered as the object that the format wants."""
    found = decode_object(result.text.encode())
    return {"result": result.text} if found is None else found


def _media(part: Media) -> dict[str, Any]:
    if part.url is not None:
        return {"fileData": messages.without_nones(mimeType=part.media_type, fileUri=part.url)}
    if part.media_type is None:
        raise messages.refusal(part, "Gemini")
    return {"inlineData": {"mimeType": part.media_type, "data": part.data}}


class _Calls:
    """Turns the parts of one candidate, as they come, into what it said.

    Identifiers of calls are optional in the format, and their arguments always come whole.
    """

    __slots__ = ("_count", "_prefix")

    def __init__(self, response_id: str | None, index: int) -> None:
        self._prefix = f"call_{response_id or ''}_{index}"
        self._count = 0

    def said(self, candidate: _Candidate, *, is_stream: bool) -> Said:
        parts = [] if candidate.content is None else candidate.content.parts
        said = Said(
            text="".join(part.text for part in parts if not part.thought),
            reasoning="".join(part.text for part in parts if part.thought),
            images=[
                answers.image(blob.mime_type, blob.data)
                for part in parts
                if (blob := part.inline_data) is not None
            ],
        )
        for part in parts:
            if part.function_call is not None:
                self._add(said, part.function_call, part.thought_signature, is_stream=is_stream)
        if said.reasoning:
            said.details.insert(0, answers.thought(GEMINI_FORMAT, 0, text=said.reasoning))
        return said

    def finish(self, reason: str) -> Finish:
        word = _FINISHES.get(reason, "stop")
        return Finish("tool_calls" if word == "stop" and self._count else word, reason)

    def _add(
        self, said: Said, call: _FunctionCall, signature: str | None, *, is_stream: bool
    ) -> None:
        number = self._count
        self._count += 1
        call_id = call.id or f"{self._prefix}_{number}"
        made = answers.tool_call(call_id, call.name, _encode(call.args or {}).decode())
        said.tool_calls.append({"index": number, **made} if is_stream else made)
        if signature is not None:
            said.details.append(
                answers.thought(GEMINI_FORMAT, number + 1, data=signature, call_id=call_id)
            )


class _Reader:
    """Reads the events of one stream.

    The format has no end mark: the stream ends when every candidate that was asked for has said why
    it stopped, or with the body when fewer came and those have.
    """

    __slots__ = ("_calls", "_choices", "_finished", "_usage")

    def __init__(self, choices: int) -> None:
        self._choices = choices
        self._calls: dict[int, _Calls] = {}
        self._finished: set[int] = set()
        self._usage: Usage | None = None

    def read(self, data: bytes) -> Iterator[Chunk]:
        try:
            answer = _decode(data.decode())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise InvalidStream("An event of the stream is malformed.") from None
        if answer.error is not None:
            raise parse_error(data)
        for candidate in answer.candidates:
            yield from self._continued(answer, candidate)
        if answer.refused is not None:
            self._calls[0] = _Calls(answer.response_id, 0)
            self._finished.add(0)
            finish = Finish("content_filter", answer.refused)
            yield self._chunk(answer, 0, Said(), finish, is_first=True)
        is_whole = self._is_whole
        usage = answer.usage_metadata
        # Before the end, a count without candidates has not counted what was said.
        if usage is not None and (is_whole or usage.candidates_token_count is not None):
            self._usage = usage.counted or self._usage
            # The first count after a finish is taken for the last.
            if self._usage is not None and not self._finished:
                yield answers.chunk(usage=self._usage)
        if is_whole and (answer.refused is not None or len(self._finished) >= self._choices):
            yield from self.ended()

    @property
    def _is_whole(self) -> bool:
        """Tells whether every candidate that came has said why it stopped."""
        return bool(self._finished) and self._finished == self._calls.keys()

    def ended(self) -> list[Chunk]:
        """Returns the usage and the end mark; nothing while a candidate is cut off."""
        if not self._is_whole:
            return []
        usage = [] if self._usage is None else [answers.chunk(usage=self._usage)]
        return [*usage, answers.done()]

    def _continued(self, answer: _Answer, candidate: _Candidate) -> Iterator[Chunk]:
        index = candidate.index
        is_first = index not in self._calls
        if is_first:
            self._calls[index] = _Calls(answer.response_id, index)
        calls = self._calls[index]
        said = calls.said(candidate, is_stream=True)
        finish = None
        if candidate.finish_reason is not None:
            self._finished.add(index)
            finish = calls.finish(candidate.finish_reason)
        # The last event often has nothing but a signature of text, which nobody must send back.
        if is_first or finish is not None or said:
            yield self._chunk(answer, index, said, finish, is_first=is_first)

    def _chunk(
        self, answer: _Answer, index: int, said: Said, finish: Finish | None, *, is_first: bool
    ) -> Chunk:
        return answers.chunk(
            said,
            index=index,
            is_first=is_first,
            finish=finish,
            model=answer.model_version,
            upstream_id=answer.response_id,
        )
