"""Private endpoints on the console."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from catalog.models import LanguageModel
from config.api.errors import InvalidRequest
from config.audit.entries import AuditEntry
from endpoints.models import PrivateEndpoint, Validation
from tests.support import factories
from tests.support.console import SECRET, SUBMIT, fingerprint, listing, messages_of, page
from tests.support.factories import Tenant
from tests.support.governance import make_workspace
from tests.support.operators.four_eyes import press
from tests.support.simulator.server import Simulator


def _add(operator: Client, tenant: Tenant, **fields: Any) -> Any:
    """Sends the form of a new draft; fields may be rows."""
    form = {
        "organization": tenant.organization.pk,
        "upstream_model_id": "sim-echo",
        "base_url": "https://llm.example.com/v1",
        "declared_zdr": "true",
        "declared_region": "europe",
        **{name: getattr(value, "pk", value) for name, value in fields.items()},
    }
    return operator.post(listing(PrivateEndpoint, "add"), form)


def test_add_private_endpoint_creates_a_draft(operator: Client, tenant: Tenant) -> None:
    model, provider = factories.make_model(), factories.make_provider()
    factories.make_endpoint(model, provider, price=factories.make_price("0.000003"))

    response = _add(operator, tenant, model=model, provider=provider)

    endpoint = PrivateEndpoint.objects.get()
    assert response["Location"] == page(endpoint)
    assert (endpoint.status, endpoint.base_url) == ("draft", "https://llm.example.com/v1")
    assert (endpoint.declared_zdr, endpoint.declared_region) == (True, "europe")
    assert endpoint.price.price.text("prompt") == "0.000003"


def test_a_dialog_offers_the_workspaces_that_are_not_deleted(
    operator: Client, tenant: Tenant
) -> None:
    endpoint = factories.make_draft(tenant, factories.make_model(), factories.make_provider())
    other = make_workspace(tenant.organization)
    tenant.workspace.close(confirm_default=True)
    form = operator.get(page(endpoint, "validate")).context["form"]
    assert list(form.fields["workspace"].queryset) == [other]


def test_add_private_endpoint_accepts_a_negotiated_price(operator: Client, tenant: Tenant) -> None:
    places = {"model": factories.make_model(), "provider": factories.make_provider()}

    half = _add(operator, tenant, **places, prompt="1")
    assert list(half.context["adminform"].form.errors) == ["completion"]
    _add(operator, tenant, **places, prompt="1", completion="0.05")
    assert PrivateEndpoint.objects.get().price.price.text("completion") == "0.00000005"


def test_add_private_endpoint_makes_an_own_model(operator: Client, tenant: Tenant) -> None:
    base = factories.make_model("author/base", context_length=32_768)
    fields = {
        "model": base,
        "provider": factories.make_provider(),
        "own_model": f"{tenant.organization.slug}/support-7b",
        "own_model_name": "Support 7B",
    }

    _add(operator, tenant, **fields)
    first = PrivateEndpoint.objects.get()
    assert (first.model.slug, first.model.organization) == ("acme/support-7b", tenant.organization)
    assert (first.model.base_model, first.model.context_length) == (base.canonical_slug, 32_768)

    again = _add(operator, tenant, **fields)
    assert "has a model" in str(again.context["adminform"].form.errors["own_model"])
    del fields["own_model_name"], fields["model"]
    _add(operator, tenant, **fields)
    assert [each.model for each in PrivateEndpoint.objects.all()] == [first.model] * 2


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({}, "model"),
        ({"own_model_name": "Support"}, "own_model"),
        ({"own_model": "other/x", "own_model_name": "Support"}, "__all__"),
        ({"own_model": "acme/none"}, "model"),
        ({"own_model": "acme/x", "own_model_name": " "}, "model"),
    ],
)
def test_add_private_endpoint_refuses_a_wrong_own_model(
    operator: Client, tenant: Tenant, fields: dict[str, str], wrong: str
) -> None:
    response = _add(operator, tenant, provider=factories.make_provider(), **fields)

    assert wrong in response.context["adminform"].form.errors
    assert not PrivateEndpoint.objects.exists()
    assert not LanguageModel.objects.of_everybody().exists()


@pytest.mark.parametrize(
    ("base_url", "message"),
    [
        ("", "base_url is required for"),
        ("http://llm.example.com", "invalid_base_url"),
        ("https://169.254.169.254/v1", "invalid_base_url"),
    ],
)
def test_add_private_endpoint_shows_the_error_at_its_field(
    operator: Client, tenant: Tenant, base_url: str, message: str
) -> None:
    places = {"model": factories.make_model(), "provider": factories.make_provider()}

    response = _add(operator, tenant, **places, base_url=base_url)

    assert response.status_code == 200
    assert message in str(response.context["adminform"].form.errors["base_url"])
    assert not PrivateEndpoint.objects.exists()
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize("name", ["\u200b", "a\x7f"])
def test_no_page_stores_a_name_that_an_import_refuses(
    operator: Client, tenant: Tenant, name: str
) -> None:
    model, provider = factories.make_model(), factories.make_provider()
    response = _add(operator, tenant, model=model, provider=provider, upstream_model_id=name)
    assert "Must be visible text" in str(response.context["adminform"].form.errors)
    assert not PrivateEndpoint.objects.exists()
    draft = factories.make_draft(tenant, model, provider)
    with pytest.raises(InvalidRequest, match="Must be visible text"):
        draft.edit(upstream_model_id=name)


def test_add_private_endpoint_refuses_more_than_the_limit(operator: Client) -> None:
    tenant = factories.make_tenant("Small", endpoint_limit=1)
    model, provider = factories.make_model(), factories.make_provider()
    factories.make_draft(tenant, model, provider)

    response = _add(operator, tenant, model=model, provider=provider)

    errors = response.context["adminform"].form.errors
    assert "has 1 private endpoints" in str(errors["organization"])


def _draft_at(tenant: Tenant, simulator: Simulator, upstream: str = "sim-echo") -> PrivateEndpoint:
    provider = factories.make_provider()
    factories.make_credential(tenant, provider, SECRET)
    place = {"base_url": simulator.base_url, "upstream_model_id": upstream}
    return factories.make_draft(tenant, factories.make_model(), provider, **place)


def test_private_endpoint_is_validated_activated_disabled_enabled_and_deleted(
    operator: Client, tenant: Tenant, simulator: Simulator
) -> None:
    endpoint = _draft_at(tenant, simulator)
    steps = [
        ("validate", {"workspace": str(tenant.workspace.pk)}, "The validation passed.", "draft"),
        ("activate", {}, "The endpoint is active.", "active"),
        ("disable", {}, "The endpoint is disabled.", "disabled"),
        ("enable", {}, "The endpoint is active again.", "active"),
    ]

    for verb, fields, message, status in steps:
        response = operator.post(page(endpoint, verb), {**SUBMIT, **fields}, follow=True)
        assert messages_of(response) == [message]
        assert response.redirect_chain == [(page(endpoint), 302)]
        endpoint.refresh_from_db()
        assert endpoint.status == status
    assert endpoint.activated_by == "operator operator"

    response = operator.post(page(endpoint, "remove"), SUBMIT, follow=True)
    assert response.redirect_chain == [(page(endpoint), 302)]
    endpoint.refresh_from_db()
    assert (endpoint.deleted_at is not None, endpoint.deleted_by) == (True, "operator operator")
    assert AuditEntry.objects.filter(object_id=str(endpoint.pk)).count() == 5
    assert not LogEntry.objects.exists()
    # The list keeps it, because its model stays private until it is released.
    response = operator.get(listing(PrivateEndpoint))
    assert list(response.context["cl"].result_list) == [endpoint]


def test_private_endpoint_page_offers_the_actions_of_its_state(
    operator: Client, tenant: Tenant, simulator: Simulator
) -> None:
    endpoint = _draft_at(tenant, simulator)

    def offered() -> list[str]:
        actions = operator.get(page(endpoint)).context["actions_detail"]
        return [action["title"] for action in actions]

    assert offered() == [
        "Edit", "Edit price", "Limit time", "Fallback", "Pool", "Validate", "Activate", "Delete",
    ]  # fmt: skip
    operator.post(page(endpoint, "validate"), {**SUBMIT, "workspace": str(tenant.workspace.pk)})
    operator.post(page(endpoint, "activate"), SUBMIT)
    assert offered() == [
        "Replace the deployment", "Edit price", "Limit time", "Fallback", "Pool",
        "Validate again", "Disable", "Delete",
    ]  # fmt: skip
    operator.post(page(endpoint, "disable"), SUBMIT)
    assert offered() == [
        "Edit price", "Limit time", "Fallback", "Pool", "Validate again", "Enable", "Delete",
    ]  # fmt: skip


def test_the_place_in_a_pool_is_shown_changed_and_cleared(
    operator: Client, tenant: Tenant, simulator: Simulator
) -> None:
    endpoint = _draft_at(tenant, simulator)
    endpoint.edit(settings={"context_length": 4096, "routing": {"priority": 3}})
    dialog = operator.get(page(endpoint, "place_in_pool"))
    assert dialog.context["form"].initial == {
        "priority": 3, "weight": None, "max_in_flight": None,
    }  # fmt: skip
    for fields, stated in (
        ({"weight": "5", "max_in_flight": "2"}, {"routing": {"weight": 5, "max_in_flight": 2}}),
        ({}, {}),
    ):
        answer = operator.post(page(endpoint, "place_in_pool"), {**SUBMIT, **fields}, follow=True)
        assert messages_of(answer) == ["The place in the pool is saved."]
        endpoint.refresh_from_db()
        assert endpoint.settings == {"context_length": 4096, **stated}
    before = fingerprint()
    for fields in ({"priority": "-1"}, {"weight": "0"}, {"weight": "x"}, {"max_in_flight": "0"}):
        refused = operator.post(page(endpoint, "place_in_pool"), {**SUBMIT, **fields})
        assert list(refused.context["form"].errors) == list(fields)
    assert fingerprint() == before


def test_the_deployment_of_an_active_endpoint_is_replaced_or_kept(
    operator: Client, tenant: Tenant, active: PrivateEndpoint
) -> None:
    dialog = operator.get(page(active, "replace_deployment"))
    assert list(dialog.context["form"].fields) == [
        "_form_submitted", "upstream_model_id", "base_url", "declared_region", "declared_zdr",
        "workspace",
    ]  # fmt: skip
    workspace = str(tenant.workspace.pk)
    form = {"base_url": active.base_url, "declared_zdr": "true", "workspace": workspace}
    for upstream, message, kept in (
        (
            "sim-wrong-model",
            "The validation failed: model (model_mismatch). Nothing was changed.",
            ("active", "sim-echo", None),
        ),
        ("sim-extra", "The endpoint has the new deployment.", ("active", "sim-extra", True)),
    ):
        answer = press(operator, active, "replace_deployment", **form, upstream_model_id=upstream)
        assert messages_of(answer) == [message]
        active.refresh_from_db()
        found = (active.status, active.upstream_model_id, active.declared_zdr)
        assert found == kept
    entry = AuditEntry.objects.filter(after__upstream_model_id="sim-extra").get()
    assert entry.actor == "operator operator"


def test_validate_shows_every_check_latest_first(
    operator: Client, tenant: Tenant, simulator: Simulator
) -> None:
    endpoint = _draft_at(tenant, simulator, "sim-echo-key")
    form = {**SUBMIT, "workspace": str(tenant.workspace.pk)}

    response = operator.post(page(endpoint, "validate"), form, follow=True)

    assert messages_of(response) == ["The validation failed: completion (upstream_error)."]
    endpoint.edit(upstream_model_id="sim-wrong-model")
    operator.post(page(endpoint, "validate"), form)
    text = re.sub(r"<[^>]*>|\s+", " ", operator.get(page(endpoint)).content.decode())
    text = re.sub(r"\s+", " ", text)
    later = text.index("model failed model_mismatch sim-wrong-model another-model")
    earlier = text.index("completion failed upstream_error 200 401 Incorrect API key")
    assert later < earlier
    assert SECRET not in text


def test_validate_offers_the_workspaces_of_the_organization(
    operator: Client, tenant: Tenant, simulator: Simulator
) -> None:
    other = factories.make_tenant("Other")
    endpoint = _draft_at(tenant, simulator)

    response = operator.get(page(endpoint, "validate"))
    refused = press(operator, endpoint, "validate", workspace=str(other.workspace.pk))

    choices = list(response.context["form"].fields["workspace"].queryset)
    assert choices == [tenant.workspace]
    assert "Select a valid choice" in refused.content.decode()
    assert not Validation.objects.exists()


def test_private_endpoint_cannot_be_changed_by_its_form(operator: Client, tenant: Tenant) -> None:
    endpoint = factories.make_draft(tenant, factories.make_model(), factories.make_provider())
    before = fingerprint()

    response = operator.post(page(endpoint), {"status": "active", "base_url": "https://x.example"})

    assert response.status_code == 403
    assert fingerprint() == before


def test_a_model_stays_private_until_it_is_released(
    operator: Client, active: PrivateEndpoint
) -> None:
    response = press(operator, active, "limit_fallback", fallback="none")
    assert messages_of(response) == ["The fallback is saved."]
    active.refresh_from_db()
    assert active.fallback == "none"
    operator.post(page(active, "remove"), SUBMIT)
    shown = operator.get(page(active))
    assert "deleted, stays private until released" in shown.content.decode()
    assert [action["title"] for action in shown.context["actions_detail"]] == ["Release"]
    for query, rows in (("", [active]), ("deleted", [active]), ("active", [])):
        listed = operator.get(listing(PrivateEndpoint), {"status__exact": query} if query else {})
        assert list(listed.context["cl"].result_list) == rows
    listed = operator.get(listing(PrivateEndpoint))
    assert "deleted, stays private until released" in listed.content.decode()
    response = operator.post(page(active, "release"), SUBMIT, follow=True)
    assert messages_of(response) == [f"{active.model} is not private any more."]
    active.refresh_from_db()
    assert (active.released_at is not None, active.released_by) == (True, "operator operator")
    listed = operator.get(listing(PrivateEndpoint))
    assert list(listed.context["cl"].result_list) == []


def test_deleting_may_release_at_once(operator: Client, active: PrivateEndpoint) -> None:
    operator.post(page(active, "remove"), {**SUBMIT, "release": "on"})
    active.refresh_from_db()
    assert (active.deleted_at is not None, active.released_at is not None) == (True, True)
