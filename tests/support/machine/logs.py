"""What a test itself has logged: a service in another thread of its process logs too."""

from __future__ import annotations

import logging
import threading

import pytest


def own_records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Returns the records of this thread."""
    thread = threading.get_ident()
    return [record for record in caplog.records if record.thread == thread]


def own_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Returns the messages of this thread."""
    return [record.getMessage() for record in own_records(caplog)]
