"""The console answers the networks of its operators alone, and nobody else learns more of it."""

from __future__ import annotations

import pytest
from django.conf import LazySettings
from django.test import Client

from tests.support.database.snapshots import everything
from tests.support.processes import manage

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
    before = everything()
    for answer in (
        operator.get(path, REMOTE_ADDR=address),
        operator.post(path, {"username": "operator", "password": "x"}, REMOTE_ADDR=address),
    ):
        assert answer.status_code == 403
        assert answer.content.startswith(b"The console is not open to your address.")
        assert "sessionid" not in answer.cookies
    assert everything() == before


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


@pytest.mark.parametrize("text", ["10.0.0.1/8", "example.com", "*,10.0.0.0/8"])
def test_what_is_no_list_of_networks_is_refused_at_the_start(text: str) -> None:
    done = manage("check", CONSOLE_NETWORKS=text)
    assert done.returncode == 1
    assert "CONSOLE_NETWORKS is a comma list of addresses or *" in done.stderr
