"""The start pages quote messages that exist, explain every failed check, and are short."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.local.bootstrap import PROJECT
from endpoints.validation import Reason
from inference.exchange import failures
from tests.support.markdown import name_of, read_tables

START = PROJECT / "docs" / "start"
PAGES = sorted(START.glob("*.md"))
_ROOMS = ("accounts", "billing", "catalog", "config", "endpoints", "endusers", "inference")
# What a message is composed of besides one text of the code, with the texts.
_COMPOSED = {
    "…: Unknown field.": "Unknown field.",
    "…: This field is required.": "This field is required.",
}


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Every text of the product's code, with … in place of what is filled in."""
    return [
        text
        for room in _ROOMS
        for path in (PROJECT / room).rglob("*.py")
        if "migrations" not in path.parts
        for text in _read_texts(path)
    ]


def _read_texts(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
            )


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_message_is_one_of_the_product(page: Path, texts: list[str]) -> None:
    # Names of one word are columns, checks and reasons.
    quoted = [
        message
        for cell, *_ in read_tables(page)
        for message in re.findall(r"`([^`]+)`", cell)
        if " " in message
    ]
    assert quoted or page.name not in ("connect.md", "troubleshooting.md")
    missing = [
        message
        for message in quoted
        if not any(_COMPOSED.get(message, message).removesuffix(" …") in text for text in texts)
    ]
    assert missing == []


def test_every_reason_of_a_failed_check_is_explained() -> None:
    text = (START / "private-endpoints.md").read_text()
    # Nothing reports this one in a validation: the API says 404.
    reasons = {str(reason) for reason in Reason} - {Reason.ENDPOINT_NOT_FOUND}
    assert {reason for reason in reasons if f"`{reason}`" not in text} == set()


def test_every_kind_of_a_failure_is_explained() -> None:
    kinds = {*re.findall(r"^(\w+)  +\w", failures.__doc__ or "", re.MULTILINE)} - {"kind"}
    listed = {row[0].strip("`") for row in read_tables(START / "troubleshooting.md")}
    # The page explains them as `unreachable`, which is all that callers learn.
    assert kinds - listed == {"name", "refused", "certificate", "policy"}


@pytest.mark.parametrize("page", [PROJECT / "README.md", *PAGES], ids=name_of)
def test_a_page_where_people_begin_is_short(page: Path) -> None:
    most = 1_500 if page in PAGES else 1_200
    assert len(page.read_text().split()) <= most
