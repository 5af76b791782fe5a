"""The state table of a private endpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from catalog.models import LanguageModel, Provider
from config.api.errors import InvalidTransition
from endpoints.models import AlreadyActive, EndpointNotFound, NotValidated, PrivateEndpoint
from tests.support import factories
from tests.support.database.states import check_transition
from tests.support.factories import Tenant

TRANSITIONS: dict[str, Callable[[PrivateEndpoint], object]] = {
    "activate": lambda endpoint: endpoint.activate(by="test"),
    "disable": lambda endpoint: endpoint.disable(by="test"),
    "enable": lambda endpoint: endpoint.enable(by="test"),
    "edit": lambda endpoint: endpoint.edit(upstream_model_id="other", by="test"),
    "set fallback": lambda endpoint: endpoint.edit(fallback="none", by="test"),
    "reprice": lambda endpoint: endpoint.reprice(factories.make_price("0.1")),
    "remove": lambda endpoint: endpoint.remove(by="test"),
    "remove draft": lambda endpoint: endpoint.remove(draft_only=True, by="test"),
    "remove and release": lambda endpoint: endpoint.remove(release=True, by="test"),
    "release": lambda endpoint: endpoint.release(by="test"),
}
REFUSED, BOUND, GONE = InvalidTransition, AlreadyActive, EndpointNotFound

# The outcomes are in the order of TRANSITIONS.
TABLE: dict[str, tuple[Any, ...]] = {
    "draft": (
        NotValidated, REFUSED, REFUSED, "draft", "draft", "draft", "deleted", "deleted", "deleted",
        REFUSED,
    ),
    "validated": (
        "active", REFUSED, REFUSED, "draft", "validated", "validated", "deleted", "deleted",
        "deleted", REFUSED,
    ),
    "active": (
        REFUSED, "disabled", REFUSED, BOUND, "active", "active", "deleted", REFUSED, "released",
        REFUSED,
    ),
    "disabled": (
        REFUSED, REFUSED, "active", BOUND, "disabled", "disabled", "deleted", REFUSED, "released",
        REFUSED,
    ),
    "deleted": (GONE, GONE, GONE, GONE, GONE, GONE, GONE, GONE, GONE, "released"),
    "released": (GONE, GONE, GONE, GONE, GONE, GONE, GONE, GONE, GONE, False),
}  # fmt: skip


def state_of(endpoint: PrivateEndpoint) -> str:
    if endpoint.released_at is not None:
        return "released"
    if endpoint.deleted_at is not None:
        return "deleted"
    if endpoint.status == PrivateEndpoint.Status.DRAFT and endpoint.validation is not None:
        return "validated"
    return str(endpoint.status)


@pytest.mark.parametrize(
    ("state", "transition", "expected"),
    [
        (state, transition, expected)
        for state, row in TABLE.items()
        for transition, expected in zip(TRANSITIONS, row, strict=True)
    ],
)
def test_every_transition_from_every_state(
    tenant: Tenant, model: LanguageModel, provider: Provider,
    state: str, transition: str, expected: Any,
) -> None:  # fmt: skip
    endpoint = factories.make_draft(tenant, model, provider)
    if state != "draft":
        factories.make_validation(endpoint, factories.make_credential(tenant, provider))
    if state not in ("draft", "validated"):
        endpoint.activate(by="test")
    if state == "disabled":
        endpoint.disable(by="test")
    if state in ("deleted", "released"):
        endpoint.remove(release=state == "released", by="test")
    assert state_of(endpoint) == state

    check_transition(endpoint, lambda: TRANSITIONS[transition](endpoint), expected, state_of)
