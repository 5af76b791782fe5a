"""python -m tests.bench.fill --scale F: fills the database that the environment names."""

# ruff: noqa: E402

from __future__ import annotations

import os
import sys

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django

django.setup()

from tests.bench.fill.filling import main

sys.exit(main(sys.argv[1:]))
