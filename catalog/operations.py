"""The table of operations: what each one produces, bills and can do, and what a deployment serves.

Nothing else asks which operation a request has. What only one part of the gateway needs to know of
it stands in a table of that part, keyed by the operation: how its requests are read in
``inference.requests.operations``, where their text stands in ``inference.filters.places``, how its
answers are rendered in ``inference.exchange.rendering``, what proves a deployment in
``endpoints.validation.probes``, and how a provider speaks it in its dialect.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from catalog.dialects.base import Dialect, Operation

# A model whose only output is an image has no chat: it makes images.
_COMPLETED: Final = frozenset(("text", "audio"))
_PROMPT: Final = ("prompt", "cached", "cache_write")
_COMPLETION: Final = ("completion", "reasoning", "image_output")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRow:
    """The properties of one operation that all parts of the gateway use.

    ``api_type`` is its name in reports, and ``span_name`` that of the conventions for generative
    AI, if they have one. ``outputs`` are the output modalities of the catalogue that it can
    produce. ``streams`` says whether a caller may ask for a stream. ``counts`` are the members of a
    usage that it may have, and ``proof`` those of which an honest usage has at least one: a
    deployment that reports none cannot be billed. ``proven_by`` is another operation, if that one's
    validation proves this one, too. ``is_bytes`` says that its answers are bytes, not JSON, which
    are streamed to every caller.

    ``is_written`` says that its answers are texts, for which a model may search the web, and whose
    requests may name a preset. ``has_messages`` says that its prompt is a conversation, which may
    begin with a system prompt and may have files.
    """

    api_type: str
    outputs: frozenset[str]
    counts: tuple[str, ...]
    proof: tuple[str, ...] = ("prompt",)
    span_name: str = ""
    streams: bool = False
    proven_by: Operation | None = None
    is_bytes: bool = False
    is_written: bool = False
    has_messages: bool = False


# A validation probes those that a deployment may serve, in this order.
OPERATIONS: Final[Mapping[Operation, OperationRow]] = {
    Operation.CHAT: OperationRow(
        api_type="completions",
        outputs=_COMPLETED,
        counts=(*_PROMPT, *_COMPLETION, "images"),
        span_name="chat",
        streams=True,
        is_written=True,
        has_messages=True,
    ),
    Operation.TEXT: OperationRow(
        api_type="completions",
        outputs=_COMPLETED,
        counts=(*_PROMPT, *_COMPLETION),
        span_name="text_completion",
        streams=True,
        proven_by=Operation.CHAT,
        is_written=True,
    ),
    Operation.EMBEDDINGS: OperationRow(
        api_type="embeddings",
        outputs=frozenset(("embeddings",)),
        counts=("prompt", "images"),
    ),
    Operation.SPEECH: OperationRow(
        api_type="tts",
        outputs=frozenset(("speech",)),
        counts=("prompt", "completion", "audio_output", "characters", "milliseconds"),
        # The text is known before it is spoken, and few servers report anything.
        proof=(),
        streams=True,
        is_bytes=True,
    ),
    Operation.TRANSCRIPTION: OperationRow(
        api_type="stt",
        outputs=frozenset(("transcription",)),
        counts=("prompt", "completion", "audio", "milliseconds"),
        # Many servers report only the text; the length of the file is known.
        proof=(),
    ),
    Operation.RERANK: OperationRow(
        api_type="rerank",
        outputs=frozenset(("rerank",)),
        counts=("prompt", "images", "searches"),
        # Some providers count tokens, and others search units.
        proof=("prompt", "searches"),
    ),
    Operation.IMAGES: OperationRow(
        api_type="image",
        outputs=frozenset(("image",)),
        counts=(*_PROMPT, *_COMPLETION, "images", "image_prompt", "output_images"),
        # A provider that bills by the image need not count tokens.
        proof=("output_images",),
        streams=True,
    ),
}
API_TYPES: Final = tuple(dict.fromkeys(row.api_type for row in OPERATIONS.values()))


def name_span(operation: Operation) -> str:
    """Returns the name of an operation in traces; one without a convention has its path."""
    return OPERATIONS[operation].span_name or operation.value


def served_operations(outputs: Collection[str], dialect: Dialect | None) -> frozenset[Operation]:
    """Returns the operations that both a model, by its output modalities, and a format support.

    A model whose modalities are unknown is expected to support what its format does.
    """
    if dialect is None:
        return frozenset()
    if not outputs:
        return dialect.operations
    return frozenset(
        operation
        for operation in dialect.operations
        if not OPERATIONS[operation].outputs.isdisjoint(outputs)
    )


def served_outputs(outputs: Collection[str], served: Collection[Operation]) -> frozenset[str]:
    """Returns the output modalities of a model that the served operations can produce."""
    produced: set[str] = set()
    produced.update(*(OPERATIONS[operation].outputs for operation in served))
    return frozenset(outputs) & produced


def probed_operations(served: Collection[Operation]) -> tuple[Operation, ...]:
    """Returns the operations by which a deployment is validated; none if no route serves it.

    One that another proves is asked for itself where the other is not served.
    """
    return tuple(
        name for name, row in OPERATIONS.items() if name in served and row.proven_by not in served
    )


def proven_operations(
    served: frozenset[Operation], proven: Collection[str] | None
) -> frozenset[Operation]:
    """Returns the served operations that a validation has proven; all if it tells none."""
    if proven is None:
        return served
    return frozenset(
        each for each in served if each in proven or OPERATIONS[each].proven_by in proven
    )
