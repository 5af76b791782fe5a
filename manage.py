#!/usr/bin/env python3
"""Django's entry; installs the project first if it is not installed."""

import gc
import os
import sys

from config.local import bootstrap, demo

if __name__ == "__main__":
    bootstrap.ensure()
    if sys.argv[1:2] == ["demo"]:
        demo.prepare_environment(sys.argv[2:])
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    # What is imported stays, so the collector would look through it again and again for nothing.
    gc.disable()
    # This import needs Django, which the bootstrap has just installed.
    from config.management import cli

    cli.main(sys.argv)
