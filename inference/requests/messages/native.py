"""Reads Messages in their own words, for upstreams that speak Anthropic's format too.

A request that chat can express has both forms. Any other has the native one alone: its chat form
holds what decides about price, limits and routing, and is sent to nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Annotated, Any, Final

import msgspec
from msgspec.structs import replace

from catalog.aliases.spellings import MILLION
from catalog.capabilities import NativeFormat
from catalog.dialects.anthropic.wire import ATTRIBUTION, BETA, split_betas
from catalog.dialects.base import NativeBody, Operation
from catalog.dialects.shared.raw import (
    decode_members,
    first_byte,
    is_null,
    is_unset,
    read_member,
)
from catalog.dialects.shared.searches import BY_TOOL, MOST_SEARCHES
from catalog.tokens import UNSTATED_LIMITS
from config.api.errors import InvalidRequest
from inference.requests import parsing
from inference.requests.limits import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS, check_body
from inference.requests.messages.reasoning import MARK
from inference.requests.messages.request import CommonFields, convert, find_user
from inference.requests.operations.gateway_fields import GATEWAY_FIELDS
from inference.requests.operations.presets import AppliedPreset
from inference.requests.operations.server_tools import (
    DEFAULT_SEARCHES,
    NO_TOOLS,
    ServerTools,
    read_bound,
)
from inference.requests.parsing import WEB_SEARCH, InferenceRequest
from inference.requests.problems import explain_decode_error, field_error
from inference.requests.rows import add_value, measure_body

# The tokens that a fetched document may add to the prompt without a bound.
_DOCUMENT_TOKENS: Final = 131_072
_MOST_TOKENS: Final = 10_000_000
# Tools that the caller runs, by the start of their type; the rest of it is a date.
_CALLERS: Final = ("custom", "bash_", "text_editor_", "computer_", "memory_", "browser_")
# Tools that cost their tokens and nothing else.
_FREE: Final = ("tool_search_tool_", "web_fetch_")
# What the clouds know of it, by their dialects: they refuse the betas that other tools need.
_COMMON_TOOLS: Final = ("custom", "bash_", "text_editor_", "tool_search_tool_")
_CLOUD_TOOLS: Final = {
    "vertex": (*_COMMON_TOOLS, "web_search_"),
    "bedrock": (*_COMMON_TOOLS, "computer_20250124", "computer_20251124", "memory_20250818"),
}
_PORTABLE_FIELDS: Final = frozenset(
    (
        "model", "max_tokens", "messages", "system", "stop_sequences", "stream", "tools",
        "tool_choice", "thinking", "output_config", "metadata", "cache_control", "temperature",
        "top_p", "top_k",
    )
)  # fmt: skip
# Fields of betas that an answer does not depend on.
_BESIDE: Final = frozenset(("context_management", "diagnostics"))
# Bedrock knows the first of them together with one of these betas.
_EDITS: Final = "context_management"
_EDITING: Final = frozenset(("context-management-2025-06-27", "compact-2026-01-12"))
# The beta that a name with ``[1m]`` means.
_MILLION_BETA: Final = "context-1m-2025-08-07"
# Betas of which only tokens cost something, without their dates. The operator's credential asks for
# no others: they may cost what has no rate, or use what the operator's account at Anthropic holds.
_COMMON_BETAS: Final = frozenset(
    (
        "adaptive-thinking", "advanced-tool-use", "cache-diagnosis", "claude-code", "compact",
        "computer-use", "context-1m", "context-management", "dangerous-tool-use",
        "dev-full-thinking", "effort", "extended-cache-ttl", "fine-grained-tool-streaming",
        "inline-tools", "interleaved-thinking", "mid-conversation-output-config",
        "mid-conversation-system-clear-at", "mid-conversation-tool-changes",
        "model-context-window-exceeded", "output-128k", "output-300k", "pdfs", "prompt-caching",
        "prompt-caching-scope", "redact-thinking", "structured-outputs", "task-budgets",
        "thinking-binding-controls", "thinking-display-updates", "thinking-token-count",
        "token-counting", "token-efficient-tools", "tool-examples", "tool-search-tool",
        "web-fetch", "web-search",
    )
)  # fmt: skip
_DATE: Final = re.compile(r"-\d{4}-?\d\d-?\d\d")
# Fields that cost nothing extra with these values.
_USUAL: Final = {
    "speed": frozenset(("standard",)),
    "inference_geo": frozenset(("global",)),
    "service_tier": frozenset(("auto", "standard_only")),
}
# The fields that the operator's credential sends. A credential of the organization sends all.
_COMMON_FIELDS: Final = (
    GATEWAY_FIELDS | _PORTABLE_FIELDS | _BESIDE | _USUAL.keys() | {"prefill", "compaction"}
)
# The names of the tools that a workspace may disable.
_NAMES: Final = (("web_search_", WEB_SEARCH), ("web_fetch_", "openrouter:web_fetch"))
_REQUIRED: Final = frozenset(("model", "messages", "max_tokens"))
# Members that are no part of the prompt.
_SETTINGS: Final = frozenset(
    (
        "model", "messages", "max_tokens", "stream", "metadata", "temperature", "top_p", "top_k",
        "cache_control",
    )
)  # fmt: skip
# The beginning of a signature that holds the reasoning of another provider.
_MARK: Final = b'"' + MARK.encode()
# The contents inside of contents that may have media: each is read once more.
_LEVELS: Final = 5
# The member of a block that has a medium.
_SOURCE: Final = re.compile(rb'"source"')
# The names of fields that chat names otherwise, and of thinking where an effort alone is sent.
_WORDS: Final = {
    "response_format": "output_config.format",
    "reasoning": "thinking",
    "reasoning.max_tokens": "thinking.budget_tokens",
    "stop": "stop_sequences",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "tools.function.strict": "tools.strict",
}
_EFFORT_WORDS: Final = {**_WORDS, "reasoning": "output_config.effort"}
_HEADER: Final = re.compile(r"[\x20-\x7e]*")
_PICTURE: Final = "image"
_MEDIA: Final = frozenset((_PICTURE, "document"))
_Blocks = Annotated[list[dict[str, msgspec.Raw]], msgspec.Meta(max_length=MAX_PARTS)]

_Bound = Annotated[int, msgspec.Meta(ge=0, le=100_000_000)]


class _Turn(msgspec.Struct):
    role: str
    content: str | _Blocks


class _Block(msgspec.Struct):
    text: str = ""


class _Tool(msgspec.Struct):
    type: str | None = None
    max_uses: Any = None
    max_content_tokens: Any = None


class _NativeRequest(CommonFields, forbid_unknown_fields=False, kw_only=True):
    """The members of a body that decide about price, limits and routing; others are not read."""

    max_tokens: _Bound | None
    messages: Annotated[list[_Turn], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | _Blocks | None = None
    tools: Annotated[list[_Tool], msgspec.Meta(max_length=MAX_TOOLS)] | None = None


class _NativeCount(_NativeRequest, kw_only=True):
    max_tokens: _Bound | None = None


_decode = msgspec.json.Decoder(_NativeRequest).decode
_decode_count = msgspec.json.Decoder(_NativeCount).decode
_KNOWN: Final = frozenset(each.name for each in msgspec.structs.fields(_NativeRequest))
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_tools = msgspec.json.Decoder(list[_Tool] | None).decode
_decode_block = msgspec.json.Decoder(_Block).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def parse_message(
    body: bytes,
    *,
    is_count: bool = False,
    session_id: str | None = None,
    headers: Sequence[tuple[str, str]] = (),
    preset: AppliedPreset | None = None,
) -> InferenceRequest:
    """Parses a request of Messages; ``headers`` are the caller's headers of Anthropic.

    The fields of a ``preset`` are those of chat, so a request with one has its chat form alone.
    Raises :class:`InvalidRequest` with the name of the wrong field. Any other field that chat
    cannot express is no error here: routing refuses it if no upstream speaks the format.
    """
    check_body(body)
    for name, value in headers:
        if not _HEADER.fullmatch(value):
            raise field_error(name, "Send printable ASCII alone in this header.")
    problem: InvalidRequest | None = None
    try:
        chat, has_foreign = convert(body, is_count=is_count)
    except InvalidRequest as exc:
        if "fields" not in exc.metadata or preset is not None:
            raise
        problem = exc
    if problem is None:
        request = parsing.parse(
            Operation.CHAT, chat, session_id=session_id, is_checked=True, preset=preset
        )
        wish = decode_members(request.fields.get("reasoning")) or {}
        words = _EFFORT_WORDS if wish.keys() == {"effort"} else _WORDS
        request = replace(request, words=words)
        has_wishes = (
            request.preferences.options
            or request.server_tools is not NO_TOOLS
            or request.reads_pdfs
        )
        if is_count or has_wishes or preset is not None or _MARK in body:
            # Options, a search or the text of files for the gateway, or reasoning of another
            # provider: only the chat form has them.
            return request
        fields = _decode_fields(body)
        return replace(
            _measure_foreign(request, body, fields)
            if has_foreign
            else _measure_rest(request, body, chat, fields),
            native=_read_native(fields, headers),
            size=max(request.size, len(body)),
            has_long_cache=parsing.has_long_cache(body),
        )
    return _parse_native(body, problem, is_count=is_count, session_id=session_id, headers=headers)


def _measure_rest(
    request: InferenceRequest, body: bytes, chat: bytes, fields: Mapping[str, msgspec.Raw]
) -> InferenceRequest:
    """Returns a request measured with what its chat form leaves out, such as earlier citations."""
    if beside := _list_beside(fields):
        counts = request.text
        for each in beside:
            add_value(counts, each)
        request = replace(request, text_counts=counts)
    rest = max(0, measure_body(body) - measure_body(chat))
    return replace(request, prompt_bound=request.prompt_bound + rest)


def _measure_foreign(
    request: InferenceRequest, body: bytes, fields: Mapping[str, msgspec.Raw]
) -> InferenceRequest:
    """Returns a request measured with the blocks that its chat form describes in words.

    Raises :class:`InvalidRequest` for more blocks than may be measured.
    """
    try:
        own: _NativeRequest = _decode(body)
    except msgspec.ValidationError as exc:
        raise explain_decode_error(str(exc)) from None
    whole = parsing.parse(Operation.CHAT, _write_chat(own, fields), is_checked=True)
    return replace(
        request,
        prompt_bound=max(request.prompt_bound, whole.prompt_bound),
        images=whole.images,
        media=whole.media,
        inputs=whole.inputs,
        forms=whole.forms,
        text_counts=whole.text,
    )


def _parse_native(
    body: bytes,
    problem: InvalidRequest,
    *,
    is_count: bool,
    session_id: str | None,
    headers: Sequence[tuple[str, str]],
) -> InferenceRequest:
    """Returns the request of a body that chat cannot express.

    Raises ``problem`` for a wrong one.
    """
    try:
        fields = _decode_fields(body)
    except msgspec.DecodeError:
        raise problem from None
    kept = {name: raw for name, raw in fields.items() if name in _REQUIRED or not is_unset(raw)}
    if len(kept) < len(fields):
        # Empty fields ask for nothing.
        return parse_message(
            _encode(kept), is_count=is_count, session_id=session_id, headers=headers
        )
    try:
        request: _NativeRequest = (_decode_count if is_count else _decode)(body)
    except (msgspec.DecodeError, RecursionError):
        raise problem from None
    if request.max_tokens is None and not is_count:
        raise problem
    has_options = request.provider is not None and bool(request.provider.options)
    if has_options or _MARK in body or not (GATEWAY_FIELDS - _KNOWN).isdisjoint(fields):
        raise problem
    parsed = parsing.parse(
        Operation.CHAT, _write_chat(request, fields), session_id=session_id, is_checked=True
    )
    if is_count:
        return parsed
    if parsed.server_tools is not NO_TOOLS or parsed.reads_pdfs:
        raise problem
    tools = request.tools or []
    extras = _read_extras(fields, body, tools)
    return replace(
        parsed,
        native=replace(_read_native(fields, headers), problem=copy(problem)),
        server_tools=extras,
        tools=frozenset(_name_tools(tools)),
        allowed=replace(parsed.allowed, searches=extras.most_searches)
        if extras.most_searches
        else parsed.allowed,
        prompt_bound=parsed.prompt_bound + sum(map(_bound_results, tools)),
        size=len(body),
        has_long_cache=parsing.has_long_cache(body),
    )


def _read_native(
    fields: Mapping[str, msgspec.Raw], headers: Sequence[tuple[str, str]]
) -> NativeBody:
    # Anthropic refuses null where chat takes it for an absent field.
    own = {
        name: raw
        for name, raw in fields.items()
        if (name == "model" or name not in GATEWAY_FIELDS) and not is_null(raw)
    }
    asked = {name for name, raw in own.items() if not is_unset(raw)}
    tools = _decode_tools(own["tools"]) if "tools" in own else None
    types = {_type_of(tool) for tool in tools or ()}
    if MILLION.encode() in bytes(own["model"]):
        headers = _ask_for_million(headers)
    return NativeBody(
        NativeFormat.ANTHROPIC,
        own,
        tuple(headers),
        clouds=frozenset(
            cloud
            for cloud, known in _CLOUD_TOOLS.items()
            if asked <= _PORTABLE_FIELDS | _BESIDE and all(kind.startswith(known) for kind in types)
        ),
        beside=_name_beside(own, headers),
        foreign=_find_foreign(headers),
    )


def _ask_for_million(headers: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns the headers with the beta for a context of a million tokens."""
    if _MILLION_BETA in _list_betas(headers):
        return list(headers)
    betas = [text for name, text in headers if name == BETA and text]
    others = [pair for pair in headers if pair[0] != BETA]
    return [*others, (BETA, ",".join([*betas, _MILLION_BETA]))]


