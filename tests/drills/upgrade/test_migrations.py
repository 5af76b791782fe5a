"""Migrations expand: what the release before uses stays as it is, and no table is locked for long.

A later release may drop what no release uses any more.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from django.db import connection

from tests.drills.upgrade.migrations import OURS, find_violations, record_statements

REASONS: Final[dict[str, dict[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("reasons.toml").read_text()
)
ADVICE: Final = """
A migration may add tables, columns with a database default or NULL, indexes made concurrently, and
checks that are added NOT VALID and validated afterwards. What it removes must have been unused in
the release before. If no running worker is hurt, add the reason to
tests/drills/upgrade/reasons.toml.
"""


@pytest.fixture
def statements(django_db_setup: None, django_db_blocker: Any) -> Iterator[dict[str, list[str]]]:
    """Returns the statements of every migration, on an empty database of its own."""
    usual = connection.settings_dict["NAME"]
    name = f"{usual}_lint"
    with django_db_blocker.unblock():
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        connection.close()
        connection.settings_dict["NAME"] = name
        try:
            yield record_statements()
        finally:
            connection.close()
            connection.settings_dict["NAME"] = usual
            with connection.cursor() as cursor:
                cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_migrations_only_expand(statements: dict[str, list[str]]) -> None:
    assert {name.partition(".")[0] for name in statements} == OURS
    found: dict[str, dict[str, set[str]]] = {}
    for migration, each in statements.items():
        broken = defaultdict(set)
        for rule, table in find_violations(each):
            broken[rule].add(table)
        if broken:
            found[migration] = dict(broken)
    excused = {
        migration: {rule: set(tables) for rule, tables in each.items() if rule != "reason"}
        for migration, each in REASONS.items()
    }
    assert found == excused, ADVICE


def test_every_exception_has_a_reason() -> None:
    assert [name for name, each in REASONS.items() if len(each.get("reason", "").split()) < 5] == []


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ('DROP TABLE "billing_excess" CASCADE', "drop table"),
        ('ALTER TABLE "billing_excess" DROP COLUMN "note" CASCADE', "drop column"),
        ('ALTER TABLE "billing_excess" RENAME TO "billing_review"', "rename"),
        ('ALTER TABLE "billing_excess" RENAME COLUMN "note" TO "text"', "rename"),
        ('ALTER TABLE "billing_excess" ALTER COLUMN "note" TYPE text', "change a type"),
        ('ALTER TABLE "billing_excess" ALTER COLUMN "note" SET NOT NULL', "require a value"),
        (
            'ALTER TABLE "billing_excess" ALTER COLUMN "n" DROP DEFAULT',
            "require a value",
        ),
        ('ALTER TABLE billing_excess ADD COLUMN "n" integer NOT NULL', "require a value"),
        ('CREATE INDEX "e" ON "billing_excess" ("note")', "index under a lock"),
        (
            'ALTER TABLE "billing_excess" ADD CONSTRAINT "e" UNIQUE ("note")',
            "unique under a lock",
        ),
        (
            'ALTER TABLE "billing_excess" ADD CONSTRAINT "e" CHECK ("n" > 0)',
            "check under a lock",
        ),
        ("LOCK TABLE ONLY billing_excess IN ACCESS EXCLUSIVE MODE", "lock table"),
    ],
)
def test_each_rule_finds_what_it_forbids(statement: str, rule: str) -> None:
    assert list(find_violations([statement])) == [(rule, "billing_excess")]
    made = ['CREATE TABLE "billing_excess" ("id" bigint)', statement]
    assert list(find_violations(made)) == []


@pytest.mark.parametrize(
    "statement",
    [
        'ALTER TABLE "billing_excess" ADD COLUMN "note" text NULL',
        'ALTER TABLE "billing_excess" ADD COLUMN "n" integer DEFAULT 0 NOT NULL',
        'CREATE INDEX CONCURRENTLY "e" ON "billing_excess" ("note")',
        'ALTER TABLE "billing_excess" ADD CONSTRAINT "e" CHECK ("n" > 0) NOT VALID',
        'ALTER TABLE "billing_excess" VALIDATE CONSTRAINT "e"',
        'ALTER TABLE "billing_excess" ADD CONSTRAINT "e" PRIMARY KEY USING INDEX "e"',
    ],
)
def test_what_expands_is_allowed(statement: str) -> None:
    assert list(find_violations([statement])) == []
