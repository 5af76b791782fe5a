"""Kills ``work`` while it delivers events: python -m tests.drills.faults.deliveries --kills 100

Prints one JSON object. Exits with 1 if an event was lost, stayed undelivered, or arrived under
another ``webhook-id``; one that arrived twice is allowed, and counted.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import json
import os

import tests.support.embedded  # noqa: F401 - makes a database and secrets, before settings are read

os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"

import django

django.setup()

from django.core.management import call_command

from tests.support.bulkheads.deliveries import kill_deliveries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    options = parser.parse_args()
    call_command("migrate", verbosity=0)
    findings = kill_deliveries(options.kills)
    print(json.dumps(findings.report()))
    raise SystemExit(0 if findings.is_whole else 1)


if __name__ == "__main__":
    main()
