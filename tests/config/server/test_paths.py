"""The paths of the API as clients spell them, at the running service."""

from __future__ import annotations

import pytest
import requests

from tests.support.inference.site import Site

SPELLINGS = ["/api/v1/{}", "/v1/{}", "/v1/{}/", "/api/v1/{}/", "/api/v1/{}//", "/v1//{}"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_an_inference_route_is_served(site: Site, spelling: str) -> None:
    site.publish()
    found = site.post(site.chat_body(), path=spelling.format("chat/completions"))
    assert found.status_code == 200
    assert found.json()["choices"][0]["message"]["content"] == "You said: one two"
    assert site.settled().status == "completed"


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("models", 200),
        ("models/acme/falcon/endpoints", 200),
        ("key", 200),
        ("auth/key", 200),
        ("end-users", 403),
        ("openapi.json", 200),
        ("nowhere", 404),
    ],
)
def test_every_spelling_of_a_management_route_is_served(
    site: Site, spelling: str, path: str, status: int
) -> None:
    site.publish()
    found = site.get(spelling.format(path) + "?limit=5")
    assert found.status_code == status
    assert found.json() == site.get(f"/api/v1/{path}?limit=5").json()


def test_a_large_body_of_a_stranger_is_refused_under_every_name(site: Site) -> None:
    for path in ("/v1/end-users", "/v1/chat/completions/"):
        found = requests.post(f"{site.server}{path}", data=b" " * 70_000, timeout=60)
        assert (found.status_code, found.json()["error"]["code"]) == (401, 401)


@pytest.mark.parametrize("path", ["/v1", "/v2/models", "/api/v2/models", "/apiv1/models"])
def test_other_paths_stay_unknown(site: Site, path: str) -> None:
    assert site.get(path).status_code == 404


def test_the_key_of_older_clients_is_described_like_the_key(site: Site) -> None:
    found = site.get("/api/v1/auth/key")
    assert found.json() == site.get("/api/v1/key").json()
    assert found.json()["data"]["label"]
    assert requests.get(f"{site.server}/api/v1/auth/key", timeout=60).status_code == 401
