"""The history, the list and the dialogs of private endpoints on the console."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.models import ByokCredential
from catalog.models import LanguageModel
from config.audit.context import acting_as
from config.egress.rules import TimeLimits
from endpoints.history import events
from endpoints.models import PrivateEndpoint, Validation
from tests.support import factories
from tests.support.console import SUBMIT, listing, messages_of, page
from tests.support.database import snapshots
from tests.support.factories import Tenant

Draft = Callable[..., PrivateEndpoint]


def titles(endpoint: PrivateEndpoint) -> list[tuple[str, str]]:
    endpoint.refresh_from_db()
    return [(event.title, event.by) for event in events(endpoint)]


def test_the_history_lists_actions_of_operators_latest_first(
    operator: Client, tenant: Tenant, make_draft: Draft, model: LanguageModel
) -> None:
    endpoint = make_draft(model, declared_region="europe", by="ann")
    form = {**SUBMIT, "workspace": str(tenant.workspace.pk)}
    for verb in ("validate", "activate", "disable", "enable", "disable"):
        operator.post(page(endpoint, verb), form)

    assert titles(endpoint) == [
        ("disabled", "operator operator"),
        ("enabled", "operator operator"),
        ("disabled", "operator operator"),
        ("activated", "operator operator"),
        ("validation passed", "operator operator"),
        ("declared", "ann"),
        ("created", ""),
    ]
    with snapshots.unchanged():
        text = operator.get(page(endpoint)).content.decode()
        for shown in ("ZDR not declared, region europe", "for activation", "completion"):
            assert shown in text


def test_the_history_lists_events_without_an_operator(active: PrivateEndpoint) -> None:
    active.drifted_at = timezone.now()
    active.save_fields("drifted_at")
    active.disable(by="the watch", reason="It drifted.")

    assert titles(active) == [
        ("disabled", "the watch"),
        ("drifted", ""),
        ("activated", ""),
        ("validation passed", ""),
        ("created", ""),
    ]
    assert events(active)[0].text == "It drifted."


def test_the_history_says_who_changed_the_price_and_the_limits(
    make_draft: Draft, model: LanguageModel
) -> None:
    endpoint = make_draft(model)
    with acting_as("key of ann", "test"):
        endpoint.reprice(factories.make_price("0.5", "0"))
        endpoint.edit(time_limits=TimeLimits(total=9))
        endpoint.edit(fallback="none", settings={"context_length": 4096})
    *told, _ = ((event.title, event.by, event.text) for event in events(endpoint))
    assert told == [
        ("edited", "key of ann", "settings.context_length: 131072 → 4096"),
        ("edited", "key of ann", "settings.fallback: – → none"),
        ("edited", "key of ann", "timeouts.total: – → 9"),
        ("edited", "key of ann", "pricing.prompt: 0 → 0.5"),
    ]


def test_the_history_says_that_parameters_were_tested_and_not_edited(
    make_draft: Draft, model: LanguageModel
) -> None:
    endpoint = make_draft(model)
    with acting_as("key of ann", "test"):
        endpoint.tested_parameters = ["tools"]
        endpoint.save_fields("tested_parameters")
        # What an edit takes away was edited.
        endpoint.edit(upstream_model_id="falcon-9")
    (edited, tested, _) = events(endpoint)
    assert (tested.title, tested.by) == ("tested", "key of ann")
    assert tested.text == "tested_parameters: – → tools"
    assert edited.title == "edited"


def test_the_list_shows_the_last_validation_and_the_declarations(
    operator: Client, make_draft: Draft, model: LanguageModel, credential: ByokCredential
) -> None:
    endpoint = make_draft(model, declared_region="europe", declared_zdr=True)
    bare = make_draft(model)
    validation = factories.make_validation(endpoint, credential)
    three_days_ago = timezone.now() - timedelta(days=3, hours=2)
    Validation.objects.filter(pk=validation.pk).update(created_at=three_days_ago)

    response = operator.get(listing(PrivateEndpoint))

    admin = response.context["cl"].model_admin
    rows = {row.pk: row for row in response.context["cl"].result_list}
    shown: Any = rows[endpoint.pk]
    assert (admin.validated(shown), admin.validated_ago(shown)) == ("passed", "3\xa0days\xa0ago")
    assert (admin.region(shown), admin.zdr(shown)) == ("europe", "declared")
    assert (admin.validated(rows[bare.pk]), admin.validated_ago(rows[bare.pk])) == ("none", "never")
    assert admin.zdr(rows[bare.pk]) == ""


def test_the_page_makes_as_many_queries_for_10_validations_as_for_1(
    operator: Client, make_draft: Draft, model: LanguageModel, credential: ByokCredential
) -> None:
    endpoint = make_draft(model)
    counts = []
    for added in (1, 9):
        for _ in range(added):
            factories.make_validation(endpoint, credential)
        operator.get(page(endpoint))
        with CaptureQueriesContext(connection) as queries:
            operator.get(page(endpoint))
        counts.append(len(queries))

    assert counts[0] == counts[1]
    assert len(events(endpoint)) == 11


def test_a_long_history_is_truncated(
    make_draft: Draft, model: LanguageModel, credential: ByokCredential
) -> None:
    endpoint = make_draft(model)
    for _ in range(25):
        factories.make_validation(endpoint, credential)

    found = events(endpoint)

    assert len(found) == 21
    assert found[-1].title == "created"


def test_an_empty_list_shows_instructions(operator: Client) -> None:
    shown = operator.get(listing(PrivateEndpoint)).content.decode()
    assert "Then open the endpoint, validate it and activate it." in shown


def test_the_edit_dialog_shows_and_changes_a_draft(operator: Client, tenant: Tenant) -> None:
    provider = factories.make_provider()
    endpoint = factories.make_draft(
        tenant, factories.make_model(), provider, declared_region="europe", declared_zdr=False
    )
    factories.make_validation(endpoint, factories.make_credential(tenant, provider))
    shown = operator.get(page(endpoint, "edit")).context["form"].initial
    assert shown == {
        "upstream_model_id": "sim-echo",
        "base_url": "https://llm.example.com/v1",
        "declared_region": "europe",
        "declared_zdr": "false",
    }

    same = operator.post(page(endpoint, "edit"), {**SUBMIT, **shown}, follow=True)
    endpoint.refresh_from_db()
    assert (messages_of(same), endpoint.validation is None) == (["The draft is saved."], False)
    form = {**SUBMIT, **shown, "upstream_model_id": "falcon-9", "declared_zdr": ""}
    operator.post(page(endpoint, "edit"), form)
    endpoint.refresh_from_db()
    assert (endpoint.upstream_model_id, endpoint.declared_region) == ("falcon-9", "europe")
    assert (endpoint.declared_zdr, endpoint.validation) == (None, None)
    assert endpoint.attestation is not None
    assert endpoint.attestation.stated_by == "operator operator"
    told = [(event.title, event.by, event.text) for event in events(endpoint)]
    assert ("edited", "operator operator", "upstream_model_id: sim-echo → falcon-9") in told


@pytest.mark.parametrize(
    ("base_url", "refusal"),
    [
        ("", "invalid_base_url: base_url is required for Acme AI."),
        ("http://llm.example.com/v1", "invalid_base_url: "),
        ("https://169.254.169.254/v1", "invalid_base_url: "),
    ],
)
def test_edit_shows_the_error_at_its_field(
    operator: Client, tenant: Tenant, base_url: str, refusal: str
) -> None:
    provider = factories.make_provider(name="Acme AI")
    endpoint = factories.make_draft(tenant, factories.make_model(), provider)
    before = PrivateEndpoint.objects.values().get()
    form = {**SUBMIT, "upstream_model_id": "falcon-9", "base_url": base_url}

    response = operator.post(page(endpoint, "edit"), form)

    assert list(response.context["form"].errors) == ["base_url"]
    assert response.context["form"].errors["base_url"][0].startswith(refusal)
    assert PrivateEndpoint.objects.values().get() == before


def test_an_active_endpoint_cannot_be_edited(operator: Client, active: PrivateEndpoint) -> None:
    before = PrivateEndpoint.objects.values().get()
    form = {**SUBMIT, "upstream_model_id": "falcon-9", "base_url": active.base_url}

    response = operator.post(page(active, "edit"), form, follow=True)

    refusal = (
        "The endpoint is active; base_url, declared_region, declared_zdr, upstream_model_id can be "
        "changed in a draft only. To replace the deployment of an active endpoint, send activate "
        "too."
    )
    assert messages_of(response) == [refusal]
    assert PrivateEndpoint.objects.values().get() == before


def test_disable_keeps_the_reason(operator: Client, active: PrivateEndpoint) -> None:
    refused = operator.post(page(active, "disable"), {**SUBMIT, "reason": "a\x07b"})
    active.refresh_from_db()
    assert list(refused.context["form"].errors) == ["reason"]
    assert active.status == PrivateEndpoint.Status.ACTIVE

    operator.post(page(active, "disable"), {**SUBMIT, "reason": " The contract\n ended. "})
    active.refresh_from_db()
    assert active.disabled_reason == "The contract ended."
    latest = events(active)[0]
    assert (latest.title, latest.text) == ("disabled", "The contract ended.")