def _name_beside(
    fields: Mapping[str, Any], headers: Sequence[tuple[str, str]]
) -> dict[str, frozenset[str]]:
    found = _BESIDE.intersection(fields)
    if not found:
        return {}
    betas = set(_list_betas(headers))
    return {"vertex": found, "bedrock": found - {_EDITS} if betas & _EDITING else found}


def _find_foreign(headers: Sequence[tuple[str, str]]) -> frozenset[str]:
    """Returns the betas that the operator's credential does not ask for."""
    return frozenset(
        beta for beta in _list_betas(headers) if _DATE.sub("", beta) not in _COMMON_BETAS
    )


def _list_betas(headers: Sequence[tuple[str, str]]) -> list[str]:
    return [beta for name, text in headers if name == BETA for beta in split_betas(text)]


def _list_beside(fields: Mapping[str, msgspec.Raw]) -> list[msgspec.Raw]:
    """Returns what of the prompt the chat form leaves out and the native one has.

    These are Claude Code's line for Anthropic, which bills it as any text unless it knows the line,
    and the instructions of ``context_management``.
    """
    found = [fields["context_management"]] if "context_management" in fields else []
    system = fields.get("system")
    if system is None or first_byte(system) != b"[":
        return found
    for first in _decode_list(system)[:1]:
        if _decode_block(first).text.startswith(ATTRIBUTION):
            found.append(first)
    return found


