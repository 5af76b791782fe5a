"""The outputs that an endpoint of a model produces."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from catalog import dialects
from catalog.capabilities import Capabilities
from catalog.models import ModelEndpoint
from catalog.operations import proven_operations, served_operations, served_outputs


def find_outputs(
    outputs: Iterable[str],
    capabilities: Capabilities,
    dialect: str,
    proven: frozenset[str] | None = None,
) -> frozenset[str] | None:
    """Returns the outputs of a model that an endpoint produces; ``None`` if it serves nothing.

    ``outputs`` are those of the model; ``dialect`` is that of the endpoint's provider. ``proven``
    are the operations that a validation has proven, if it tells them.
    """
    return _find_outputs(tuple(outputs), capabilities, dialect, proven)


def is_served(endpoint: ModelEndpoint) -> bool:
    """Returns whether a public endpoint serves an operation of its model."""
    model = endpoint.model
    dialect = endpoint.provider.dialect
    return find_outputs(model.output_modalities, model.capabilities, dialect) is not None


@lru_cache(maxsize=1024)
def _find_outputs(
    outputs: tuple[str, ...],
    capabilities: Capabilities,
    dialect: str,
    proven: frozenset[str] | None,
) -> frozenset[str] | None:
    served = served_operations(outputs, dialects.get(dialect, capabilities))
    served = proven_operations(served, proven)
    return served_outputs(outputs, served) if served else None
