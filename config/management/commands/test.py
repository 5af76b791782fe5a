from __future__ import annotations

import itertools
import os
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from config.local.entry import IS_CLONE

PARALLEL = ("-n", "4", "--dist", "loadscope")


def add_workers(arguments: list[str]) -> list[str]:
    """Returns pytest's arguments, preceded by ``PARALLEL`` unless they choose their own workers."""
    chosen = any(
        argument.startswith(("-n", "--numprocesses", "-pno:xdist", "--pdb", "--trace"))
        or (argument == "-p" and following == "no:xdist")
        for argument, following in itertools.zip_longest(arguments, arguments[1:])
    )
    return arguments if chosen else [*PARALLEL, *arguments]


class Command(BaseCommand):
    help = (
        "Runs the quick tests with pytest on a throw-away PostgreSQL, in four processes; takes"
        " --full, --release and pytest's arguments (-n 0 runs one process)."
    )
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Replaces this process with pytest, which handles arguments, signals and exit code."""
        if not IS_CLONE:
            sys.exit("An installation has no tests: run python3 manage.py test in a clone.")
        os.chdir(settings.BASE_DIR)
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *add_workers(argv[2:])])

    def handle(self, *args: Any, **options: Any) -> None:
        self.run_from_argv(sys.argv)
