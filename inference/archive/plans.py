"""Reads ``RETENTION_DAYS`` and ``ARCHIVE_URL``; pure, so that the settings can use it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

KINDS: Final = ("generations", "transfers", "audit", "validations", "hours")
# Reports and approvals read the rows of the last 30 days themselves.
LEAST_DAYS: Final = 31
NOWHERE: Final = "none"
_MOST_DAYS: Final = 36_500


@dataclass(frozen=True, slots=True)
class DirectoryPlace:
    """A directory of this host, or one that is mounted there."""

    path: Path


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """A bucket of an S3-compatible store; ``prefix`` is empty or ends with a slash."""

    bucket: str
    prefix: str
    endpoint: str | None
    region: str | None


Place = DirectoryPlace | BucketPlace


def parse_retention(text: str) -> dict[str, int]:
    """Returns the days by kind, without kinds that are kept for ever; raises :class:`ValueError`.

    Transfers leave with their generations, so that both have the same days.
    """
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        kind, _, number = (item.strip() for item in part.partition("="))
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no kind of data; the kinds are {', '.join(KINDS)}")
        if kind in found:
            raise ValueError(f"{kind} is named twice")
        if not number.isascii() or not number.isdigit() or int(number) > _MOST_DAYS:
            raise ValueError(f"{kind} needs a number of days from 0 to {_MOST_DAYS}")
        if 0 < int(number) < LEAST_DAYS:
            raise ValueError(f"{kind} must be 0 (for ever) or at least {LEAST_DAYS} days")
        found[kind] = int(number)
    transfers = found.pop("transfers", None)
    if transfers is not None and transfers != found.get("generations", 0):
        raise ValueError(
            "transfers leave with their generations; give both the same days, or leave it out"
        )
    return {kind: days for kind, days in found.items() if days}


def parse_place(text: str) -> Place | None:
    """Returns the place of the archive; ``None`` for none; raises :class:`ValueError`."""
    if text in ("", NOWHERE):
        return None
    parts = urlsplit(text)
    if parts.scheme in ("", "file"):
        path = Path(unquote(parts.path) if parts.scheme else text).expanduser()
        if not path.is_absolute() or parts.netloc not in ("", "localhost"):
            raise ValueError("a directory needs its whole path, such as /var/lib/causeway/archive")
        return DirectoryPlace(path)
    if parts.scheme != "s3" or not parts.netloc or "@" in parts.netloc:
        raise ValueError(
            "it is a directory, s3://BUCKET/PREFIX?endpoint=https://HOST&region=REGION, or none"
        )
    query = parse_qs(parts.query, keep_blank_values=True)
    if unknown := query.keys() - {"endpoint", "region"}:
        raise ValueError(f"{sorted(unknown)[0]!r} is unknown; s3:// takes endpoint and region")
    endpoint, region = (query.get(name, [""])[0] for name in ("endpoint", "region"))
    if endpoint and (urlsplit(endpoint).scheme != "https" or not urlsplit(endpoint).hostname):
        raise ValueError("the endpoint must begin with https://")
    prefix = unquote(parts.path).strip("/")
    return BucketPlace(
        parts.netloc, f"{prefix}/" if prefix else "", endpoint or None, region or None
    )
