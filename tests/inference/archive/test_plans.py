"""``RETENTION_DAYS`` and ``ARCHIVE_URL``: what they mean, and what is refused with its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inference.archive.plans import BucketPlace, DirectoryPlace, parse_place, parse_retention
from tests.support.processes import manage


def test_retention_names_days_by_kind() -> None:
    assert parse_retention("") == {}
    assert parse_retention(" generations=400, audit=0,hours = 31 ") == {
        "generations": 400, "hours": 31,
    }  # fmt: skip
    assert parse_retention("generations=400,transfers=400") == {"generations": 400}
    assert parse_retention("transfers=0") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompts=9", "'prompts' is no kind of data; the kinds are generations, transfers, audit"),
        ("generations", "generations needs a number of days from 0 to 36500"),
        ("generations=-1", "generations needs a number"),
        ("generations=36501", "generations needs a number"),
        ("generations=²", "generations needs a number"),
        ("generations=30", "generations must be 0 (for ever) or at least 31 days"),
        ("audit=0,audit=0", "audit is named twice"),
        ("audit=30", "audit must be 0 (for ever) or at least 31 days"),
        ("transfers=99", "transfers leave with their generations"),
        ("generations=99,transfers=98", "transfers leave with their generations"),
    ],
)
def test_a_wrong_retention_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_retention(text)


def test_a_place_is_a_directory_or_a_bucket() -> None:
    assert parse_place("") is None
    assert parse_place("none") is None
    assert parse_place("/srv/a b") == parse_place("file:///srv/a%20b")
    assert parse_place("/srv/a b") == DirectoryPlace(Path("/srv/a b"))
    assert parse_place("s3://logs") == BucketPlace("logs", "", None, None)
    assert parse_place("s3://logs/x/y/?endpoint=https://s3.example.com&region=eu-1") == BucketPlace(
        "logs", "x/y/", "https://s3.example.com", "eu-1"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("archive", "whole path"),
        ("file://host/srv", "whole path"),
        ("https://example.com/x", "s3://BUCKET/PREFIX"),
        ("s3://", "s3://BUCKET/PREFIX"),
        ("s3://key:secret@bucket", "s3://BUCKET/PREFIX"),
        ("s3://bucket?secret=1", "'secret' is unknown"),
        ("s3://bucket?endpoint=http://minio", "must begin with https://"),
    ],
)
def test_a_wrong_place_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_place(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RETENTION_DAYS": "prompts=9"}, "RETENTION_DAYS is a comma list of kind=days"),
        ({"RETENTION_DAYS": "generations=400"}, "RETENTION_DAYS lets data leave, but ARCHIVE_URL"),
        ({"ARCHIVE_URL": "archive"}, "ARCHIVE_URL: a directory needs its whole path"),
    ],
)
def test_no_process_starts_with_a_wrong_retention(changes: dict[str, str], message: str) -> None:
    done = manage("verify_ledger", **changes)
    assert done.returncode != 0
    assert message in done.stderr
