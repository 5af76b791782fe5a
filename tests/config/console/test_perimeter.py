"""The console answers the networks of its operators alone, and nobody else learns more of it."""

from __future__ import annotations

from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
import requests
from django.conf import LazySettings
from django.core.exceptions import ImproperlyConfigured
from django.test import Client

from tests.support.database.snapshots import unchanged
from tests.support.inference.site import Site
from tests.support.settings import read_settings

NEAR = ["127.0.0.1", "::1", "10.1.2.3", "172.31.0.9", "192.168.1.1", "fd00::1", "100.100.1.1"]
FAR = ["203.0.113.9", "172.32.0.1", "2001:db8::1", "::ffff:203.0.113.9", "nonsense", ""]


@pytest.mark.parametrize("address", [*NEAR, "::ffff:10.0.0.1"])
def test_private_networks_open_the_console(operator: Client, address: str) -> None:
    assert operator.get("/admin/", REMOTE_ADDR=address).status_code == 200


@pytest.mark.parametrize("address", FAR)
@pytest.mark.parametrize("path", ["/admin/", "/admin/login/", "/admin/jsi18n/", "/admin/nothing/"])
def test_other_addresses_get_one_answer_to_everything(
    operator: Client, address: str, path: str
) -> None:
    with unchanged():
        for answer in (
            operator.get(path, REMOTE_ADDR=address),
            operator.post(path, {"username": "operator", "password": "x"}, REMOTE_ADDR=address),
        ):
            assert answer.status_code == 403
            assert answer.content.startswith(b"The console is not open to your address.")
            assert "sessionid" not in answer.cookies


def test_everything_but_the_console_stays_open(db: None) -> None:
    client = Client()
    for path in ("/docs", "/api/v1/models"):
        assert client.get(path, REMOTE_ADDR="203.0.113.9").status_code == 200


def test_an_operator_names_other_networks(operator: Client, settings: LazySettings) -> None:
    settings.CONSOLE_NETWORKS = ["203.0.113.0/24"]
    assert operator.get("/admin/", REMOTE_ADDR="203.0.113.9").status_code == 200
    assert operator.get("/admin/", REMOTE_ADDR="10.0.0.1").status_code == 403
    settings.CONSOLE_NETWORKS = ["*"]
    assert operator.get("/admin/", REMOTE_ADDR="2001:db8::1").status_code == 200


@pytest.mark.parametrize(
    "name", ["X_FORWARDED_FOR", "X_FORWARDED_PROTO", "X_REAL_IP", "FORWARDED", "VIA"]
)
@pytest.mark.parametrize("path", ["/admin/", "/admin/login/"])
def test_nobody_comes_in_behind_a_proxy_that_is_not_believed(
    operator: Client, name: str, path: str
) -> None:
    with unchanged():
        answer = operator.get(path, REMOTE_ADDR="10.0.0.2", headers={name: "10.0.0.1"})
        assert answer.status_code == 403
        assert answer.content.startswith(b"The console cannot tell your address")
    assert operator.get("/docs", REMOTE_ADDR="10.0.0.2", headers={name: "1"}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X-Forwarded-For": "10.0.0.1", "X-Forwarded-Proto": "https"}, 200),
        ({"X-Forwarded-For": "203.0.113.9"}, 403),
        # A proxy that appends leaves what the caller claims in front.
        ({"X-Forwarded-For": "10.0.0.1, 203.0.113.9"}, 403),
        ({"X-Forwarded-For": "127.0.0.1, 203.0.113.9, 127.0.0.1"}, 403),
        ({"X-Forwarded-For": "203.0.113.9:4711"}, 403),
        ({"X-Forwarded-For": "unknown"}, 403),
        ({"X-Forwarded-For": ""}, 403),
        ({"X-Forwarded-For": ", ,"}, 403),
        ({"X-Forwarded-Proto": "https"}, 403),
        ({"Forwarded": "for=10.0.0.1"}, 403),
    ],
)
def test_a_believed_proxy_names_the_caller(
    site: Site, headers: dict[str, str], status: int
) -> None:
    answer = requests.get(f"{site.server}/admin/login/", headers=headers, timeout=30)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/admin", "//admin/", "/admin//", "/admin/login/..", "/%61dmin/login/", "/v1/../admin/",
        "/api/v1/../../admin/login/", "/api/v1/%2e%2e/%2e%2e/admin/", "/docs/../admin/login/",
        "/static/../admin/login/", "/admin/login/;.css", "/ADMIN/login/", "/admin%2flogin/",
    ],
)  # fmt: skip
def test_no_other_path_leads_to_the_console(site: Site, path: str) -> None:
    url = urlsplit(site.server)
    line = HTTPConnection(url.hostname or "", url.port, timeout=30)
    line.request("GET", path, headers={"X-Forwarded-For": "203.0.113.9"})
    answer = line.getresponse()
    text = answer.read()
    line.close()
    assert answer.status in (301, 400, 403, 404), answer.status
    assert b"password" not in text.lower()
    # A redirect leads to the console itself, which refuses.
    assert answer.getheader("Location") in (None, "/admin/", f"{site.server}/admin/")


@pytest.mark.parametrize("text", ["10.0.0.1/8", "example.com", "*,10.0.0.0/8"])
def test_what_is_no_list_of_networks_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="CONSOLE_NETWORKS is a comma list of addresses"):
        read_settings(CONSOLE_NETWORKS=text)
