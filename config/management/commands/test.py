from __future__ import annotations

import os
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Runs the test suite with pytest on a throw-away PostgreSQL; takes pytest's arguments."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Becomes pytest, so that its arguments, signals and exit code are its own."""
        os.chdir(settings.BASE_DIR)
        arguments = argv[2:] or ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments])

    def handle(self, *args: Any, **options: Any) -> None:
        self.run_from_argv(sys.argv)
