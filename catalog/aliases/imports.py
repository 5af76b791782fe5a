"""Imports and exports aliases: JSON lines with the members ``name`` and ``targets``.

An import creates the aliases that the owner does not have, and gives the others the targets of
their line. Aliases that the file does not name stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from uuid import UUID

import msgspec
from django.db import transaction

from catalog.aliases.changes import find_problem, known_models, lock_owner, require_room
from catalog.models.aliases import ModelAlias
from catalog.sync.plans.columns import find_column_changes
from config.api.errors import GatewayError
from config.bulk.problems import ImportRefused, Problems
from config.bulk.report import Report, RowListener, RowOutcome
from config.bulk.rows import decode_lines, parse_json_rows
from config.clocks.clock import clock

KIND: Final = "aliases"
_CHUNK: Final = 1_000
# More lines than one owner may have aliases are not read.
_MAX_LINES: Final = 10_000


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    targets: list[str]


def apply(
    organization_id: UUID | None,
    lines: Iterable[bytes],
    *,
    dry_run: bool = False,
    on_row: RowListener | None = None,
) -> Report:
    """Creates and updates the aliases of an organization, or of the operator, all or none.

    ``dry_run`` takes the same path and rolls back; ``on_row`` receives the outcome of each row.
    Raises :class:`ImportRefused`.
    """
    report = Report.of_kinds(KIND, dry_run=dry_run)
    count = report.counter(on_row)
    with transaction.atomic():
        lock_owner(organization_id)
        store(organization_id, _read_rows(lines, organization_id), count)
        transaction.set_rollback(dry_run)
    return report


def store(organization_id: UUID | None, rows: Mapping[str, list[str]], on_row: RowListener) -> None:
    """Gives names their targets, which :func:`find_problem` has found right, all or none.

    Raises :class:`ImportRefused`.
    """
    with transaction.atomic():
        owner = lock_owner(organization_id)
        stored = {row.name: row for row in ModelAlias.objects.of_owner(organization_id)}
        created: list[ModelAlias] = []
        updated: list[ModelAlias] = []
        for name, targets in rows.items():
            alias = stored.get(name)
            if alias is None:
                created.append(
                    ModelAlias(organization_id=organization_id, name=name, targets=targets)
                )
                on_row(KIND, name, RowOutcome.CREATE)
            elif alias.targets != targets:
                changes = find_column_changes(alias, {"targets": targets})
                alias.targets, alias.updated_at = targets, clock.now()
                updated.append(alias)
                on_row(KIND, name, RowOutcome.UPDATE, changes)
            else:
                on_row(KIND, name, RowOutcome.UNCHANGED)
        try:
            require_room(owner, stored, [alias.name for alias in created])
        except GatewayError as exc:
            raise ImportRefused([exc.message]) from None
        ModelAlias.objects.bulk_create(created, batch_size=_CHUNK)
        ModelAlias.objects.bulk_update(updated, ["targets", "updated_at"], batch_size=_CHUNK)


def export(organization_id: UUID | None) -> Iterator[bytes]:
    """Yields the lines of a file, by name; :func:`apply` changes nothing for them."""
    rows = ModelAlias.objects.of_owner(organization_id).order_by("name")
    for name, targets in rows.values_list("name", "targets"):
        yield msgspec.json.encode(_Row(name, targets)) + b"\n"


def _read_rows(lines: Iterable[bytes], organization_id: UUID | None) -> dict[str, list[str]]:
    """Returns the targets of each name; raises :class:`ImportRefused` with all problems."""
    problems = Problems()
    rows: list[tuple[int, _Row]] = []
    for line, row in parse_json_rows(decode_lines(lines, problems), _Row, problems):
        if len(rows) == _MAX_LINES:
            problems.stop(line, f"the file has more than {_MAX_LINES:,} lines")
        rows.append((line, row))
    known = known_models(
        {name for _, row in rows for name in (row.name, *row.targets)}, organization_id
    )
    stored = dict(ModelAlias.objects.of_owner(organization_id).values_list("name", "targets"))
    first: dict[str, int] = {}
    found: dict[str, list[str]] = {}
    for line, row in rows:
        if row.name in first:
            problems.add(line, f"the same name as line {first[row.name]}")
        elif row.targets != (present := stored.get(row.name)) and (
            problem := find_problem(row.name, row.targets, known=known.union(present or ()))
        ):
            problems.add(line, problem)
        first.setdefault(row.name, line)
        found.setdefault(row.name, row.targets)
    problems.raise_if_any()
    return found
