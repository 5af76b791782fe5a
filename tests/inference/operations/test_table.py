"""The table of operations decides: no part of the gateway asks which operation a request has."""

from __future__ import annotations

import re
from pathlib import Path

from catalog.dialects.base import Operation
from catalog.operations import name_span
from config.local.bootstrap import PROJECT

# The formats of providers differ by operation, and each dialect is a table of its own.
DIALECTS = PROJECT / "catalog" / "dialects"
ASKS = re.compile(r"(?:(?:\bis|\bis not|==|!=|\bcase) |(?:\bin|set) ?[({\[]+)Operation\.")


def iter_sources() -> list[Path]:
    rooms = ("accounts", "billing", "catalog", "config", "endpoints", "endusers", "inference")
    found = [path for room in rooms for path in (PROJECT / room).rglob("*.py")]
    return [path for path in found if DIALECTS not in path.parents]


def test_nothing_asks_which_operation_it_is() -> None:
    asking = [path for path in iter_sources() if ASKS.search(path.read_text("utf-8"))]
    assert [str(path.relative_to(PROJECT)) for path in asking] == []


def test_traces_name_operations_by_the_conventions_if_these_have_a_name() -> None:
    operations = (Operation.CHAT, Operation.TEXT, Operation.EMBEDDINGS, Operation.RERANK)
    named = ["chat", "text_completion", "embeddings", "rerank"]
    assert [name_span(operation) for operation in operations] == named
