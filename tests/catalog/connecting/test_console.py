"""*Connect a server* in the console: tested, then connected, as the command does it."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connections
from django.test import Client
from django.urls import reverse

from accounts.models import ByokCredential
from catalog.models import LanguageModel, ModelEndpoint, Provider
from config.audit.entries import AuditEntry
from config.changes.kinds import ChangeKind
from config.credentials import Secret
from config.egress import EgressPolicy
from config.local.certificates import ensure_certificates
from config.models import ChangeRule
from endpoints.models import PrivateEndpoint, PrivateProvider
from tests.support import factories
from tests.support.console import SUBMIT, messages_of, page
from tests.support.database import snapshots
from tests.support.endpoints.validating import held
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator
from tests.support.upstreams.listing import OLLAMA, answer_models
from tests.support.upstreams.tls import Server, serving

KEY = "sk-of-the-server-0123456789"
PAGE = "/admin/catalog/provider/connect/"


@pytest.fixture(autouse=True)
def _nothing_is_allowed(settings: Any) -> None:
    settings.EGRESS_POLICY = EgressPolicy(connect_timeout=5)


@pytest.fixture
def ollama() -> Iterator[Server]:
    with serving(answer_models(OLLAMA, key=KEY)) as server:
        yield server


def fill(server: Server, **more: Any) -> dict[str, Any]:
    return {"target": f"http://127.0.0.1:{server.port}/v1", "key": KEY, "allows": "on"} | more


def refuse(client: Client, form: dict[str, Any]) -> list[str]:
    """Sends a form that must be refused and change nothing; returns what it says."""
    before = snapshots.everything()
    answer = client.post(PAGE, form)
    assert snapshots.everything() == before
    problems: list[str] = answer.context["problems"]
    assert all(problem in answer.text for problem in problems if "'" not in problem)
    return problems


def test_a_server_is_tested_and_then_connected(operator: Client, ollama: Server) -> None:
    before = snapshots.everything()
    tested = operator.post(PAGE, fill(ollama, test="1"))
    assert snapshots.everything() == before
    assert "llama3.2:3b answered in " in tested.text
    assert "Allowed to it alone: 127.0.0.1/32" in tested.text
    assert tested.text.count('name="models"') == 2
    # The key stays in the browser.
    assert KEY not in tested.text
    form = fill(ollama, connect="1", models=["llama3.2:3b"])
    done = operator.post(PAGE, form, follow=True)
    provider = Provider.objects.get()
    endpoint = ModelEndpoint.objects.select_related("model", "price").get()
    assert done.redirect_chain == [
        (reverse("admin:catalog_provider_change", args=[provider.pk]), 302)
    ]
    [said] = messages_of(done)
    assert said.startswith("ollama is connected with 1 model. The models cost nothing until a ")
    assert (provider.slug, provider.allowed_networks) == ("ollama", ["127.0.0.1/32"])
    assert provider.reveal_credential().reveal() == KEY
    assert (endpoint.model.slug, endpoint.price.prompt) == ("ollama/llama3.2-3b", 0)
    entries = AuditEntry.objects.filter(kind="catalog.provider").values_list("actor", "action")
    assert set(entries) == {("operator operator", "admin: catalog_provider_connect")}


def test_the_models_are_sent_as_one_field(operator: Client, ollama: Server, settings: Any) -> None:
    """A form has at most 1,000 fields, and a server may list more models."""
    form = fill(ollama, connect="1")
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = len(form) + 1
    names = [row["id"] for row in OLLAMA]
    assert len(names) == 2
    before = snapshots.everything()
    assert operator.post(PAGE, form | {"models": names}).status_code == 400
    assert snapshots.everything() == before
    joined = "formData.set('models', $event.detail.formData.getAll('models').join('\\n'))"
    assert joined in operator.get(PAGE).text
    assert operator.post(PAGE, form | {"models": "\n".join(names)}).status_code == 302
    found = ModelEndpoint.objects.values_list("upstream_model_id", flat=True)
    assert sorted(found) == sorted(names)


def test_htmx_gets_the_address_of_the_provider(operator: Client, ollama: Server) -> None:
    form = fill(ollama, connect="1", models=["llama3.2:3b"])
    done = operator.post(PAGE, form, headers={"HX-Request": "true"})
    assert done["HX-Redirect"] == reverse(
        "admin:catalog_provider_change", args=[Provider.objects.get().pk]
    )


def test_refusals_name_the_fields(operator: Client, ollama: Server) -> None:
    for form, problem in (
        ({}, "URL or provider: This field is required."),
        (fill(ollama, allows=""), "it is called only if you allow it: tick Allow its address: "),
        (fill(ollama, key=""), "The server wants a key for the list of its models (401): "),
        (fill(ollama, key="wrong-key-0123456789"), "The server refuses the key"),
        (fill(ollama, authorities="none"), "Must be certificates in PEM"),
        (fill(ollama, names="none"), "The server has no model 'none'."),
        (fill(ollama, names="\0"), "Models: Null characters are not allowed."),
        (fill(ollama, target="openai", key=""), "needs a key: enter it under Key"),
        (fill(ollama, target="nobody"), "There is no provider 'nobody'."),
        (fill(ollama, organization="nobody"), "Organization: No organization has this slug"),
        (fill(ollama, connect="1"), "Models: Pick one at least."),
        (fill(ollama, connect="1", models=""), "Models: Pick one at least."),
        (fill(ollama, connect="1", models=["\0"]), "The server has no model "),
        (fill(ollama, connect="1", allows="", models=["llama3.2:3b"]), "tick Allow its address"),
    ):
        [said] = refuse(operator, form)
        assert problem in said


def test_names_that_no_column_holds_are_no_models(operator: Client) -> None:
    """A server that lists nothing is asked for the models that a person names."""
    with serving(answer_models([], prefix="/nothing")) as server:
        for name in ("x" * 181, "a\x7fb"):
            [said] = refuse(operator, fill(server, key="", connect="1", models=[name]))
            assert "lists no models" in said


def test_a_rule_of_two_people_forbids_a_connection(operator: Client, ollama: Server) -> None:
    ChangeRule.objects.update_or_create(kind=ChangeKind.CREDENTIALS, defaults={"is_required": True})
    tested = operator.post(PAGE, fill(ollama, test="1"))
    assert "Provider credentials need a second person" in tested.text
    assert 'name="connect"' not in tested.text
    [said] = refuse(operator, fill(ollama, connect="1", models=["llama3.2:3b"]))
    assert said.startswith("Provider credentials need a second person")


def test_organizations_need_the_permissions_of_all_that_is_written(
    db: None, tenant: Tenant, ollama: Server
) -> None:
    user = User.objects.create_user("helper", is_staff=True)
    models = ("provider", "languagemodel", "modelendpoint")
    names = [f"{verb}_{model}" for verb in ("add", "change", "view") for model in models]
    user.user_permissions.set(Permission.objects.filter(codename__in=names))
    client = Client()
    client.force_login(user)
    assert 'name="organization"' not in client.get(PAGE).text
    form = fill(ollama, organization=tenant.organization.slug, connect="1", models=["llama3.2:3b"])
    client.post(PAGE, form)
    assert Provider.objects.count() == 1
    assert not PrivateProvider.objects.exists()
    tenant.organization.refresh_from_db()
    assert tenant.organization.allowed_networks is None
    user.user_permissions.remove(Permission.objects.get(codename="change_provider"))
    for method in (client.get, client.post):
        assert method(PAGE).status_code == 403


def ask(client: Client, endpoint: ModelEndpoint) -> list[str]:
    """Sends a test request by the page of an endpoint, which must change nothing."""
    before = snapshots.everything()
    answer = client.post(page(endpoint, "send_test"), SUBMIT, follow=True)
    assert snapshots.everything() == before
    return messages_of(answer)


def test_an_endpoint_is_sent_a_test_request(operator: Client, ollama: Server) -> None:
    provider = factories.make_provider("acme", base_url=f"http://127.0.0.1:{ollama.port}/v1")
    chat = factories.make_endpoint(
        factories.make_model(), provider, upstream_model_id="llama3.2:3b"
    )
    speech = factories.make_endpoint(factories.make_model(output_modalities=["speech"]), provider)
    assert ask(operator, chat) == ["The provider acme needs a key: enter it on its page."]
    provider.set_credential(Secret(KEY))
    [said] = ask(operator, chat)
    assert said == (
        "127.0.0.1 is not a public address (loopback), so it is called only if you allow it: list "
        "its address on the page of the provider, under Allowed networks: it allows 127.0.0.1/32 "
        "for this alone."
    )
    assert ollama.connections == 0
    factories.change(provider, allowed_networks=["127.0.0.1/32"])
    [said] = ask(operator, chat)
    assert re.fullmatch(r"llama3\.2:3b answered in [0-9]+ ms: White\.", said)
    assert ask(operator, speech) == ["There is no test request for this kind of model."]


@pytest.mark.django_db(transaction=True)
def test_no_connection_to_the_database_waits_for_a_server(operator: Client) -> None:
    script, own = answer_models(OLLAMA), connections["default"]
    in_use: list[bool] = []

    def look(line: socket.socket, head: bytes, received: bytes) -> bool:
        in_use.append(own.connection is not None)
        return script(line, head, received)

    with serving(look) as server:
        assert "answered in " in operator.post(PAGE, fill(server, key="", test="1")).text
        provider = factories.make_provider(
            base_url=f"http://127.0.0.1:{server.port}/v1",
            allowed_networks=["127.0.0.1/32"],
            is_keyless=True,
        )
        chat = factories.make_endpoint(
            factories.make_model(), provider, upstream_model_id="llama3.2:3b"
        )
        [said] = ask(operator, chat)
        assert "answered in " in said
    # The list, a test request, and the one of the endpoint.
    assert in_use == [False, False, False]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (KEY, r"llama3\.2:3b answered in [0-9]+ ms: White\."),
        (
            "wrong-key-0123456789",
            r"The credential is stored, and a test request failed: The server refuses .*\(401\).*",
        ),
    ],
)
def test_a_new_credential_is_tried_when_it_is_stored(
    operator: Client, ollama: Server, key: str, expected: str
) -> None:
    provider = factories.make_provider(
        base_url=f"http://127.0.0.1:{ollama.port}/v1", allowed_networks=["127.0.0.1/32"]
    )
    free = factories.make_endpoint(
        factories.make_model(), provider, upstream_model_id="llama3.2:3b"
    )
    form = operator.get(page(provider)).context["adminform"].form
    sent = {name: form[name].value() for name in form.fields if form[name].value() is not None}
    answer = operator.post(page(provider), {**sent, "secret": key}, follow=True)
    *_, said = messages_of(answer)
    assert re.fullmatch(expected, said)
    provider.refresh_from_db()
    assert provider.reveal_credential() == Secret(key)
    free.delist()
    answer = operator.post(page(provider), {**sent, "secret": KEY}, follow=True)
    assert len(messages_of(answer)) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("lost", ["is_superuser", "is_active"])
@pytest.mark.parametrize(
    ("models", "is_own"),
    [(["sim-held"], False), (["sim-held"], True), (["sim-echo", "sim-held"], True)],
    ids=["shared", "own", "own, when the endpoints are validated"],
)
def test_nothing_is_connected_for_an_operator_who_may_not_any_more(
    operator: Client, tenant: Tenant, tmp_path: Path, models: list[str], is_own: bool, lost: str
) -> None:
    with Simulator(ensure_certificates(tmp_path), keys={KEY}).run_in_thread() as upstream:
        form = {
            "target": upstream.base_url,
            "key": KEY,
            "allows": "on",
            "organization": tenant.organization.slug if is_own else "",
            "authorities": (tmp_path / "ca.pem").read_text(),
            "models": models,
            "connect": "1",
        }
        with held(upstream, lambda: operator.post(PAGE, form)) as pending:
            assert PrivateEndpoint.objects.exists() == (len(models) == 2)
            User.objects.filter(username="operator").update(**{lost: False})
    [said] = pending.result().context["problems"]
    assert said == "You may not do this any more. Nothing was changed."
    assert not Provider.objects.exists()
    for rows in (ByokCredential.objects, PrivateProvider.objects, PrivateEndpoint.objects):
        assert not rows.for_organization(tenant.organization.pk).exists()
    assert not LanguageModel.objects.of_everybody().filter(is_listed=True).exists()
    tenant.organization.refresh_from_db()
    assert tenant.organization.allowed_networks is None


@pytest.mark.django_db(transaction=True)
def test_an_organization_gets_private_endpoints(
    operator: Client, tenant: Tenant, tmp_path: Path
) -> None:
    with Simulator(ensure_certificates(tmp_path), keys={KEY}).run_in_thread() as upstream:
        form = {
            "target": upstream.base_url,
            "key": KEY,
            "allows": "on",
            "organization": tenant.organization.slug,
            "authorities": (tmp_path / "ca.pem").read_text(),
            "models": ["sim-echo"],
            "connect": "1",
        }
        plain = form | {"target": "http://10.0.0.5:8000/v1"}
        [said] = operator.post(PAGE, plain).context["problems"]
        assert "paste its certificate" in said
        assert "leave Organization empty" in said
        [said] = operator.post(PAGE, form | {"models": ["sim-no-usage"]}).context["problems"]
        assert "(missing_usage)" in said
        assert "Nothing was connected. Leave it out, or repair the server." in said
        organization = tenant.organization.pk
        for rows in (ByokCredential.objects, PrivateProvider.objects, PrivateEndpoint.objects):
            assert not rows.for_organization(organization).exists()
        done = operator.post(PAGE, form, follow=True)
    endpoint = PrivateEndpoint.objects.get(deleted_at=None)
    assert endpoint.status == "active"
    assert endpoint.activated_by == "operator operator"
    assert done.redirect_chain == [
        (reverse("admin:endpoints_privateendpoint_change", args=[endpoint.pk]), 302)
    ]
    assert not Provider.objects.exists()
