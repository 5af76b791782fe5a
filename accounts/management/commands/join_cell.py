from __future__ import annotations

import re
from typing import Any

import psycopg
from django.conf import settings
from django.core.management.base import CommandParser
from psycopg import sql

from accounts.cells import replication
from accounts.cells.databases import (
    dsn_of,
    fingerprint,
    open_cell,
    open_here,
    read_identity,
    refuse_in_words,
    require_same_schema,
)
from accounts.models import Cell
from config.bulk.commands import JSONCommand
from config.bulk.files import refuse
from config.cells import CELL_NAME, HOME, MAX_NAME

_TENANT_TABLES = ("accounts_organization", "catalog_provider", "auth_user")
# Row filters of publications came with it.
_OLDEST_SERVER = 150_000


class Command(JSONCommand):
    help = (
        "Makes an empty, migrated database a cell: run it in the home cell, with the cell's "
        "database in CELL_DATABASE_URLS. Run it again after an upgrade, after a change of secrets, "
        "and when a replication was lost."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="the value of CELL in the new cell")
        parser.add_argument("--base-url", help="the address of the new cell's console")
        parser.add_argument(
            "--home-url",
            metavar="URL",
            help="how the cell's PostgreSQL reaches this one (default: DATABASE_DIRECT_URL, else "
            "DATABASE_URL)",
        )
        parser.add_argument(
            "--cell-url",
            metavar="URL",
            help="how this PostgreSQL reaches the cell's (default: as in CELL_DATABASE_URLS)",
        )
        parser.add_argument(
            "--again",
            action="store_true",
            help="copy all shared rows once more, after one of the two databases was restored",
        )
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        name = options["name"]
        if settings.CELL != HOME:
            refuse("Run join_cell in the home cell.")
        if not re.fullmatch(CELL_NAME, name) or len(name) > MAX_NAME or name == HOME:
            refuse("The name of a cell has at most 32 of a-z, 0-9 and hyphens, and is not home.")
        with refuse_in_words(), open_here(self.name) as home, open_cell(name, self.name) as cell:
            self._require_fit(home, cell, name)
            row = self._find_cell(name, options["base_url"])
            replication.publish_catalogue(home)
            replication.adopt(cell, name=name, shard=row.shard, fingerprint=fingerprint())
            replication.publish_directory(cell)
            home_url = options["home_url"] or dsn_of(home)
            cell_url = options["cell_url"] or settings.CELL_DATABASE_URLS[name]
            for publisher, subscriber, subscription in (
                (home, cell, replication.catalogue_for(name, home_url)),
                (cell, home, replication.directory_from(name, cell_url)),
            ):
                replication.subscribe(
                    publisher, subscriber, subscription, begins_again=options["again"]
                )
        self.report({"cell": name, "shard": row.shard}, as_json=options["json"])
        self.note(f"Start serve and work there with CELL={name}, then make the proxy's map again.")

    def _require_fit(
        self, home: psycopg.Connection[Any], cell: psycopg.Connection[Any], name: str
    ) -> None:
        """Refuses databases that cannot replicate, and one that already has other rows."""
        for title, each in (("home", home), (name, cell)):
            level = each.execute("SHOW wal_level").fetchone()
            if each.info.server_version < _OLDEST_SERVER or level != ("logical",):
                refuse(f"The cell {title} needs PostgreSQL 15 or newer with wal_level = logical.")
        require_same_schema(home, cell)
        identity = read_identity(cell)
        if identity not in (HOME, name):
            refuse(f"The database belongs to the cell {identity} already.")
        if identity == HOME:
            for table in _TENANT_TABLES:
                query = sql.SQL("SELECT 1 FROM {} LIMIT 1").format(sql.Identifier(table))
                if cell.execute(query).fetchone():
                    refuse(f"The database of a new cell must be empty, and {table} has rows.")

    def _find_cell(self, name: str, base_url: str | None) -> Cell:
        row = Cell.objects.filter(pk=name).first()
        if row is not None:
            return row
        if base_url is None:
            refuse(f"There is no cell {name} yet: add --base-url, the address of its console.")
        if not base_url.startswith(("https://", "http://")):
            refuse("--base-url must begin with https:// or http://.")
        return Cell.objects.create_cell(name=name, base_url=base_url)
