"""Chat in the format of Google's Gemini API."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from catalog.abilities import BUDGETS
from catalog.dialects.audio import join_base64
from catalog.dialects.base import (
    Body,
    Call,
    Chunk,
    InvalidReply,
    InvalidStream,
    Reply,
    StreamParser,
    Untranslatable,
    decode_answer,
    decode_lenient_event,
    decode_object,
    parse_error,
    read_count,
)
from catalog.dialects.gemini.grounding import Recitations, find_queries, read_grounding
from catalog.dialects.shared import constraints, messages, replies
from catalog.dialects.shared.messages import Chat, Media, ReasoningBlock, Text, ToolCall, ToolResult
from catalog.dialects.shared.raw import first_byte, is_null, write_arguments
from catalog.dialects.shared.replies import GEMINI_FORMAT, NO_SIGNATURE, Finish, Output
from catalog.dialects.shared.searches import MOST_SEARCHES, NAME, Search
from catalog.dialects.shared.sse import EventDecoder
from catalog.dialects.wholes import join_chat
from catalog.pricing import Usage

# The sources of a longer text are left out: the whole text would have to be kept for them.
_MOST_CITED_TEXT: Final = 4_194_304
_MAX_BUDGET: Final = 24576
_LEVELS: Final = {"minimal": "MINIMAL", "low": "LOW", "medium": "MEDIUM"}
# The fields that the format has, beside those of every format.
_SAID: Final = (
    "top_k", "seed", "n", "presence_penalty", "frequency_penalty", "modalities", "image_config",
    "messages.images",
)  # fmt: skip
_IMAGE_CONFIG: Final = {"aspect_ratio": "aspectRatio", "image_size": "imageSize"}
_MODES: Final = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
FINISHES: Final = {
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
# Reasons that say nothing.
_NO_REASONS: Final = frozenset((None, "", "FINISH_REASON_UNSPECIFIED"))
_encode = msgspec.json.Encoder().encode


class CamelStruct(msgspec.Struct, rename="camel"):
    """A struct whose fields have camel-case names in JSON."""


class _FunctionCall(CamelStruct):
    name: str
    id: str | None = None
    args: msgspec.Raw = msgspec.Raw()


class _Blob(CamelStruct):
    mime_type: str
    data: str

    @property
    def kind(self) -> str:
        return self.mime_type.partition("/")[0].lower()


class _Part(CamelStruct):
    text: str = ""
    thought: bool = False
    thought_signature: str | None = None
    function_call: _FunctionCall | None = None
    inline_data: _Blob | None = None


class _Content(CamelStruct):
    parts: list[_Part] = []


class _Candidate(CamelStruct):
    content: _Content | None = None
    grounding_metadata: Any = None
    citation_metadata: Any = None
    finish_reason: str | None = None
    index: int = 0


class PromptFeedback(CamelStruct):
    block_reason: str | None = None


class _Tokens(CamelStruct):
    modality: str = ""
    token_count: Any = 0


def _count_modality(details: list[_Tokens], modality: str) -> Any:
    """Returns the tokens of one modality; 0 where they are not reported."""
    return next((part.token_count for part in details if part.modality == modality), 0)


class Counts(CamelStruct):
    prompt_token_count: Any = None
    tool_use_prompt_token_count: Any = None
    candidates_token_count: Any = None
    thoughts_token_count: Any = None
    total_token_count: Any = None
    cached_content_token_count: Any = None
    candidates_tokens_details: list[_Tokens] = []
    prompt_tokens_details: list[_Tokens] = []
    cache_tokens_details: list[_Tokens] = []

    @property
    def counts_reasoning(self) -> bool:
        return self.thoughts_token_count is not None

    @property
    def total(self) -> Usage | None:
        """Returns the usage of an answer without searches."""
        return self.count(0)

    def count(self, searches: int) -> Usage | None:
        """Returns the usage of an answer; thinking tokens are part of the completion."""
        if self.prompt_token_count is None:
            return None
        prompt = self.prompt_token_count, self.tool_use_prompt_token_count
        made = self.candidates_token_count, self.thoughts_token_count
        counted, total = replies.sum_counts((*prompt, *made)), read_count(self.total_token_count)
        if made[0] is None and None not in (counted, total):
            # Only the total says how much was written.
            made = max((total or 0) - (counted or 0), 0), made[1]
        return replies.count_usage(
            prompt,
            made,
            cached=self.cached_content_token_count,
            reasoning=self.thoughts_token_count,
            image_output=_count_modality(self.candidates_tokens_details, "IMAGE"),
            audio=_count_modality(self.prompt_tokens_details, "AUDIO"),
            audio_cached=_count_modality(self.cache_tokens_details, "AUDIO"),
            audio_output=_count_modality(self.candidates_tokens_details, "AUDIO"),
            searches=searches,
        )


class _Response(CamelStruct):
    candidates: list[_Candidate] = []
    prompt_feedback: PromptFeedback | None = None
    usage_metadata: Counts | None = None
    model_version: str | None = None
    response_id: str | None = None
    error: dict[str, msgspec.Raw] | None = None

    @property
    def block_reason(self) -> str | None:
        """Returns why the prompt was refused, or ``None``; a refused prompt has no candidates."""
        feedback = self.prompt_feedback
        return None if self.candidates or feedback is None else feedback.block_reason


_decode = msgspec.json.Decoder(_Response).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def build_chat(call: Call) -> tuple[bytes, frozenset[str]]:
    """Returns the body of a chat request, and the names of what it lacks.

    Raises :class:`base.Untranslatable`.
    """
    chat = messages.parse_chat(call, constraints.GEMINI, has_search=True, said=_SAID)
    return _encode(_build_body(call, chat)), messages.name_lost(call, chat, _SAID)


def parse_chat(body: Body) -> Reply:
    """Parses a whole answer; raises :class:`InvalidReply` or :class:`ProviderFailure`."""
    if body[:1] == b"[":
        return _join_list(body)
    reply, _ = decode_answer(_decode, body, "The answer holds no candidates.")
    if reply.error is not None:
        raise parse_error(body)
    choices = []
    searches = 0
    notes: set[str] = set()
    for candidate in reply.candidates:
        calls = _CandidateReader(reply.response_id, candidate.index, notes)
        output = calls.read_output(candidate, is_stream=False)
        choices.append((output, calls.finish(candidate.finish_reason or "STOP")))
        searches += calls.searches
    if reply.block_reason is not None:
        choices.append((Output(), Finish("content_filter", reply.block_reason)))
    if not choices:
        raise InvalidReply("The answer holds no candidates.")
    made = replies.build_reply(
        choices,
        usage=None if reply.usage_metadata is None else reply.usage_metadata.count(searches),
        model=reply.model_version,
        upstream_id=reply.response_id,
        counts_reasoning=reply.usage_metadata is not None and reply.usage_metadata.counts_reasoning,
    )
    made.notes = frozenset(notes)
    return made


def _join_list(body: Body) -> Reply:
    """Returns the reply that a list of events adds up to: the format's stream without ``alt=sse``.

    Proxies that drop the query of the URL answer so.
    """
    reader = _Reader()
    try:
        chunks = [chunk for event in _decode_list(body) for chunk in reader.read(bytes(event))]
    except (msgspec.DecodeError, RecursionError, InvalidStream):
        raise InvalidReply("The answer holds no candidates.") from None
    return join_chat([*chunks, *reader.end()])


def chat_parser(choices: int) -> StreamParser:
    """Returns the parser of one stream."""
    reader = _Reader()
    return replies.EventParser(
        EventDecoder(), reader.read, reader.end, reader.notes, reader.find_kept
    )


def _build_body(call: Call, chat: Chat) -> dict[str, Any]:
    choice = chat.tool_choice
    calling: dict[str, Any] | None = None
    if choice is not None and chat.tools:
        calling = {"mode": _MODES[choice.mode]}
        if choice.name is not None:
            calling["allowedFunctionNames"] = [choice.name]
    return messages.omit_none(
        contents=[
            {"role": "model" if turn.role == "assistant" else "user", "parts": parts}
            for turn in chat.turns
            if (parts := _build_parts(turn))
        ],
        systemInstruction={"parts": [{"text": part.text} for part in chat.system]}
        if chat.system
        else None,
        tools=_build_tools(chat) or None,
        toolConfig=None if calling is None else {"functionCallingConfig": calling},
        generationConfig=_build_generation_config(call, chat) or None,
    )


def _build_tools(chat: Chat) -> list[dict[str, Any]]:
    """Returns the functions of the caller and Google's search, which has no options.

    Raises :class:`base.Untranslatable` for what Google's search does not know.
    """
    tools: list[dict[str, Any]] = []
    if chat.tools:
        functions = [
            messages.omit_none(
                name=tool.name,
                description=tool.description,
                parametersJsonSchema=tool.schema,
            )
            for tool in chat.tools
        ]
        tools.append({"functionDeclarations": functions})
    if chat.search is not None:
        if chat.search != Search():
            raise Untranslatable("Google's search of the web has no options.")
        choice = chat.tool_choice
        if chat.is_tool_forced and (not chat.tools or (choice and choice.name == NAME)):
            raise Untranslatable("tool_choice: Gemini cannot be forced to search the web.")
        # The mode of the choice is that of functions alone.
        if choice is None or choice.mode != "none":
            tools.append({"googleSearch": {}})
    return tools


def _build_generation_config(call: Call, chat: Chat) -> dict[str, Any]:
    return messages.omit_none(
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
        # responseSchema does not suffice: it lacks keywords that OpenAI's strict schemas require.
        responseJsonSchema=chat.schema,
        responseModalities=[modality.upper() for modality in chat.modalities] or None,
        imageConfig=_build_image_config(call, chat) or None,
        thinkingConfig=_build_thinking_config(call, chat),
    )


def _build_image_config(call: Call, chat: Chat) -> dict[str, Any]:
    """Returns the options of pictures.

    Raises :class:`base.Untranslatable` for unknown ones, and for a size that has no price.
    """
    asked = {name: value for name, value in chat.image_config.items() if value is not None}
    if unknown := sorted(asked.keys() - _IMAGE_CONFIG.keys()):
        raise Untranslatable(f"image_config.{unknown[0][:64]}: Gemini has no such option.")
    if "image_size" in asked and not (call.is_byok or call.is_billed_by_token):
        raise Untranslatable("image_config.image_size: Pictures of a chat have one price here.")
    return {_IMAGE_CONFIG[name]: value for name, value in asked.items()}


def _build_thinking_config(call: Call, chat: Chat) -> dict[str, Any] | None:
    """Returns the thinking options; only a model with a budget can turn thinking off."""
    options = chat.reasoning
    if options.is_on is None:
        return None
    has_budget = call.capabilities.has_thinking_budget
    if not options.is_on:
        return {"thinkingBudget": 0} if has_budget else {"thinkingLevel": "MINIMAL"}
    config: dict[str, Any] = {"includeThoughts": not options.is_hidden}
    if options.max_tokens is not None:
        config["thinkingBudget"] = options.max_tokens
    elif options.effort is not None and has_budget:
        config["thinkingBudget"] = BUDGETS.get(options.effort, _MAX_BUDGET)
    elif options.effort is not None:
        config["thinkingLevel"] = _LEVELS.get(options.effort, "HIGH")
    return config


def _build_parts(turn: messages.Turn) -> list[dict[str, Any]]:
    """Returns the parts of a turn; a tool call carries the signature that came with it.

    Only the first of several parallel calls has a signature.
    """
    signatures = {
        part.id: part.data
        for part in turn.parts
        if isinstance(part, ReasoningBlock)
        and part.format == GEMINI_FORMAT
        and part.data is not None
    }
    parts: list[dict[str, Any]] = []
    has_calls = False
    for part in turn.parts:
        match part:
            case Text():
                parts.append({"text": part.text})
            case Media():
                is_own = turn.role == "assistant"
                signed = {"thoughtSignature": NO_SIGNATURE} if is_own else {}
                parts.append({**_build_media(part), **signed})
            case ToolCall():
                call = {"id": part.id, "name": part.name, "args": part.arguments}
                made: dict[str, Any] = {"functionCall": call}
                if part.id in signatures or not has_calls:
                    made["thoughtSignature"] = signatures.get(part.id, NO_SIGNATURE)
                has_calls = True
                parts.append(made)
            case ToolResult():
                response = {"id": part.id, "name": part.name, "response": _build_response(part)}
                parts.append({"functionResponse": response})
                parts += [_build_media(inner) for inner in part.parts if isinstance(inner, Media)]
            case ReasoningBlock():
                pass
    return parts


def _build_response(result: ToolResult) -> Any:
    """Returns the result of a tool as the object that the format requires."""
    found = decode_object(result.text.encode())
    return {"result": result.text} if found is None else found


def _build_media(part: Media) -> dict[str, Any]:
    if part.url is not None:
        return {"fileData": messages.omit_none(mimeType=part.media_type, fileUri=part.url)}
    if part.media_type is None:
        raise messages.unsupported_part(part, "Gemini")
    return {"inlineData": {"mimeType": part.media_type, "data": part.data}}


class _CandidateReader:
    """Reads the output of one candidate from its parts, piece by piece.

    Identifiers of tool calls are optional in the format; the arguments always arrive whole.
    """

    __slots__ = (
        "_count", "_grounding", "_ids", "_length", "_notes", "_prefix", "_queries", "_recited",
        "_sound_id", "_texts", "kept",
    )  # fmt: skip

    def __init__(self, response_id: str | None, index: int, notes: set[str]) -> None:
        self._ids: set[str] = set()
        self._notes = notes
        self._prefix = f"call_{response_id}_{index}" if response_id else ""
        self._sound_id = f"audio_{response_id or secrets.token_hex(12)}_{index}"
        self._count = 0
        # The text so far, in which the places of the sources are counted in bytes; and its size.
        self._texts: list[str] = []
        self._length = self.kept = 0
        self._grounding: Any = None
        self._recited: Recitations | None = None
        # It grows in place: a stream may name a query in each of its events.
        self._queries: set[str] = set()

    @property
    def searches(self) -> int:
        """The searches of the web so far; one whose query is not known counts if no other does."""
        return len(self._queries) - ("" in self._queries and len(self._queries) > 1)

    def read_output(self, candidate: _Candidate, *, is_stream: bool) -> Output:
        parts = [] if candidate.content is None else candidate.content.parts
        # What a model has drawn while it thought is no answer.
        blobs = [part.inline_data for part in parts if part.inline_data and not part.thought]
        sound = join_base64([blob.data for blob in blobs if blob.kind == "audio"])
        output = Output(
            text="".join(part.text for part in parts if not part.thought),
            reasoning="".join(part.text for part in parts if part.thought),
            images=[
                replies.build_image(blob.mime_type, blob.data)
                for blob in blobs
                if blob.kind == "image"
            ],
            audio={"id": self._sound_id, "data": sound} if sound else {},
        )
        if any(blob.kind not in ("image", "audio") for blob in blobs):
            self._notes.add(replies.FILES_LEFT_OUT)
        for part in parts:
            if part.function_call is not None:
                self._add(output, part.function_call, part.thought_signature, is_stream=is_stream)
        if output.reasoning:
            output.details.insert(
                0, replies.build_reasoning_detail(GEMINI_FORMAT, 0, text=output.reasoning)
            )
        self._length += len(output.text)
        if self._length <= _MOST_CITED_TEXT:
            self._texts.append(output.text)
            self.kept = self._length
        if candidate.grounding_metadata:
            self._grounding = candidate.grounding_metadata
            if len(self._queries) < MOST_SEARCHES:
                self._queries |= find_queries(candidate.grounding_metadata)
        if candidate.citation_metadata:
            self._recited = self._recited or Recitations()
            self._recited.add(candidate.citation_metadata)
        if candidate.finish_reason is not None:
            # Once, at the end: every event may repeat them.
            self._cite(output)
        return output

    def _cite(self, output: Output) -> None:
        """Adds the sources of the text so far, if it was kept."""
        grounding, self._grounding = self._grounding, None
        if self._length > _MOST_CITED_TEXT:
            return
        if grounding is not None:
            output.annotations += read_grounding(grounding, self._texts)
        if self._recited is not None:
            output.annotations += self._recited.read(self._texts)

    def finish(self, reason: str) -> Finish:
        finish = Finish(FINISHES.get(reason, "stop"), reason)
        return finish.follow(has_calls=bool(self._count))

    def _add(
        self, output: Output, call: _FunctionCall, signature: str | None, *, is_stream: bool
    ) -> None:
        number = self._count
        self._count += 1
        # Without an id of the answer, the call gets one that no other call has.
        call_id = call.id or (self._prefix and f"{self._prefix}_{number}")
        call_id = replies.choose_call_id(call_id, self._ids)
        if call.id and call_id != call.id:
            self._notes.add(replies.CALLS_NAMED)
        arguments = write_arguments(call.args) or "{}"
        if not is_null(call.args) and first_byte(call.args) != b"{":
            arguments = _encode(messages.read_arguments(arguments)).decode()
            self._notes.add(replies.CALLS_WRITTEN)
        made = replies.build_tool_call(call_id, call.name, arguments)
        output.tool_calls.append({"index": number, **made} if is_stream else made)
        if signature is not None:
            output.details.append(
                replies.build_reasoning_detail(
                    GEMINI_FORMAT, number + 1, data=signature, call_id=made["id"]
                )
            )


class _Reader:
    """Reads the events of one stream.

    The format has no end mark. The stream is complete when it ends and each candidate that came has
    a finish reason. Some servers write a reason into each event, and others the usage after it: so
    the last chunk of a candidate waits for the end.
    """

    __slots__ = ("_calls", "_counts_reasoning", "_kept", "_lasts", "_searches", "_usage", "notes")

    def __init__(self) -> None:
        self.notes: set[str] = set()
        self._calls: dict[int, _CandidateReader] = {}
        # The latest chunk of each candidate that has a finish reason.
        self._lasts: dict[int, Chunk] = {}
        # The searches of all candidates, and the size of their texts: adding them up for each event
        # would take too long.
        self._searches = self._kept = 0
        self._usage: Usage | None = None
        self._counts_reasoning = False

    def read(self, data: bytes) -> Iterator[Chunk]:
        reply, _ = decode_lenient_event(_decode, data)
        if reply.error is not None:
            raise parse_error(data)
        for candidate in reply.candidates:
            yield from self._read_candidate(reply, candidate)
        if reply.block_reason is not None:
            self._calls[0] = _CandidateReader(reply.response_id, 0, self.notes)
            finish = Finish("content_filter", reply.block_reason)
            self._lasts[0] = self._chunk(reply, 0, Output(), finish, is_first=True)
        usage = reply.usage_metadata
        # Before the end, a usage without candidate tokens does not count the output yet.
        if usage is not None and (self._is_whole or usage.candidates_token_count is not None):
            self._usage = usage.count(self._searches) or self._usage
            self._counts_reasoning = usage.counts_reasoning
            # The first usage after a finish reason counts as the final one.
            if self._usage is not None and not self._lasts:
                yield self._usage_chunk(self._usage)

    def _usage_chunk(self, usage: Usage) -> Chunk:
        return replies.build_chunk(usage=usage, counts_reasoning=self._counts_reasoning)

    @property
    def _is_whole(self) -> bool:
        """Returns whether every candidate that came has a finish reason."""
        return bool(self._lasts) and self._lasts.keys() == self._calls.keys()

    def find_kept(self) -> int:
        """Returns the size of the texts, which are kept for the places of their sources."""
        return self._kept

    def end(self) -> list[Chunk]:
        """Returns the last chunks, the usage and the end mark; nothing of a stream cut off."""
        if not self._is_whole:
            return []
        usage = []
        if self._usage is not None:
            counted = msgspec.structs.replace(self._usage, searches=self._searches)
            usage.append(self._usage_chunk(counted))
        return [*self._lasts.values(), *usage, replies.build_end_mark()]

    def _read_candidate(self, reply: _Response, candidate: _Candidate) -> Iterator[Chunk]:
        index = candidate.index
        is_first = index not in self._calls
        if is_first:
            self._calls[index] = _CandidateReader(reply.response_id, index, self.notes)
        calls = self._calls[index]
        searches, kept = calls.searches, calls.kept
        output = calls.read_output(candidate, is_stream=True)
        self._searches += calls.searches - searches
        self._kept += calls.kept - kept
        reason = candidate.finish_reason
        if (is_first or output or reason not in _NO_REASONS) and index in self._lasts:
            yield _continue_chunk(self._lasts.pop(index))
        if reason not in _NO_REASONS:
            assert reason is not None
            finish = calls.finish(reason)
            chunk = self._chunk(reply, index, output, finish, is_first=is_first)
            *before, self._lasts[index] = replies.split_calls(chunk)
            yield from before
        # The last event often has only the signature of a text, which need not be sent back.
        elif is_first or output:
            yield from replies.split_calls(
                self._chunk(reply, index, output, None, is_first=is_first)
            )

    def _chunk(
        self, reply: _Response, index: int, output: Output, finish: Finish | None, *, is_first: bool
    ) -> Chunk:
        return replies.build_chunk(
            output,
            index=index,
            is_first=is_first,
            finish=finish,
            model=reply.model_version,
            upstream_id=reply.response_id,
        )


def _continue_chunk(chunk: Chunk) -> Chunk:
    """Returns a chunk without the finish reason after which its candidate went on."""
    chunk.finish_reason = None
    [choice] = chunk.fields["choices"]
    choice["finish_reason"] = None
    del choice["native_finish_reason"]
    return chunk
