#!/usr/bin/env python3
"""Django's entry; installs the project first when that was not done yet."""

import os
import sys

from config.local import bootstrap, demo

if __name__ == "__main__":
    bootstrap.ensure()
    if sys.argv[1:2] == ["demo"]:
        demo.prepare_environment(sys.argv[2:])
    # Only now is it certain that this interpreter has Django.
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    try:
        if sys.argv[1:2] not in ([], ["help"], ["--help"], ["--version"]):
            _ = settings.DEBUG  # the first access reads them all
    except (ImproperlyConfigured, OSError, ValueError) as exc:
        sys.exit(f"Causeway cannot start: {exc}")
    execute_from_command_line(sys.argv)
