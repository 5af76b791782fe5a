"""Reads the UTC days that commands take, as ``2026-03-31``."""

from __future__ import annotations

import argparse
from datetime import date


def parse_day(text: str) -> date:
    """Returns the day; argparse shows the error."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError("a day is written as 2026-03-31") from None
