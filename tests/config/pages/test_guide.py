"""The guides below ``/docs/guide``: each page, each link of it, and nothing else."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Final

import pytest
from django.test import Client

from config.local.bootstrap import PROJECT

# They are open to everybody, and a page asks no database.
pytestmark = pytest.mark.django_db(databases=[])

PREFIX: Final = "/docs/guide"
DOCS: Final = PROJECT / "docs"
PAGES: Final = sorted(DOCS.rglob("*.md"))


def address_of(page: Path) -> str:
    name = page.relative_to(DOCS).with_suffix("").as_posix()
    return f"{PREFIX}/{name}".removesuffix("/index")


def read_links(text: str) -> list[str]:
    found = re.findall(r'<(?:a|img|link)\b[^>]* (?:href|src)="([^"]*)"', text)
    return [html.unescape(link) for link in found]


@pytest.mark.parametrize("page", PAGES, ids=address_of)
def test_a_page_answers_and_each_of_its_links_leads_somewhere(client: Client, page: Path) -> None:
    answer = client.get(address_of(page))

    assert (answer.status_code, answer["Content-Type"]) == (200, "text/html; charset=utf-8")
    text = answer.content.decode()
    [title] = re.findall(r"^# (.+)$", page.read_text().partition("\n")[0])
    assert f"<title>{html.escape(title.replace('`', ''))} | Causeway</title>" in text
    written = re.findall(r"\]\([^)\s]+\)", re.sub(r"(?s)```.*?```", "", page.read_text()))
    links = read_links(text.partition("<article>")[2])
    assert len(links) == len(written)
    broken = []
    for link in read_links(text):
        path, _, section = link.partition("#")
        # What stands outside of this service is no concern of a test without a network.
        if path.startswith(("https://", "http://", "mailto:", "/static/", "/admin/")):
            continue
        target = client.get(path or address_of(page))
        is_there = not section or f'id="{section}"' in target.content.decode()
        if target.status_code != 200 or not is_there:
            broken.append(link)
    assert broken == []


def test_the_contents_of_a_page_are_its_sections(client: Client) -> None:
    text = client.get(f"{PREFIX}/settings").content.decode()

    sections = re.findall(r"^## (.+)$", (DOCS / "settings.md").read_text(), re.MULTILINE)
    found = re.findall(r'<li><a href="#([^"]+)">([^<]+)</a>', text)
    assert [html.unescape(title) for _, title in found] == [
        each.replace("`", "") for each in sections
    ]
    assert all(f'<h2 id="{section}">' in text for section, _ in found)


def test_a_page_runs_no_script_and_escapes_what_is_code(client: Client) -> None:
    answer = client.get(f"{PREFIX}/start/connect")

    text = answer.content.decode()
    assert "script-src 'self'" in answer["Content-Security-Policy"]
    assert not re.search(r"<script|<style|\son[a-z]+=|javascript:", text)
    assert '<pre tabindex="0"><code class="language-sh">' in text
    assert '<div class="table" tabindex="0"><table>' in text


@pytest.mark.parametrize(
    "name",
    [
        "nothing", "index", "index.md", "settings.md", "settings//", "/settings", "start", "start/",
        "../pyproject.toml", "start/../settings", "%2e%2e/pyproject.toml", "..%2fREADME",
        "..\\README", "README", "deploy/compose/compose.yaml", "deploy/ha/patroni.env",
        "//etc/passwd", "settings%00",
    ],
)  # fmt: skip
def test_nothing_else_is_served(client: Client, name: str) -> None:
    answer = client.get(f"{PREFIX}/{name}", headers={"Accept": "text/html"})

    assert answer.status_code == 404
    assert "There is no such page" in answer.content.decode()


def test_a_page_is_read_only_and_is_sent_once(client: Client) -> None:
    first = client.get(PREFIX)
    assert client.get(f"{PREFIX}/").content == first.content
    assert first["Cache-Control"] == "no-cache"
    again = client.get(PREFIX, headers={"If-None-Match": first["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    head = client.head(PREFIX)
    assert (head.status_code, head.content, head["ETag"]) == (200, b"", first["ETag"])
    for refused in (client.post(PREFIX), client.delete(f"{PREFIX}/architecture.svg")):
        assert (refused.status_code, refused["Allow"]) == (405, "GET, HEAD")


def test_a_picture_is_a_picture(client: Client) -> None:
    answer = client.get(f"{PREFIX}/architecture.svg")
    assert (answer.status_code, answer["Content-Type"]) == (200, "image/svg+xml")
    assert answer.content == (DOCS / "architecture.svg").read_bytes()
