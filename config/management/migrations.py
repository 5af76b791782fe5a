"""Compares the migrations that a database has with those of this version."""

from __future__ import annotations

import logging
from importlib import import_module
from pkgutil import iter_modules
from typing import NamedTuple

from django.apps import apps
from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from config.bulk.files import refuse
from config.clocks.report import clock_report
from config.database.aliases import leads_elsewhere
from config.database.replaced import REPLACED
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
            f"The database was made by an unreleased version of Causeway ({unknown[0]}, …): "
            "remove the data directory, or point DATA_DIR or DATABASE_URL elsewhere."
        )
    logger.warning(
        "A later release has migrated the database (%s, …). This release runs on it as long as "
        "it is the one before; docs/operating.md says how to upgrade.",
        unknown[0],
    )


def require_migrated() -> None:
    """Refuses a database that cannot be reached or lacks migrations."""
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


class Migration(NamedTuple):
    """A migration, by the label of its app and its own name."""

    app_label: str
    name: str

    def __str__(self) -> str:
        return f"{self.app_label}.{self.name}"


def _pending_migrations() -> list[Migration]:
    """Returns the migrations that the database lacks, by their names."""
    applied = MigrationRecorder(connection).applied_migrations().keys()
    return sorted(find_known_migrations() - applied)


def _unknown_migrations() -> list[Migration]:
    """Returns the applied migrations of present apps that no longer exist, by their names.

    Those that another replaces count as known once all of them are applied, as they do in Django.
    """
    known = find_known_migrations()
    labels = {migration.app_label for migration in known}
    applied = {Migration(*key) for key in MigrationRecorder(connection).applied_migrations()}
    unknown = {migration for migration in applied - known if migration.app_label in labels}
    for label, names in REPLACED.items():
        replaced = {Migration(label, name) for name in names}
        if replaced <= applied:
            unknown -= replaced
    return sorted(unknown)


def find_known_migrations() -> set[Migration]:
    """Returns the migrations of this version, without importing them.

    Django's loader imports every migration, which takes 2 MB of memory of a worker that lives for
    weeks. It treats a module as a migration unless its name begins with an underscore or a tilde,
    and so does this.
    """
    known: set[Migration] = set()
    for config in apps.get_app_configs():
        path, _ = MigrationLoader.migrations_module(config.label)
        if path is None:
            continue
        try:
            package = import_module(path)
        except ModuleNotFoundError as exc:
            if exc.name != path:
                raise
            continue
        # Some apps have a module of this name that is none of migrations.
        known |= {
            Migration(config.label, name)
            for _, name, is_package in iter_modules(getattr(package, "__path__", ()))
            if not is_package and name[0] not in "_~"
        }
    return known
