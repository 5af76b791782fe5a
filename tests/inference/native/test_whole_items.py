"""Output that passes whole, without pieces, counts where its provider reports no usage."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from catalog import dialects
from catalog.capabilities import Capabilities, NativeFormat
from catalog.dialects.base import Operation
from tests.support.inference.messages import delta, start, stop
from tests.support.inference.messages import text as said
from tests.support.upstreams.recorded import STARTED
from tests.support.upstreams.recorded_responses import COMPLETED, EVENTS, ITEMS, OPENED, RESPONSE

ADDED: Final = [each for each in ITEMS if each["type"] == "response.output_item.added"]
ENDED: Final = [each for each in ITEMS if each["type"] == "response.output_item.done"]
# The thought, the text and the call of the recorded answer.
SIZES: Final = [5, 7, 18]
SHELL: Final = {"type": "local_shell_call", "id": "s", "action": {"command": ["ls"]}}
PATCH: Final = {"type": "apply_patch_call", "id": "p", "operation": {"diff": "+a"}}


def sizes_of(dialect: str, native_format: NativeFormat, events: list[dict[str, Any]]) -> list[int]:
    """Returns the sizes of the events that have output."""
    native = dialects.get_native(dialect, Capabilities(native_format=native_format))
    assert native is not None
    parser = native.stream_parser(Operation.CHAT)
    sizes = []
    for event in events:
        chunks = parser.feed(b"data: %b\n\n" % json.dumps(event).encode())
        sizes.append(sum(chunk.output_bytes for chunk in chunks))
    return [size for size in sizes if size]


def completed(output: list[dict[str, Any]]) -> dict[str, Any]:
    return {**COMPLETED, "response": {**RESPONSE, "output": output, "usage": None}}


def without_place(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name != "output_index"}


@pytest.mark.parametrize(
    ("events", "sizes"),
    [
        (EVENTS[2:], SIZES),
        ([*ADDED, *ENDED, completed(RESPONSE["output"])], SIZES),
        ([*ADDED, *reversed(ENDED), completed([])], [*reversed(SIZES)]),
        ([{**ENDED[0], "type": ADDED[0]["type"]}, *ITEMS[1:3], completed([])], SIZES[:1]),
        # Only the larger items are seen until the end tells them all.
        ([*map(without_place, ENDED), completed([])], [5, 2, 11, 12]),
        ([completed(RESPONSE["output"])], [sum(SIZES)]),
        ([completed([SHELL, PATCH])], [len('{"command": ["ls"]}{"diff": "+a"}')]),
    ],
    ids=["pieces", "items", "out of order", "twice", "no places", "end", "other calls"],
)
def test_an_item_of_a_response_counts_once(events: list[dict[str, Any]], sizes: list[int]) -> None:
    assert sizes_of("openai", NativeFormat.RESPONSES, [*OPENED, *events]) == sizes


@pytest.mark.parametrize(
    ("events", "sizes"),
    [
        ([{**STARTED, "message": {**STARTED["message"], "content": [said("Hé")]}}], [3]),
        ([STARTED, start(0, said("Hé")), stop(0)], [3]),
        ([STARTED, start(0, {"type": "compaction", "content": "Hé"}), stop(0)], [3]),
        (
            [
                STARTED,
                start(0, {"type": "compaction", "content": None}),
                delta(0, "compaction_delta", content="Hé"),
                stop(0),
            ],
            [3],
        ),
    ],
    ids=["message", "text", "summary", "piece of a summary"],
)
def test_a_whole_block_of_a_message_counts(events: list[dict[str, Any]], sizes: list[int]) -> None:
    assert sizes_of("anthropic", NativeFormat.ANTHROPIC, events) == sizes
