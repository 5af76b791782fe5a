"""Compares the migrations that a database has with those of this version."""

from __future__ import annotations

import logging

from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from accounts.cells.membership import require_cell
from config.bulk.files import refuse
from config.clocks.report import clock_report
from config.database.aliases import leads_elsewhere
from config.local.entry import PROGRAM
from config.sql import measure_clock

logger = logging.getLogger(__name__)


def require_known_migrations() -> None:
    """Refuses a database that lacks migrations of ours and has some that we do not know.

    A later release has migrated one that has all of ours. It keeps what this release uses, so
    this release may still run, beside it or after going back.
    """
    unknown = _unknown_migrations()
    if not unknown:
        return
    if _pending_migrations():
        refuse(
            "The database was made by an unreleased version of Causeway: "
            "remove the data directory, or point DATA_DIR or DATABASE_URL elsewhere."
        )
    logger.warning(
        "A later release has migrated the database (%s, …). This release runs on it as long as "
        "it is the one before; docs/operating.md says how to upgrade.",
        unknown[0],
    )


def require_migrated() -> None:
    """Refuses a database that cannot be reached, lacks migrations or is another cell's."""
    try:
        require_known_migrations()
        pending = _pending_migrations()
    except DatabaseError as exc:
        refuse(f"The database cannot be reached: {str(exc).splitlines()[0]}")
    if leads_elsewhere():
        refuse("DATABASE_DIRECT_URL leads to another database than DATABASE_URL.")
    measure_clock()
    clock_report.update()
    if pending:
        refuse(
            f"The database lacks {len(pending)} migrations ({pending[0]}, …); "
            f"run: {PROGRAM} migrate"
        )
    require_cell()


def _pending_migrations() -> list[str]:
    """Returns the migrations that the database lacks, as ``app.name``."""
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return [f"{migration.app_label}.{migration.name}" for migration, _ in plan]


def _unknown_migrations() -> list[str]:
    """Returns the applied migrations of present apps that no longer exist, as ``app.name``."""
    loader = MigrationExecutor(connection).loader
    unknown = loader.applied_migrations.keys() - loader.disk_migrations.keys()
    return sorted(f"{app}.{name}" for app, name in unknown if app in loader.migrated_apps)
