"""What a person reads where the service refuses a request or fails; programs get the envelope."""

from __future__ import annotations

import re
from typing import Any

import pytest
import requests
from django.test import Client

from config.server.bodies import UNRECOGNIZED_BYTES

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def read(answer: Any) -> list[str]:
    """Returns the heading, the paragraphs and the target of the link of a page of a failure."""
    text = answer.content.decode()
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    parts = re.findall(r"<(?:h1|p)>(.*?)</(?:h1|p)>", text)
    return [re.sub(r'<a href="(.*?)">(.*?)</a>', r"\2: \1", part) for part in parts]


def test_missing_page_is_a_page_for_a_browser_and_the_envelope_for_a_program(db: None) -> None:
    assert read(Client().get("/nothing", headers=BROWSER)) == [
        "There is no such page", "The address may be misspelt.", "To the first page: /",
    ]  # fmt: skip
    for path, headers in (("/nothing", {}), ("/api/v1/nothing", BROWSER)):
        answer = Client().get(path, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, 404)


def test_wrong_method_of_the_console_is_a_page(operator: Client) -> None:
    answer = operator.get("/admin/logout/")

    assert answer.status_code == 405
    assert answer["Allow"] == "POST, OPTIONS"
    assert read(answer) == [
        "This address takes no such request",
        "Nothing was changed. It belongs to a button or a form: open the page that has it.",
        "To the console: /admin/",
    ]


def test_too_many_fields_are_a_page(operator: Client, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 2
    answer = operator.post("/admin/password_change/", {"a": "1", "b": "2", "c": "3"})

    assert answer.status_code == 400
    assert read(answer)[0] == "This was not understood"


def test_large_form_of_a_stranger_is_a_page(server: str) -> None:
    answer = requests.post(
        f"{server}/admin/accounts/organization/add/",
        data=b"x" * (UNRECOGNIZED_BYTES + 1),
        timeout=60,
    )

    assert answer.status_code == 413
    assert read(answer) == [
        "This is too large",
        f"Only a signed-in operator may send more than {UNRECOGNIZED_BYTES} bytes here.",
        "Nothing was changed. Send less, for instance a file in several parts.",
        "To the console: /admin/",
    ]


FORM = b'--x\r\nContent-Disposition: form-data; name="csrfmiddlewaretoken"\r\n\r\nab\r\n--x--\r\n'


def post_form(address: str, path: str, parameter: str) -> requests.Response:
    """Sends a form with a cookie for its token, whose type has one more parameter."""
    headers = {
        "Content-Type": f"multipart/form-data; boundary=x; {parameter}",
        "Cookie": f"csrftoken={'a' * 32}",
    }
    return requests.post(f"{address}{path}", data=FORM, headers=headers, timeout=60)


@pytest.mark.parametrize(
    "parameter",
    [
        *("charset=hex", "charset=idna", 'Charset="UTF-16"', "charset=latin-1", "charset=zzz"),
        *("charset*=utf-8''a%00b", "charset*0=he; charset*1=x", "a*=zzz''b", ";" * 1_000),
    ],
)
def test_another_charset_is_refused_before_anything_is_read(server: str, parameter: str) -> None:
    text = "Content-Type: send text in UTF-8, or name no charset."
    for path in ("/", "/docs/guide", "/pay/1", "/static/a", "/api/v1/end-users"):
        answer = post_form(server, path, parameter)
        assert (answer.status_code, answer.json()["error"]["message"]) == (415, text)
    answer = post_form(server, "/admin/login/", parameter)
    assert (answer.status_code, read(answer)[1]) == (415, text)


@pytest.mark.parametrize(
    "parameter", ["charset=UTF-8", 'charset="utf8"', "charset=us-ascii", "a=b"]
)
def test_utf8_is_read(server: str, parameter: str) -> None:
    assert post_form(server, "/", parameter).status_code == 405
    assert post_form(server, "/admin/login/", parameter).status_code == 403


@pytest.mark.parametrize("path", ["/", "/docs/guide", "/docs/guide/", "/docs/guide/clients.html"])
def test_what_is_only_read_refuses_a_form_by_its_method(db: None, path: str) -> None:
    client = Client(enforce_csrf_checks=True)
    for token in ("", "a" * 32):
        client.cookies["csrftoken"] = token
        for kind in (
            "multipart/form-data; boundary=x",
            "multipart/form-data; boundary=x; charset=hex",
        ):
            answer = client.generic("POST", path, FORM, kind)
            assert (answer.status_code, answer["Allow"]) == (405, "GET, HEAD")


@pytest.mark.urls("tests.support.contract.exploding_urls")
@pytest.mark.parametrize(
    ("path", "status", "title"),
    [
        ("/admin/plain", 500, "Something went wrong here"),
        ("/admin/database", 503, "Please try again"),
    ],
)
def test_failure_of_the_console_is_a_page_without_details(
    db: None, path: str, status: int, title: str
) -> None:
    answer = Client(raise_request_exception=False).get(path)

    assert answer.status_code == status
    heading, *texts, way = read(answer)
    assert (heading, way) == (title, "To the console: /admin/")
    assert "secret" not in answer.content.decode()
    assert (f"Request {answer['X-Request-Id']}" in texts) == (status == 500)