def _read_extras(
    fields: Mapping[str, msgspec.Raw], body: bytes, tools: Sequence[_Tool]
) -> ServerTools:
    """Returns what a request wants that costs more than its tokens; all of it is demanded."""
    types = {_type_of(tool) for tool in tools}
    searches = {name for name in types if name.startswith("web_search_")}
    others = {name for name in types - searches if not name.startswith(_CALLERS + _FREE)}
    others |= fields.keys() - _COMMON_FIELDS
    for name, usual in _USUAL.items():
        value = msgspec.json.decode(fields[name]) if name in fields else None
        if value is not None and not (isinstance(value, str) and value in usual):
            others.add(name)
    if parsing.has_stored_file(body):
        # Files belong to an account of the provider, which all tenants of the operator share.
        others.add("file_id")
    if not searches and not others:
        return NO_TOOLS
    most = sum(_count_uses(tool) for tool in tools if _type_of(tool) in searches)
    return ServerTools(
        searches=frozenset(searches),
        others=frozenset(others),
        demanded=frozenset(searches | others),
        most_searches=most,
    )


def _type_of(tool: _Tool) -> str:
    return tool.type or "custom"


def _name_tools(tools: Sequence[_Tool]) -> Iterator[str]:
    """Yields the names of the tools that a server runs, as a workspace may disable them."""
    for tool in tools:
        kind = _type_of(tool)
        if not kind.startswith(_CALLERS):
            yield kind
        yield from (name for start, name in _NAMES if kind.startswith(start))


