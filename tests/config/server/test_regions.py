"""Regional hosts: reading the setting, and finding the region of a request by its host."""

from __future__ import annotations

import pytest
from django.core.exceptions import ImproperlyConfigured

from config.server.regions import parse_region_hosts, region_of_host
from tests.support.settings import read_settings


def test_the_setting_gives_a_region_for_each_name() -> None:
    assert parse_region_hosts([]) == {}
    items = ["eu.example.com=europe", "us.example.com=us", "api-1.example.com=global", "eu=europe"]
    assert parse_region_hosts(items) == {
        "eu.example.com": "europe",
        "us.example.com": "us",
        "api-1.example.com": "global",
        "eu": "europe",
    }
    longest = ".".join(["a" * 63] * 3 + ["b" * 61])
    assert parse_region_hosts([f"{longest}=us"]) == {longest: "us"}


@pytest.mark.parametrize(
    ("items", "message"),
    [
        *(
            ([item], f"{item!r} does not give one of europe, us, global for a name")
            for item in (
                *("eu.example.com", "eu.example.com=", "eu.example.com=eu", "=", "", "a=b=us"),
                *("eu.example.com=Europe", "eu.example.com= europe", "eu.example.com:europe"),
            )
        ),
        *(
            ([f"{name}=europe"], f"{name!r} is not a host name in lower case, without a port")
            for name in (
                *("", "EU.example.com", "eu.example.com:443", "eu.example.com.", ".example.com"),
                *("eu..com", "-eu.com", "eu-.com", "eu_1.com", "*.example.com", "ëu.com", "e u"),
                *("https://eu.com", "127.0.0.1", "eu.1", "[::1]", "a" * 64, "eu.com\n"),
                ".".join(["a" * 63] * 3 + ["b" * 62]),
            )
        ),
        (["eu.example.com=europe", "eu.example.com=us"], "'eu.example.com' is given twice"),
        (["eu.example.com=us", "eu.example.com=us"], "'eu.example.com' is given twice"),
    ],
)
def test_the_setting_refuses_malformed_or_repeated_items(items: list[str], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        parse_region_hosts(items)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("eu.example.com", "europe"),
        ("EU.Example.COM", "europe"),
        ("eu.example.com:443", "europe"),
        ("us.example.com:8000", "us"),
        # A trailing dot names the DNS root; the host is the same.
        ("eu.example.com.", "europe"),
        ("eu.example.com.:443", "europe"),
        ("api.example.com", None),
        ("example.com", None),
        ("x.eu.example.com", None),
        ("eu.example.com.evil.example", None),
        ("[::1]:8000", None),
        ("127.0.0.1", None),
        ("", None),
        (None, None),
    ],
)
def test_region_of_host_ignores_case_port_and_trailing_dot(
    host: str | None, region: str | None
) -> None:
    hosts = {"eu.example.com": "europe", "us.example.com": "us", "api.example.com": "global"}
    assert region_of_host(host, hosts) == region


def test_the_hosts_of_regions_are_served() -> None:
    found = read_settings(
        REGION_HOSTS="eu.example.com=europe, us.example.com=us", ALLOWED_HOSTS="api.example.com"
    )
    assert found["REGION_HOSTS"] == {"eu.example.com": "europe", "us.example.com": "us"}
    assert found["ALLOWED_HOSTS"] == ["api.example.com", "eu.example.com", "us.example.com"]


def test_without_the_setting_no_host_is_regional() -> None:
    found = read_settings(REGION_HOSTS="", ALLOWED_HOSTS="localhost")
    assert (found["REGION_HOSTS"], found["ALLOWED_HOSTS"]) == ({}, ["localhost"])


def test_a_wrong_setting_prevents_the_start() -> None:
    with pytest.raises(ImproperlyConfigured) as refusal:
        read_settings(REGION_HOSTS="eu.example.com=eu")
    assert str(refusal.value) == (
        "REGION_HOSTS is a comma list of "
        "name=region: 'eu.example.com=eu' does not give one of europe, us, global for a name."
    )
