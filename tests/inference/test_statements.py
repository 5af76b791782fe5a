"""The SQL files of the data plane match the structs that they read and return."""

from __future__ import annotations

import re
from datetime import datetime
from importlib.resources import files
from types import UnionType
from typing import Any, get_args, get_type_hints
from uuid import UUID

import pytest
from django.db import connection

from billing.budgets import MeterReading
from config import sql
from inference.admission.admit import GenerationRow
from inference.admission.authority import READ_AUTHORITY, READ_METERS, Authority
from inference.admission.budgets import Ceiling
from inference.admission.recognition import RECOGNIZE, KeyRow
from inference.admission.renewal import RenewedDigest
from inference.routing.health import Bucket
from inference.settlement.journal import Progress
from inference.settlement.settle import SettlementRow
from inference.store import find_lock_ms

COLUMN_TYPES = {
    str: {"text"},
    UUID: {"uuid"},
    bool: {"bool"},
    int: {"bigint", "int", "integer"},
    float: {"double precision"},
    datetime: {"timestamptz"},
    list[int]: {"integer[]"},
    list[UUID]: {"uuid[]"},
    list[float]: {"double precision[]"},
    list[dict[str, Any]]: {"jsonb"},
    dict[str, Any]: {"jsonb"},
}
BATCHES = [
    ("admit", 1, GenerationRow),
    ("admit", 2, Ceiling),
    ("settle", 1, SettlementRow),
    ("journal", 1, Progress),
    ("exchange_health", 1, Bucket),
    ("renew_digests", 1, RenewedDigest),
]
STATEMENTS = [
    (package, file.name.removesuffix(".sql"))
    for package in ("billing", "inference")
    for file in sorted(files(package).joinpath("sql").iterdir(), key=lambda file: file.name)
]


def batch_columns(name: str, parameter: int) -> dict[str, str]:
    """Returns the columns that a statement reads from a JSON parameter, with their types."""
    statement = sql.load_statement("inference", name).text
    found = re.search(
        rf"json_to_recordset\(\${parameter}::json\) AS \w+ \((.*?)\n    \)", statement, re.DOTALL
    )
    assert found is not None
    return dict(column.strip().split(" ", 1) for column in found[1].split(","))


def required_type(hint: Any) -> Any:
    """Returns the type that a field has when it is not ``None``."""
    if isinstance(hint, UnionType):
        (hint,) = (each for each in get_args(hint) if each is not type(None))
    return hint


@pytest.mark.parametrize(("name", "parameter", "struct"), BATCHES)
def test_the_columns_of_a_batch_are_the_fields_of_its_struct(
    name: str, parameter: int, struct: type
) -> None:
    columns = batch_columns(name, parameter)
    hints = get_type_hints(struct)
    assert list(columns) == list(hints)
    for column, hint in hints.items():
        assert columns[column] in COLUMN_TYPES[required_type(hint)], column


@pytest.mark.parametrize(
    ("statement", "leading", "fields"),
    [
        (READ_AUTHORITY, "digest", ["catalog_version", *Authority.__struct_fields__]),
        (RECOGNIZE, "found_by", list(KeyRow.__struct_fields__[1:])),
        (READ_METERS, "read_at", list(MeterReading._fields)),
    ],
)
def test_the_columns_of_a_result_are_the_fields_of_its_struct(
    db: None, statement: sql.Statement, leading: str, fields: list[str]
) -> None:
    with connection.cursor() as cursor:
        sql.execute(cursor, statement, [[]])
        assert [column.name for column in cursor.description] == [leading, *fields]


@pytest.mark.parametrize(("package", "name"), STATEMENTS)
def test_the_header_of_a_statement_states_its_parameters_result_and_locks(
    package: str, name: str
) -> None:
    text = files(package).joinpath("sql", f"{name}.sql").read_text("utf-8")
    header = text[: re.search(r"^[^-]", text, re.MULTILINE).start()]
    assert "-- Returns: " in header
    assert ("-- Lock order: " in header) != ("-- Locks: none." in header)
    assert ("-- Parameters: " in header) == ("$1" in text[len(header) :])


def test_load_statement_removes_the_comments() -> None:
    for package, name in STATEMENTS:
        assert "--" not in sql.load_statement(package, name).text


@pytest.mark.parametrize(
    ("usual_seconds", "milliseconds"),
    [(0, 50), (0.010, 50), (0.011, 100), (0.020, 100), (0.021, 150), (0.031, 200), (9.0, 200)],
)
def test_a_statement_of_several_organizations_waits_for_a_few_like_itself(
    usual_seconds: float, milliseconds: int
) -> None:
    assert find_lock_ms(usual_seconds) == milliseconds
