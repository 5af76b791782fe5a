"""Claude on Bedrock by InvokeModel: Anthropic's format, with the model in the path.

https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-anthropic-claude-messages.html
describes it. Betas stand in the body, and a beta that Bedrock does not know is an error there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from catalog.dialects import anthropic
from catalog.dialects.anthropic.wire import BETA, split_betas
from catalog.dialects.base import Call, InvalidStream, NativeBody, Untranslatable
from catalog.dialects.bedrock.wire import Frames, parse_failure, post
from config.clocks.clock import clock as database_clock
from config.egress import OutboundRequest

_VERSION: Final = "bedrock-2023-05-31"
_BETAS: Final = frozenset(
    (
        "compact-2026-01-12", "computer-use-2025-01-24", "computer-use-2025-11-24",
        "context-1m-2025-08-07", "context-management-2025-06-27", "dangerous-tool-use-2026-09-03",
        "effort-2025-11-24", "fine-grained-tool-streaming-2025-05-14",
        "mid-conversation-output-config-2026-07-01", "mid-conversation-tool-changes-2026-07-01",
        "thinking-binding-controls-2026-08-01", "thinking-display-updates-2026-08-18",
        "tool-examples-2025-10-29", "tool-search-tool-2025-10-19",
    )
)  # fmt: skip
# Members of tools that need a beta here. Anthropic asks for another beta, or for none.
_BETAS_OF_TOOLS: Final = tuple(
    (re.compile(rb'"' + mark), beta)
    for mark, beta in (
        (rb'computer_20250124"', "computer-use-2025-01-24"),
        (rb'computer_20251124"', "computer-use-2025-11-24"),
        (rb'memory_20250818"', "context-management-2025-06-27"),
        (rb"tool_search_tool_(?:bm25|regex)_2", "tool-search-tool-2025-10-19"),
        (rb'defer_loading"\s*:\s*true', "tool-search-tool-2025-10-19"),
        (rb'input_examples"\s*:\s*\[', "tool-examples-2025-10-29"),
    )
)
# Media that Bedrock would have to fetch.
_REFERENCES: Final = frozenset(("url", "file"))
_MAY_REFER: Final = re.compile(rb'"type"\s*:\s*"(?:url|file)"')
# Members that stand in the path here.
_NOT_SENT: Final = ("model", "stream")


class _Part(msgspec.Struct):
    """The payload of a ``chunk``: an event of Anthropic's stream in Base64."""

    event: bytes = msgspec.field(name="bytes")


_decode_part = msgspec.json.Decoder(_Part).decode


def build_native(
    call: Call, *, clock: Callable[[], float] = database_clock.time
) -> OutboundRequest:
    """Returns the request of a call that passes the caller's own body.

    A beta is passed with its fields or left out with them: one half alone is an error.
    """
    assert call.native is not None
    _refuse_references(call.native)
    body = anthropic.build_native_body(call, call.native)
    for name in (*_NOT_SENT, *call.native.beside.get("bedrock", ())):
        body.pop(name, None)
    head: dict[str, Any] = {"anthropic_version": _VERSION}
    if betas := _choose_betas(call.native):
        head["anthropic_beta"] = betas
    body = anthropic.mark_last_block(anthropic.drop_scopes(anthropic.drop_attribution(body)))
    method = "invoke-with-response-stream" if call.stream else "invoke"
    return post(call, method, {**head, **body}, clock)


class InvokeFrames:
    """Splits bytes into the events of Anthropic's stream that AWS's event stream carries."""

    __slots__ = ("_frames",)

    def __init__(self) -> None:
        self._frames = Frames()

    @property
    def is_complete(self) -> bool:
        return self._frames.is_complete

    @property
    def held(self) -> int:
        return self._frames.held

    def flush(self) -> Iterator[bytes]:
        raise InvalidStream("A message of the stream is cut off.")

    def feed(self, data: bytes) -> Iterator[bytes]:
        for message in self._frames.feed(data):
            if message.headers.get(":message-type") != "event":
                raise parse_failure(message)
            if message.headers.get(":event-type") != "chunk":
                continue
            try:
                yield _decode_part(message.payload).event
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise InvalidStream("An event of the stream is malformed.") from None


def _choose_betas(native: NativeBody) -> list[str]:
    """Returns the caller's betas that Bedrock knows, and those that the tools need here."""
    asked = [
        name for header, text in native.headers if header == BETA for name in split_betas(text)
    ]
    raw = native.fields.get("tools")
    tools = bytes(raw) if isinstance(raw, msgspec.Raw) else b""
    needed = [beta for mark, beta in _BETAS_OF_TOOLS if mark.search(tools)]
    return list(dict.fromkeys(name for name in (*asked, *needed) if name in _BETAS))


def _refuse_references(native: NativeBody) -> None:
    """Raises :class:`Untranslatable` for media that are not inside the request."""
    raw = native.fields.get("messages")
    if isinstance(raw, msgspec.Raw) and _MAY_REFER.search(raw):
        for turn in msgspec.json.decode(raw):
            _check_sources(turn.get("content"))


def _check_sources(blocks: Any) -> None:
    for block in blocks if isinstance(blocks, list) else ():
        if not isinstance(block, dict):
            continue
        source = block.get("source")
        if isinstance(source, dict) and source.get("type") in _REFERENCES:
            raise Untranslatable("Bedrock accepts media only inside the request, in Base64.")
        if block.get("type") == "tool_result":
            _check_sources(block.get("content"))
