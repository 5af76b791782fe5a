"""The one rule for where the secret of a credential may go."""

from __future__ import annotations

from typing import Any

import pytest

from accounts.hosts import HostLimits, HostRule

OWN = frozenset(("api.acme.example",))
NAMED: dict[str, Any] = {"allowed_hosts": frozenset(("llm.corp.example",))}
BOUND: dict[str, Any] = {"bound_domains": ("llm.corp.example",)}
FIRST, ONLY_NAMED, OFF = HostRule.FIRST_USE, HostRule.NAMED, HostRule.OFF

# May the secret go to the provider, a named host, its neighbour, elsewhere?
TABLE = [
    (FIRST, {}, (True, True, True, True)),
    (FIRST, NAMED, (True, True, False, False)),
    (FIRST, BOUND, (True, True, False, False)),
    (FIRST, {**NAMED, **BOUND}, (True, True, False, False)),
    (FIRST, {"bound_domains": ()}, (True, False, False, False)),
    (ONLY_NAMED, {}, (True, False, False, False)),
    (ONLY_NAMED, NAMED, (True, True, False, False)),
    (ONLY_NAMED, BOUND, (True, False, False, False)),
    (OFF, {}, (True, True, True, True)),
    (OFF, NAMED, (True, True, False, False)),
    (OFF, BOUND, (True, True, True, True)),
]
HOSTS = ("api.acme.example", "llm.corp.example", "other.corp.example", "listener.example")


@pytest.mark.parametrize(("rule", "state", "expected"), TABLE)
def test_a_secret_goes_where_the_rule_lets_it(
    rule: HostRule, state: dict[str, Any], expected: tuple[bool, ...]
) -> None:
    limits = HostLimits(own_hosts=OWN, rule=rule, **state)
    assert tuple(limits.permits(host) for host in HOSTS) == expected
    assert tuple(limits.refusal(host) is None for host in HOSTS) == expected


@pytest.mark.parametrize(
    ("rule", "state", "is_open"),
    [
        (FIRST, {}, True),
        (FIRST, NAMED, False),
        (FIRST, BOUND, False),
        (ONLY_NAMED, {}, False),
        (OFF, {}, True),
        (OFF, BOUND, False),
    ],
)
def test_only_the_first_use_of_a_secret_without_hosts_binds_it(
    rule: HostRule, state: dict[str, Any], is_open: bool
) -> None:
    assert HostLimits(rule=rule, **state).is_open is is_open


@pytest.mark.parametrize(
    ("rule", "state", "hosts", "is_widened"),
    [
        (FIRST, {}, None, False),
        (FIRST, {}, ["listener.example"], False),
        (FIRST, NAMED, None, True),
        (FIRST, NAMED, ["llm.corp.example"], False),
        (FIRST, NAMED, ["llm.corp.example", "listener.example"], True),
        (FIRST, BOUND, None, False),
        (FIRST, BOUND, ["llm.corp.example"], False),
        (FIRST, BOUND, ["listener.example"], True),
        (ONLY_NAMED, {}, ["llm.corp.example"], True),
        (ONLY_NAMED, NAMED, None, True),
        (OFF, {}, ["listener.example"], False),
        (OFF, BOUND, ["listener.example"], False),
        (OFF, NAMED, None, True),
    ],
)
def test_a_list_widens_when_it_names_a_host_out_of_reach(
    rule: HostRule, state: dict[str, Any], hosts: list[str] | None, is_widened: bool
) -> None:
    assert HostLimits(rule=rule, **state).is_widened_by(hosts) is is_widened


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (NAMED, "The allowed_hosts of the credential do not name listener.example."),
        (
            BOUND,
            (
                "The credential is bound by its first use to llm.corp.example; "
                "listener.example is elsewhere."
            ),
        ),
        (
            {"rule": ONLY_NAMED},
            "The credential has no allowed_hosts, which listener.example requires here.",
        ),
    ],
)
def test_a_refusal_says_how_to_allow_the_host(state: dict[str, Any], reason: str) -> None:
    assert HostLimits(own_hosts=OWN, **state).refusal("listener.example") == (
        f"{reason} To allow it, send the secret as `key` together with `allowed_hosts`: "
        "PATCH /byok/{id}."
    )