def _count_uses(tool: _Tool) -> int:
    return read_bound(tool.max_uses, MOST_SEARCHES, default=DEFAULT_SEARCHES)


def _bound_results(tool: _Tool) -> int:
    """Returns the most tokens that the results of a server's tool add to the prompt."""
    kind = _type_of(tool)
    if kind.startswith("web_search_"):
        return _count_uses(tool) * BY_TOOL.result_tokens
    if kind.startswith("web_fetch_"):
        most = read_bound(tool.max_content_tokens, _MOST_TOKENS, default=_DOCUMENT_TOKENS)
        return _count_uses(tool) * most
    return 0


def _write_chat(request: _NativeRequest, fields: Mapping[str, msgspec.Raw]) -> bytes:
    """Returns a chat request that is measured like the body, and never sent.

    Texts and what is not known stand in it as JSON, so it is no shorter than the prompt. Media
    count by bounds of their own.
    """
    rest = {
        name: raw
        for name, raw in fields.items()
        if name not in _SETTINGS and name not in GATEWAY_FIELDS
    }
    added = " " * UNSTATED_LIMITS.tools if request.tools else ""
    messages: list[dict[str, Any]] = []
    if rest:
        messages.append({"role": "system", "content": _encode(rest).decode() + added})
    for turn in request.messages:
        role = turn.role if turn.role in ("assistant", "system") else "user"
        content = turn.content
        is_answer = role == "assistant"
        parts = content if isinstance(content, str) else list(_write_parts(content, is_answer))
        messages.append({"role": role, "content": parts})
    bound = request.max_tokens
    members = {
        "model": request.model,
        **request.gateway_fields(),
        "stream": request.stream,
        "user": find_user(request),
        "max_tokens": None if bound is None else max(bound, 1),
        "messages": messages,
    }
    return _encode({name: value for name, value in members.items() if value is not None})


