"""The cells of the state tables of the stateful models, and the check that they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction


def cells(
    table: dict[str, tuple[Any, ...]], transitions: dict[str, Any]
) -> list[tuple[str, str, Any]]:
    """Returns the state, the transition and the entry of each cell of a table of rows."""
    return [
        (state, transition, expected)
        for state, row in table.items()
        for transition, expected in zip(transitions, row, strict=True)
    ]


def check_transition(
    row: Any, transition: Callable[[], object], expected: object, state_of: Callable[[Any], str]
) -> None:
    """Makes a transition and compares the result with an entry of a state table.

    The entry is the new state, ``False`` for a transition that reports that it changed nothing, or
    the exception that refuses it. A refusal must leave every column unchanged.
    """
    before = _columns(row)
    if isinstance(expected, str):
        with transaction.atomic():
            assert transition() is not False
        assert state_of(type(row)._base_manager.get(pk=row.pk)) == expected
        return
    if expected is False:
        with transaction.atomic():
            assert transition() is False
    else:
        assert isinstance(expected, type)
        with pytest.raises(expected) as raised, transaction.atomic():
            transition()
        assert type(raised.value) is expected
    assert _columns(row) == before


def _columns(row: Any) -> dict[str, Any]:
    columns: dict[str, Any] = type(row)._base_manager.filter(pk=row.pk).values().get()
    return columns
