"""Log records: each has the ids of its request, no secret, and takes exactly one line."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from rest_framework.test import APIClient

from config.server import logs

KEY = "mk-cw-" + "0Az" * 16 + "9"


@pytest.fixture
def ids() -> Iterator[None]:
    request, generation = logs.request_id.set("req-1"), logs.generation_id.set("gen-1")
    yield
    logs.request_id.reset(request)
    logs.generation_id.reset(generation)


def record(message: str, *arguments: Any, fails: bool = False) -> logging.LogRecord:
    info = None
    if fails:
        try:
            raise ValueError(f"Authorization: Bearer {KEY}")
        except ValueError:
            info = sys.exc_info()
    made = logging.LogRecord("causeway.test", logging.INFO, "x.py", 1, message, arguments, info)
    logs.ContextFilter().filter(made)
    return made


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"key {KEY} was sent", "key ******** was sent"),
        ("sk-proj-abcdefgh12345678", "********"),
        ("Authorization: Bearer abc.def", "Authorization: ********"),
        ("authorization: bearer abc.def, next", "authorization: ********, next"),
        ('{"Authorization": "Bearer abc"}', '{"Authorization": "********"}'),
        ("AKIAIOSFODNN7EXAMPLE", "********"),
        ("a bearer of news", "a ******** news"),
        ("task-1 risk-averse sk-short", "task-1 risk-averse sk-short"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_text_that_looks_like_a_key_is_masked(text: str, masked: str) -> None:
    assert logs.mask(text) == masked


def test_json_has_one_object_per_line(ids: None) -> None:
    line = logs.JSONFormatter().format(record("two\nlines and %s", "ünïcode"))
    assert "\n" not in line
    entry = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", entry.pop("time"))
    assert entry == {
        "level": "INFO",
        "logger": "causeway.test",
        "message": "two\nlines and ünïcode",
        "request_id": "req-1",
        "generation_id": "gen-1",
    }


def test_json_omits_missing_ids() -> None:
    entry = json.loads(logs.JSONFormatter().format(record("message")))
    assert set(entry) == {"time", "level", "logger", "message"}


@pytest.mark.parametrize("formatter", [logs.JSONFormatter, logs.TextFormatter])
def test_an_exception_is_logged_without_its_secret(formatter: type[logging.Formatter]) -> None:
    line = formatter().format(record("failed with %s", KEY, fails=True))
    assert "ValueError: Authorization: ********" in line
    assert KEY not in line


def test_json_stays_valid_when_a_secret_is_masked() -> None:
    for text in (f'"{KEY}"', f"Bearer {KEY}", f"\\Bearer {KEY}\\", 'Bearer a"b'):
        entry = json.loads(logs.JSONFormatter().format(record("%s", text)))
        assert KEY not in entry["message"]


def test_text_ends_with_the_ids(ids: None) -> None:
    line = logs.TextFormatter().format(record("message"))
    assert line.endswith("INFO causeway.test message request_id=req-1 generation_id=gen-1")


@pytest.mark.parametrize("offered", ["a", "A-1_b.c", "x" * 64])
def test_a_harmless_request_id_is_kept(management: APIClient, offered: str) -> None:
    response = management.get("/api/v1/key", headers={"X-Request-Id": offered})
    assert response.headers["X-Request-Id"] == offered


@pytest.mark.parametrize("offered", ["", "a b", "x" * 65, "a\tb", "é", "<x>", "a\n"])
def test_any_other_request_id_is_replaced(management: APIClient, offered: str) -> None:
    response = management.get("/api/v1/key", headers={"X-Request-Id": offered})
    assert re.fullmatch(r"[0-9a-f]{16}", response.headers["X-Request-Id"])


def test_the_request_id_is_cleared_after_the_request(management: APIClient) -> None:
    management.get("/api/v1/key", headers={"X-Request-Id": "one"})
    assert logs.request_id.get() == ""
