"""The table of answers: how the answers of each operation are rendered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from catalog.capabilities import NativeFormat
from catalog.dialects.base import Chunk, Operation, Reply
from catalog.dialects.shared.images.replies import split_reply
from catalog.pricing import Usage
from inference.requests.messages import relay
from inference.requests.responses import envelope


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
    event of an answer that fails after this number of events; without it, an error is told as in
    chat. ``costs`` renames the parts of an upstream's cost.
    """

    encode_event: Callable[[Members], bytes]
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
        relay.encode_event,
        relay.write_start,
        relay.is_end,
        relay.write_end,
        relay.write_counts,
        relay.DEFAULTS,
    ),
    NativeFormat.RESPONSES: NativeForm(
        envelope.encode_event,
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