def _write_parts(
    blocks: list[dict[str, msgspec.Raw]], is_answer: bool, levels: int = _LEVELS
) -> Iterator[dict[str, Any]]:
    """Yields what stands for blocks: their media and their text, and those of their contents.

    The media of an earlier answer may be of any kind: a model that takes none can go on. Contents
    of more ``levels`` are text.
    """
    for block in blocks:
        rest, kind = dict(block), read_member(block, "type")
        inner: list[dict[str, msgspec.Raw]] = []
        if kind in _MEDIA:
            source = decode_members(block.get("source")) or {}
            form = read_member(source, "type")
            if form == "content":
                inner += _take_blocks(source, levels)
                rest["source"] = msgspec.Raw(_encode(source))
            elif form != "text":
                yield {"type": "medium"} if is_answer else _write_medium(kind, form)
                if form == "base64":
                    del rest["source"]
        inner += _take_blocks(rest, levels)
        yield {"type": "text", "text": _encode(rest).decode()}
        yield from _write_parts(inner, is_answer, levels - 1)


def _write_medium(kind: str, form: str) -> dict[str, Any]:
    url = "data:," if form == "base64" else ""
    if kind == _PICTURE:
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"file_data": url}}


def _take_blocks(holder: dict[str, msgspec.Raw], levels: int) -> list[dict[str, msgspec.Raw]]:
    """Removes the content of a block and returns its blocks; one without any media stays text.

    What is no block counts as one.
    """
    raw = holder.get("content", msgspec.Raw())
    if not levels or first_byte(raw) not in (b"[", b"{") or _SOURCE.search(raw) is None:
        return []
    del holder["content"]
    items = _decode_list(raw) if first_byte(raw) == b"[" else [raw]
    return [decode_members(item) or {"": item} for item in items]
