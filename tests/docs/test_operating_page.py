"""The pages for operators list the commands, options, duties and metrics that exist."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import chain
from pathlib import Path

from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand
from django.db import connection
from django.utils.module_loading import import_string
from prometheus_client import REGISTRY

from billing.models import Account
from config.apps import Role, declarations, declaring_apps
from config.local.bootstrap import PROJECT
from config.management.commands.work import DUTIES
from tests.support.database.locks import locked, waiting
from tests.support.factories import Tenant
from tests.support.markdown import PAGES, SHELL, read_blocks, read_tables

DOCS = PROJECT / "docs"
APPS = {"accounts", "billing", "catalog", "config", "endpoints", "endusers", "inference"}
# Django's own, with more options than operators need.
DJANGOS = {"migrate", "createsuperuser", "changepassword"}


def listed(page: str) -> list[str]:
    """Returns what stands in code in the first cell of every table row."""
    rows = read_tables(DOCS / page)
    return [name for cell, *_ in rows for name in re.findall(r"`([^`]+)`", cell)]


def test_every_command_is_listed_with_its_options() -> None:
    commands = {name: app for name, app in get_commands().items() if app in APPS}
    lines = listed("commands.md")
    found = {line.split()[0]: line for line in lines if line.split()[0] in commands}
    assert set(found) == set(commands)
    for name, line in found.items():
        if name in DJANGOS:
            continue
        command = load_command_class(commands[name], name)
        assert set(re.findall(r"--[a-z-]+", line)) == _options(command) - _options(BaseCommand())
    assert {line.split()[0] for line in lines} >= DJANGOS


def _options(command: BaseCommand) -> set[str]:
    parser = command.create_parser("manage.py", "command")
    return {text for action in parser._actions for text in action.option_strings if "--" in text}


def test_every_duty_is_listed_with_its_interval() -> None:
    wanted = {(duty.name, f"{duty.every_seconds:g} s") for duty in DUTIES}
    rows = {(row[0].strip("`"), row[1]) for row in read_tables(DOCS / "operating.md")}
    assert {row for row in rows if row[1].endswith(" s")} == wanted


def test_every_metric_is_listed(db: None) -> None:
    import_module("config.asgi").control_plane.load()  # registers the metrics of both planes
    collectors = [import_string(path)() for app in declaring_apps() for path in app.collectors]
    families = [*REGISTRY.collect(), *chain(*(each.collect() for each in collectors))]
    names = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in families
        if family.name.startswith("causeway_")
    }
    assert {name for name in listed("metrics.md") if name.startswith("causeway_")} == names


def test_all_that_support_may_change_is_listed() -> None:
    """By the titles that the console has among the tabs of an organization, or in its menu."""
    titles = {label: found.tab.title for label, found in declarations().items() if found.tab}
    pages = (page for app in declaring_apps() for entry in app.menu for page in entry.pages)
    titles |= {page.target: page.title for page in pages}
    may = {label for label, found in declarations().items() if Role.SUPPORT in found.permissions}
    [row] = [cells[1] for cells in read_tables(DOCS / "operators.md") if cells[0] == Role.SUPPORT]
    assert {label for label in may if titles[label].lower() not in row} == set()


def test_the_places_in_the_console_that_pages_name_are_there() -> None:
    """Those are meant that a page writes as an entry of the menu with a page, or as a tab."""
    text = " ".join(" ".join(page.read_text().split()) for page in PAGES)
    entries = [entry for app in declaring_apps() for entry in app.menu]
    menu = {f"{entry.title} → {page.title}" for entry in entries for page in entry.pages}
    tabs = {found.tab.title for found in declarations().values() if found.tab}
    named = {*re.findall(r"\*(\w[\w ]* → [^*]+)\*", text)}
    # A button of a list, and a menu of Grafana.
    assert named - menu == {"Providers → Connect a server", "Dashboards → New → Import"}
    assert {*re.findall(r"\*([^*]+)\* on an organization's page", text)} - tabs == set()


def test_the_query_of_the_page_names_the_session_that_holds_a_lock(
    tenant: Tenant, transactional_db: None, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    [block] = read_blocks(DOCS / "database.md", "sql")
    rows = Account.objects.filter(organization=tenant.organization).order_by()

    def wait_for_lock() -> None:
        with locked(rows):
            pass

    with ThreadPoolExecutor(1) as pool:
        with locked(rows):
            waiter = pool.submit(wait_for_lock)
            eventually(lambda: waiting() == 1)
            with connection.cursor() as cursor:
                cursor.execute(block.text)
                columns = [column.name for column in cursor.description]
                [found] = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
        waiter.result()
    assert found["state"] == "idle in transaction"
    assert "billing_account" in found["last_statement"]
    assert found["held_by"] != found["pid"]


def test_a_base_backup_replaces_the_last_one_once_it_is_verified(tmp_path: Path) -> None:
    """The two programs of PostgreSQL are scripts, each of which fails when a file says so."""
    [block] = [
        block for block in read_blocks(DOCS / "backup.md", SHELL) if "pg_basebackup" in block.text
    ]
    backups, programs = tmp_path / "backups", tmp_path / "programs"
    backups.mkdir()
    programs.mkdir()
    broken, taken = tmp_path / "broken", tmp_path / "taken"
    copies = "mkdir base.new && cp $TAKEN base.new/taken"
    for name, does in (("pg_basebackup", copies), ("pg_verifybackup", "true")):
        program = programs / name
        program.write_text(f"#!/bin/sh\n{does}\n! grep -qs {name} $BROKEN\n")
        program.chmod(0o755)
    variables = {
        "PATH": f"{programs}:{os.environ['PATH']}", "BACKUPS": str(backups),
        "DATABASE_URL": "postgres://there", "BROKEN": str(broken), "TAKEN": str(taken),
    }  # fmt: skip

    def back_up(number: str, breaks: str = "") -> int:
        taken.write_text(number)
        broken.write_text(breaks)
        return subprocess.run(["bash", "-c", block.text], env=variables).returncode

    def read() -> dict[str, str]:
        return {path.parent.name: path.read_text() for path in backups.glob("base*/taken")}

    assert back_up("first") == 0
    assert read() == {"base": "first"}
    for program in ("pg_basebackup", "pg_verifybackup"):
        assert back_up("spoilt", program) == 1
        assert read()["base"] == "first"
    assert back_up("second") == 0
    assert read() == {"base": "second", "base.old": "first"}


def test_the_archive_of_the_wal_goes_on_after_its_disk_was_full(tmp_path: Path) -> None:
    [lines] = [
        block.text
        for block in read_blocks(DOCS / "backup.md", "text")
        if "archive_command" in block.text
    ]
    [command] = re.findall(r"^archive_command = '(.+)'$", lines, re.MULTILINE)
    folder, segment = tmp_path / "wal", tmp_path / "segment"
    folder.mkdir()
    segment.write_bytes(bytes(range(256)) * 16)
    for written, meant in (
        ("/var/backups/causeway/wal", f"{folder}"),
        ("%f", "0001"),
        ("%p", f"{segment}"),
    ):
        command = command.replace(written, meant)

    def archive(kib: str) -> int:
        """Runs the command where no file grows beyond a limit; returns its code."""
        script = f"trap '' XFSZ; ulimit -f {kib}; {command}"
        return subprocess.run(["bash", "-c", script], stderr=subprocess.PIPE).returncode

    assert archive("1") == 1
    assert archive("unlimited") == 0
    assert [file.name for file in folder.iterdir()] == ["0001"]
    assert (folder / "0001").read_bytes() == segment.read_bytes()
    # A file that the archive has is never replaced.
    segment.write_bytes(b"another")
    assert archive("unlimited") == 1
    assert len((folder / "0001").read_bytes()) == 4096
