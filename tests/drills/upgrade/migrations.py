"""What migrations do to tables that running workers use, read from the statements they send."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from django.apps import apps
from django.conf import settings
from django.db import connection
from django.db.migrations import Migration
from django.db.migrations.executor import MigrationExecutor

OURS: Final = {
    each.label for each in apps.get_app_configs() if each.path.startswith(str(settings.BASE_DIR))
    and ".venv" not in each.path
}  # fmt: skip
_NAME: Final = r'(?:public\.)?"?(?P<table>[a-z_0-9]+)"?'
# What workers of the release before cannot live with, or wait for, by the name of the rule.
RULES: Final = {
    "drop table": rf"DROP TABLE (?:IF EXISTS )?{_NAME}",
    "drop column": rf"ALTER TABLE (?:ONLY )?{_NAME} DROP COLUMN",
    "rename": rf"ALTER TABLE (?:ONLY )?{_NAME} RENAME (?!CONSTRAINT)",
    "change a type": rf"ALTER TABLE (?:ONLY )?{_NAME} ALTER COLUMN \S+ TYPE",
    "require a value": (
        rf"ALTER TABLE (?:ONLY )?{_NAME} (?:ALTER COLUMN \S+ (?:SET NOT NULL|DROP DEFAULT)"
        r"|ADD COLUMN (?![^;]* DEFAULT )(?![^;]* GENERATED )[^;]* NOT NULL)"
    ),
    "index under a lock": rf"CREATE (?:UNIQUE )?INDEX (?!CONCURRENTLY).*? ON (?:ONLY )?{_NAME}",
    "unique under a lock": (
        rf"ALTER TABLE (?:ONLY )?{_NAME} ADD CONSTRAINT \S+ (?:UNIQUE|PRIMARY KEY)(?! USING INDEX)"
    ),
    "check under a lock": (
        rf"ALTER TABLE (?:ONLY )?{_NAME} ADD CONSTRAINT \S+ (?:CHECK|FOREIGN KEY)(?!.*NOT VALID)"
    ),
    "lock table": rf"LOCK TABLE (?:ONLY )?{_NAME}",
}


def record_statements() -> dict[str, list[str]]:
    """Migrates an empty database; returns the statements of each migration of ours."""
    found: dict[str, list[str]] = defaultdict(list)
    running: list[Migration] = []

    def note(execute: Any, sql: Any, parameters: Any, many: bool, context: Any) -> Any:
        if running:
            text = sql if isinstance(sql, str) else sql.as_string(context["cursor"].cursor)
            found[_name_of(running[-1])].append(" ".join(text.split()))
        return execute(sql, parameters, many, context)

    def progress(action: str, migration: Migration | None = None, fake: bool = False) -> None:
        if action == "apply_start" and migration is not None:
            running[:] = [migration]
        elif action == "apply_success":
            running.clear()

    executor = MigrationExecutor(connection, progress)
    with connection.execute_wrapper(note):
        executor.migrate(executor.loader.graph.leaf_nodes())
    return {name: each for name, each in found.items() if name.partition(".")[0] in OURS}


def find_violations(statements: list[str]) -> Iterator[tuple[str, str]]:
    """Yields each rule that a migration breaks, with the table; its own new tables are free."""
    made = set()
    for statement in statements:
        for created in re.finditer(rf"CREATE (?:UNLOGGED )?TABLE {_NAME}", statement):
            made.add(created["table"])
        for rule, pattern in RULES.items():
            for broken in re.finditer(pattern, statement):
                if broken["table"] not in made:
                    yield rule, broken["table"]


def _name_of(migration: Migration) -> str:
    return f"{migration.app_label}.{migration.name}"
