"""The operations of a model: the outputs of each one, and those that a deployment serves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from catalog.dialects.base import Dialect, Operation

_COMPLETED: Final = frozenset(("text", "image", "audio"))
# The output modalities of the catalogue that an operation can produce.
_PRODUCES: Final[Mapping[Operation, frozenset[str]]] = {
    Operation.CHAT: _COMPLETED,
    Operation.TEXT: _COMPLETED,
    Operation.EMBEDDINGS: frozenset(("embeddings",)),
}
# A validation probes the first of these that a deployment serves.
_PROBED: Final = (Operation.CHAT, Operation.EMBEDDINGS)


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
        if not _PRODUCES[operation].isdisjoint(outputs)
    )


def probed_operation(served: Collection[Operation]) -> Operation | None:
    """Returns the operation by which a deployment is validated; ``None`` if no route serves it."""
    return next((operation for operation in _PROBED if operation in served), None)
