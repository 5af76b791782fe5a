"""The place of unhealthy candidates in the order."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from inference.routing.health import Health, HealthState, subject_of
from tests.support.inference.routes import (
    SHARES,
    credential,
    measured,
    planned,
    route,
    subjects,
    used,
)


def ailing(*ill: uuid.UUID, state: HealthState = HealthState.OPEN) -> dict[str, Any]:
    """Returns routing options in which these subjects have ``state``."""
    return {"health_of": lambda subject: Health(state if subject in ill else HealthState.HEALTHY)}


@pytest.mark.parametrize(
    "preferred", [{"preferred_max_latency": 0.5}, {"preferred_min_throughput": 50}]
)
def test_an_open_circuit_misses_every_preferred_measure(preferred: dict[str, float]) -> None:
    dead, slow = route("a", "1"), route("b", "2")
    states = {
        dead.endpoint_id: Health(HealthState.OPEN, 1.0),
        slow.endpoint_id: measured(900.0, 5.0),
    }
    found = planned([dead, slow], **preferred, options={"health_of": states.__getitem__})
    assert used(found) == ["operator-b", "operator-a"]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (HealthState.HEALTHY, "ab"),
        (HealthState.HALF_OPEN, "ab"),
        (HealthState.DEGRADED, "ba"),
        (HealthState.OPEN, "ba"),
        (HealthState.RATE_LIMITED, "ba"),
    ],
)
def test_unhealthy_endpoints_come_last(state: HealthState, expected: str) -> None:
    routes = [route("a", "1"), route("b", "2")]
    ill = ailing(routes[0].endpoint_id, state=state)
    found = planned(routes, options=ill)
    assert used(found) == [f"operator-{name}" for name in expected]
    assert used(planned(routes, order=["a"], options=ill)) == ["operator-a", "operator-b"]


def test_health_decides_between_the_endpoints_of_a_named_provider() -> None:
    dead, well = (route("a", "1", endpoint_id=uuid.UUID(int=number)) for number in (1, 2))
    ill = ailing(dead.endpoint_id, state=HealthState.OPEN)
    found = planned([dead, well, route("b", "1")], order=["a"], options=ill)
    assert [each.route.endpoint_id.int for each in found.candidates][:2] == [2, 1]


def test_a_request_without_fallbacks_is_not_used_as_a_probe() -> None:
    routes = [route("a", "1"), route("b", "2")]
    half_open = ailing(routes[0].endpoint_id, state=HealthState.HALF_OPEN)
    assert used(planned(routes, allow_fallbacks=False, options=half_open)) == ["operator-b"]


def test_an_unavailable_private_endpoint_comes_last() -> None:
    private = route("own", private=True)
    found = planned(
        [route("pub")],
        [private],
        [credential("own")],
        options={
            "health_of": lambda subject: Health(
                HealthState.OPEN if subject in subjects(private) else HealthState.DEGRADED
            )
        },
    )
    assert used(found) == ["operator-pub", "own-own"]


@pytest.mark.parametrize(
    "state", [HealthState.OPEN, HealthState.RATE_LIMITED, HealthState.HALF_OPEN]
)
@pytest.mark.parametrize("preferred", [{}, {"preferred_max_latency": 1}])
def test_a_private_endpoint_without_fallbacks_is_tried_in_any_state(
    state: HealthState, preferred: dict[str, Any]
) -> None:
    private = route("own", private=True)
    found = planned(
        [route("pub")],
        [private],
        [credential("own")],
        allow_fallbacks=False,
        **preferred,
        options=ailing(*subjects(private), state=state),
    )
    assert used(found) == ["own-own"]


def test_a_request_without_fallbacks_uses_the_healthy_credential() -> None:
    served = route("x", "1")
    ill, well = credential("x"), credential("x", "other")
    found = planned(
        [served, route("q", "9")],
        credentials=[ill, well],
        allow_fallbacks=False,
        options=ailing(
            subject_of(served.endpoint_id, ill.credential_id),
            served.endpoint_id,
            state=HealthState.HALF_OPEN,
        ),
    )
    [first] = found.candidates
    assert first.subject == subject_of(served.endpoint_id, well.credential_id)


def test_an_endpoint_whose_credential_names_the_host_is_measured_per_credential() -> None:
    cloud = replace(route("x"), base_url=None)
    found = planned([cloud, route("y")], credentials=[credential("x"), credential("y")])
    apart = [each for each in found.candidates if each.measured_subject != each.route.endpoint_id]
    assert [(each.route, each.measured_subject == each.subject) for each in apart] == [
        (cloud, True)
    ]


@pytest.mark.parametrize("state", [HealthState.OPEN, HealthState.RATE_LIMITED])
def test_the_first_credential_determines_the_health_of_an_endpoint(state: HealthState) -> None:
    served, other = route("x", "9"), route("y", "1")
    operators, own = subjects(served)
    routes, credentials = [served, other], [credential("x")]
    ill = ailing(operators, other.endpoint_id, state=state)
    assert used(planned(routes, credentials=credentials, options=ill)) == [
        "own-x", "operator-x", "operator-y",
    ]  # fmt: skip
    assert used(planned(routes, options=ill)) == ["operator-y", "operator-x"]
    ill = ailing(own, state=state)
    assert used(planned(routes[::-1], credentials=credentials, options=ill)) == [
        "operator-y", "own-x", "operator-x",
    ]  # fmt: skip
    assert used(planned([served], credentials=credentials, options=ill)) == ["own-x", "operator-x"]


def test_an_unhealthy_own_credential_comes_after_the_others_of_its_group() -> None:
    served = route("x")
    names = ("one", "two", "three", "four")
    credentials = [credential("x", name, is_fallback=name in ("three", "four")) for name in names]
    ill = [
        subject_of(served.endpoint_id, each.credential_id)
        for each in credentials
        if each.secret and each.secret.reveal() in ("one-x", "three-x")
    ]
    found = planned([served], credentials=credentials, options=ailing(*ill))
    assert used(found) == ["two-x", "one-x", "operator-x", "four-x", "three-x"]


def test_own_credentials_share_the_measures_of_the_endpoint() -> None:
    slow, fast = route("x", "1"), route("y", "2")
    times = {slow.endpoint_id: 900.0, fast.endpoint_id: 100.0}

    def health(subject: uuid.UUID) -> Health:
        return Health(latency=dict.fromkeys(SHARES, times[subject]) if subject in times else None)

    found = planned(
        [slow, fast],
        credentials=[credential("x"), credential("y")],
        sort="latency",
        options={"health_of": health},
    )
    assert used(found)[0] == "own-y"
