"""The page at the root of the service."""

from __future__ import annotations

import re

import pytest
from django.conf import settings
from django.test import Client


def test_the_first_page_names_where_to_go(client: Client, db: None) -> None:
    answer = client.get("/", headers={"Host": "localhost"})

    assert (answer.status_code, answer["Content-Type"]) == (200, "text/html; charset=utf-8")
    text = answer.content.decode()
    assert "<code>http://localhost/api/v1</code>" in text
    assert "<code>http://localhost/api</code>" in text
    for path in re.findall(r'<a href="([^"]+)"', text):
        assert client.get(path).status_code in (200, 302), path


@pytest.mark.django_db(databases=[])
def test_the_first_page_needs_no_database_and_tells_no_version(client: Client) -> None:
    text = client.get("/").content.decode()

    assert "Causeway" in text
    assert settings.VERSION not in text


def test_the_first_page_refuses_other_methods_and_hosts(client: Client, db: None) -> None:
    answer = client.post("/")
    assert (answer.status_code, answer["Allow"]) == (405, "GET, HEAD")
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 400
