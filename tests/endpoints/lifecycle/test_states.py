"""The state table of a private endpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from catalog.models import LanguageModel, Provider
from config.api.errors import InvalidTransition
from endpoints.models import EndpointNotFound, NotValidated, PrivateEndpoint
from tests.support import factories
from tests.support.database.states import check_transition
from tests.support.factories import Tenant

TRANSITIONS: dict[str, Callable[[PrivateEndpoint], object]] = {
    "activate": lambda endpoint: endpoint.activate(by="test"),
    "disable": lambda endpoint: endpoint.disable(by="test"),
    "enable": lambda endpoint: endpoint.enable(by="test"),
    "edit": lambda endpoint: endpoint.edit(upstream_model_id="other", by="test"),
    "reprice": lambda endpoint: endpoint.reprice(factories.make_price("0.1")),
    "remove": lambda endpoint: endpoint.remove(by="test"),
    "remove draft": lambda endpoint: endpoint.remove(draft_only=True, by="test"),
}
REFUSED, GONE = InvalidTransition, EndpointNotFound

# The outcomes are in the order of TRANSITIONS.
TABLE: dict[str, tuple[Any, ...]] = {
    "draft": (NotValidated, REFUSED, REFUSED, "draft", "draft", "deleted", "deleted"),
    "validated": ("active", REFUSED, REFUSED, "draft", "validated", "deleted", "deleted"),
    "active": (REFUSED, "disabled", REFUSED, REFUSED, "active", "deleted", REFUSED),
    "disabled": (REFUSED, REFUSED, "active", REFUSED, "disabled", "deleted", REFUSED),
    "deleted": (GONE, GONE, GONE, GONE, GONE, GONE, GONE),
}


def state_of(endpoint: PrivateEndpoint) -> str:
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
    if state in ("validated", "active", "disabled"):
        factories.make_validation(endpoint, factories.make_credential(tenant, provider))
    if state in ("active", "disabled"):
        endpoint.activate(by="test")
    if state == "disabled":
        endpoint.disable(by="test")
    if state == "deleted":
        endpoint.remove(by="test")
    assert state_of(endpoint) == state

    check_transition(endpoint, lambda: TRANSITIONS[transition](endpoint), expected, state_of)
