"""Random sequences of requests: the life cycle of an endpoint always matches its model."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from rest_framework.test import APIClient

from accounts.models import ByokCredential
from catalog.models import PriceVersion
from config.credentials import Secret
from endpoints.models import PrivateEndpoint, Validation
from tests.support import factories
from tests.support.endpoints.creating import ROUTE, body_of
from tests.support.simulator.server import Simulator
from tests.support.suite.tiers import count_examples

MODELS = st.sampled_from(["sim-echo", "sim-wrong-model", "sim-versioned"])
PASSING = {"sim-echo", "sim-versioned"}
PRICES = st.sampled_from(["0", "0.0000001", "0.5"])


class Lifecycle(RuleBasedStateMachine):
    """Drives one endpoint over HTTP; the attributes without an underscore are the model."""

    simulator: Simulator

    @initialize(upstream=MODELS)
    def create(self, upstream: str) -> None:
        tenant = factories.make_tenant()
        model, provider = factories.make_model(), factories.make_provider()
        self._credential: ByokCredential = factories.make_credential(tenant, provider)
        self._workspace = str(tenant.workspace.pk)
        self._client: APIClient = factories.client(tenant.management_key)
        body = body_of(
            model,
            provider,
            upstream_model_id=upstream,
            base_url=self.simulator.base_url,
            pricing={"prompt": "0", "completion": "0"},
        )
        answer = self._client.post(ROUTE, body)
        assert answer.status_code == 201, answer.content
        self._id = answer.json()["data"]["id"]
        self.status = "draft"
        self.upstream = upstream
        self.zdr: bool | None = None
        self.price = "0"
        self.prices = 1
        # Whether the last validation passed; None if there is none since the last change.
        self.validated: bool | None = None
        self.stale = False
        self.was_active = False

    def _post(self, verb: str, body: dict[str, Any] | None = None) -> Any:
        return self._client.post(f"{ROUTE}/{self._id}/{verb}", body or {})

    def _expect(self, answer: Any, status: int, error_type: str | None = None) -> None:
        assert answer.status_code == status, answer.content
        if error_type is not None:
            assert answer.json()["error"]["metadata"]["error_type"] == error_type

    @rule()
    def validate(self) -> None:
        answer = self._post("validate", {"workspace_id": self._workspace})
        if self.status == "gone":
            return self._expect(answer, 404, "endpoint_not_found")
        if self.status != "draft":
            return self._expect(answer, 409, "invalid_state")
        self._expect(answer, 200)
        self.validated = self.upstream in PASSING
        self.stale = False
        assert answer.json()["data"]["passed"] is self.validated
        return None

    @rule()
    def activate(self) -> None:
        answer = self._post("activate")
        if self.status == "gone":
            return self._expect(answer, 404, "endpoint_not_found")
        if self.status != "draft":
            return self._expect(answer, 409, "invalid_state")
        if not self.validated:
            return self._expect(answer, 409, "not_validated")
        if self.stale:
            return self._expect(answer, 409, "validation_stale")
        self._expect(answer, 200)
        self.status = "active"
        self.was_active = True
        return None

    @rule()
    def disable(self) -> None:
        self._switch("disable", "active", "disabled")

    @rule()
    def enable(self) -> None:
        self._switch("enable", "disabled", "active")

    def _switch(self, verb: str, before: str, after: str) -> None:
        answer = self._post(verb)
        if self.status == "gone":
            return self._expect(answer, 404)
        if self.status != before:
            return self._expect(answer, 409, "invalid_state")
        self._expect(answer, 200)
        self.status = after
        return None

    @rule(upstream=MODELS, zdr=st.sampled_from([True, None, "unsent"]))
    def edit(self, upstream: str, zdr: bool | str | None) -> None:
        body: dict[str, Any] = {"upstream_model_id": upstream}
        if zdr != "unsent":
            body["declared_zdr"] = zdr
        answer = self._client.patch(f"{ROUTE}/{self._id}", body)
        if self.status == "gone":
            return self._expect(answer, 404)
        if self.status != "draft":
            return self._expect(answer, 409, "already_active")
        self._expect(answer, 200)
        moved = upstream != self.upstream
        declared = (None if moved else self.zdr) if zdr == "unsent" else zdr
        if moved or declared != self.zdr:
            self.validated = None
        self.upstream, self.zdr = upstream, declared
        return None

    @rule(price=PRICES)
    def reprice(self, price: str) -> None:
        pricing = {"prompt": price, "completion": price}
        answer = self._client.put(f"{ROUTE}/{self._id}/pricing", {"pricing": pricing})
        if self.status == "gone":
            return self._expect(answer, 404)
        self._expect(answer, 200)
        self.price = price
        self.prices += 1
        return None

    @rule()
    def rotate_the_credential(self) -> None:
        self._credential.rotate(Secret("another-credential-0123456789"))
        self.stale = self.validated is not None

    @rule()
    def let_the_validation_grow_old(self) -> None:
        Validation.objects.filter(endpoint_id=self._id).update(
            created_at=timezone.now() - timedelta(days=2)
        )
        self.stale = self.validated is not None

    @rule(draft_only=st.booleans(), really=st.integers(0, 5))
    def delete(self, draft_only: bool, really: int) -> None:
        if really:  # Skips most deletes, so that most sequences are long.
            return None
        flag = str(draft_only).lower()
        answer = self._client.delete(f"{ROUTE}/{self._id}?draft_only={flag}")
        if self.status == "gone":
            return self._expect(answer, 404)
        if draft_only and self.was_active:
            return self._expect(answer, 409, "invalid_state")
        self._expect(answer, 200)
        self.status = "gone"
        return None

    @invariant()
    def the_row_says_what_the_model_says(self) -> None:
        row = PrivateEndpoint.objects.select_related("price").get(pk=self._id)
        assert (row.deleted_at is not None) is (self.status == "gone")
        if self.status != "gone":
            assert row.status == self.status
        assert row.upstream_model_id == self.upstream
        assert row.declared_zdr == self.zdr
        assert row.price.price.text("prompt") == self.price
        assert PriceVersion.objects.filter(subject_id=row.pk).count() == self.prices
        assert (row.activated_at is not None) is self.was_active

    @invariant()
    def the_api_shows_what_the_model_says(self) -> None:
        answer = self._client.get(f"{ROUTE}/{self._id}")
        if self.status == "gone":
            assert answer.status_code == 404
            assert self._client.get(ROUTE).json() == {"data": []}
        else:
            assert answer.json()["data"]["status"] == self.status
            assert answer.json()["data"]["pricing"]["prompt"] == self.price

    @invariant()
    def only_what_passed_was_activated(self) -> None:
        row = PrivateEndpoint.objects.select_related("validation", "model").get(pk=self._id)
        if row.activated_at is not None:
            assert row.validation is not None
            assert row.validation.passed
            assert row.validation.configuration == row.configuration


@pytest.mark.timeout(900)
def test_every_sequence_of_requests_follows_the_state_table(db: None, simulator: Simulator) -> None:
    machine = type("Machine", (Lifecycle,), {"simulator": simulator})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=count_examples(100),
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
