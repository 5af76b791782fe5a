"""Tests providers, models and model endpoints on the console."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from accounts.models import ByokCredential
from catalog import imports
from catalog.models import LanguageModel, ModelEndpoint, PriceVersion, Provider
from config.credentials import Secret
from endpoints.models import PrivateEndpoint
from tests.support import factories
from tests.support.console import SECRET, change, fingerprint, listing, page, read_form
from tests.support.database import snapshots
from tests.support.factories import Tenant

FORM = {"name": "Acme AI", "dialect": "openai", "base_url": "https://api.example.com/v1"}
LISTED = {**FORM, "is_listed": "on"}


def errors_of(response: Any) -> Any:
    return response.context["adminform"].form.errors


def test_change_provider_stores_the_credential_of_the_operator(operator: Client, db: None) -> None:
    provider = factories.make_provider("acme-ai", name="Acme AI")
    form = {**LISTED, "base_url": "https://API.example.com/v1/", "secret": SECRET}

    response = operator.post(page(provider), form)

    found = Provider.objects.get()
    assert response.status_code == 302
    assert (found.slug, found.base_url) == ("acme-ai", "https://api.example.com/v1")
    assert found.reveal_credential() == Secret(SECRET)
    operator.post(page(provider), {**form, "secret": ""})
    assert Provider.objects.get().reveal_credential() == Secret(SECRET)


def test_stored_credentials_go_to_no_other_host(operator: Client, tenant: Tenant) -> None:
    provider = factories.make_provider("acme-ai", name="Acme AI", base_url=FORM["base_url"])
    provider.set_credential(Secret(SECRET))
    moved = {**LISTED, "base_url": "https://listener.example/v1"}
    before = fingerprint()
    refused = operator.post(page(provider), moved)
    text = (
        "The host changes, and the stored credential goes to no other host. Enter the credential "
        "again on the provider's page."
    )
    assert errors_of(refused) == {"base_url": [text]}
    assert fingerprint() == before
    # Another path of the same host shows the credential to nobody new.
    near = {**moved, "base_url": "https://api.example.com:8443/v2"}
    assert operator.post(page(provider), near).status_code == 302
    assert operator.post(page(provider), {**moved, "secret": SECRET}).status_code == 302
    assert Provider.objects.get().base_url == "https://listener.example/v1"

    factories.make_credential(tenant, Provider.objects.get(), SECRET)
    before = fingerprint()
    refused = operator.post(page(provider), {**LISTED, "secret": SECRET})
    text = (
        "The host changes, and credentials of organizations at this provider go to no other host. "
        "Add another provider."
    )
    assert errors_of(refused) == {"base_url": [text]}
    assert fingerprint() == before
    ByokCredential.objects.get().remove()
    assert operator.post(page(provider), {**LISTED, "secret": SECRET}).status_code == 302


def test_a_provider_that_takes_no_key_forgets_its_credential(operator: Client, db: None) -> None:
    provider = factories.make_provider("acme-ai", name="Acme AI")
    provider.set_credential(Secret(SECRET))
    form = {**LISTED, "base_url": "http://10.0.0.5:8000/v1", "is_keyless": "on"}
    refused = operator.post(page(provider), form)
    text = "the address or the port of the URL is not allowed"
    assert errors_of(refused) == {"base_url": [text]}
    form |= {"allowed_networks": "10.0.0.5/32", "secret": SECRET}
    refused = operator.post(page(provider), form)
    text = "A provider that takes no key has none: leave one of both."
    assert errors_of(refused) == {"secret": [text]}
    assert Provider.objects.get().reveal_credential() == Secret(SECRET)
    assert operator.post(page(provider), {**form, "secret": ""}).status_code == 302
    found = Provider.objects.get()
    assert (found.is_keyless, found.sealed_credential, found.credential_label) == (True, None, "")
    assert (found.base_url, found.allowed_networks) == ("http://10.0.0.5:8000/v1", ["10.0.0.5/32"])
    del form["is_keyless"]
    assert operator.post(page(provider), form).status_code == 302
    found = Provider.objects.get()
    assert (found.is_keyless, found.reveal_credential()) == (False, Secret(SECRET))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("allowed_networks", "10.0.0.5/8", "is no network: write an address"),
        ("ca_certificates", "hello", "Must be certificates in PEM"),
    ],
)
def test_a_reach_that_cannot_be_read_is_refused(
    operator: Client, db: None, field: str, value: str, message: str
) -> None:
    provider = factories.make_provider("acme-ai", name="Acme AI")
    before = Provider.objects.values().get()
    response = operator.post(page(provider), {**FORM, field: value})
    [error] = errors_of(response)[field]
    assert message in error
    assert Provider.objects.values().get() == before


def test_change_provider_requires_a_base_url_for_its_dialect(operator: Client, db: None) -> None:
    provider = factories.make_provider()

    response = operator.post(page(provider), {"name": "X", "dialect": "openai", "base_url": ""})

    assert errors_of(response) == {"base_url": ["This dialect needs a base URL."]}


@pytest.mark.parametrize("created", ["-1", "100000000001", "1767225600000"])
def test_change_model_refuses_a_time_outside_seconds(
    operator: Client, db: None, created: str
) -> None:
    model = factories.make_model()
    before = fingerprint()
    response = change(operator, model, {"created": created})
    text = "Must be a Unix time in seconds, not in milliseconds."
    assert errors_of(response)["created"] == [text]
    assert fingerprint() == before


def send_changed(operator: Client, row: Any, **changes: str) -> Any:
    """Sends the form of a page with other values in some of its fields."""
    shown = read_form(operator.get(page(row)).context["adminform"].form)
    return operator.post(page(row), {**shown, **changes})


NOT_STORED = {
    "no number": '{"temperature": NaN}',
    "a number without an end": '{"temperature": 1e400}',
    "too many digits": f'{{"seed": {"9" * 5_000}}}',
    "NUL": '{"stop": "\\u0000"}',
    "half of a pair": '{"\\ud800": 1}',
    "too deep": f'{{"a": {"[" * 32}{"]" * 32}}}',
    "no end": "[" * 5_000,
}


@pytest.mark.parametrize("case", NOT_STORED)
def test_json_that_cannot_be_stored_is_refused_and_shown_again(
    operator: Client, db: None, case: str
) -> None:
    model, text = factories.make_model(), NOT_STORED[case]
    before = fingerprint()
    response = send_changed(operator, model, default_parameters=text)
    [error] = errors_of(response)["default_parameters"]
    assert error.startswith("Enter valid JSON")
    assert response.context["adminform"].form["default_parameters"].value() == text
    assert fingerprint() == before


def test_json_of_a_model_is_stored_as_it_was_entered(operator: Client, db: None) -> None:
    model = factories.make_model()
    text = '{"temperature": 0.7, "stop": ["\\ud83d\\ude00"]}'
    assert send_changed(operator, model, default_parameters=text).status_code == 302
    model.refresh_from_db()
    assert model.default_parameters == {"temperature": 0.7, "stop": ["😀"]}


@pytest.mark.parametrize("text", ["[]", '""', "0", "[1]"])
def test_abilities_of_an_endpoint_must_be_an_object(operator: Client, db: None, text: str) -> None:
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    response = send_changed(operator, endpoint, abilities=text)
    assert errors_of(response) == {"abilities": ["Must be a JSON object."]}


COUNTRY = "Must be the two capital letters of a country, such as US."
ADDRESS = "Must begin with https:// or http://, and have no spaces."


@pytest.mark.parametrize(
    ("kind", "field", "value", "message"),
    [
        (Provider, "headquarters", "us", COUNTRY),
        (Provider, "datacenters", "US,de", COUNTRY),
        (Provider, "privacy_policy_url", "ftp://a.example/terms", ADDRESS),
        (Provider, "terms_of_service_url", "ftp://a.example/terms", ADDRESS),
        (Provider, "status_page_url", "ftp://a.example/status", ADDRESS),
        (Provider, "tokens_per_minute", "3000000000", "Expected `int` <= 2147483647"),
        (LanguageModel, "slug", "falcon", "Must be AUTHOR/NAME, without spaces."),
        (LanguageModel, "context_length", "0", "Expected `int` >= 1"),
        (LanguageModel, "default_parameters", "[1]", "Expected `object | null`, got `array`"),
        (LanguageModel, "per_request_limits", "5", "Expected `object | null`, got `int`"),
        (ModelEndpoint, "context_length", "0", "Expected `int` >= 1"),
        (ModelEndpoint, "max_completion_tokens", "0", "Expected `int` >= 1"),
    ],
)
def test_what_no_catalogue_file_could_have_is_refused(
    operator: Client, db: None, kind: type[Any], field: str, value: str, message: str
) -> None:
    factories.make_endpoint(factories.make_model(), factories.make_provider())
    row = kind.objects.get()
    before = fingerprint()
    assert errors_of(send_changed(operator, row, **{field: value})) == {field: [message]}
    assert fingerprint() == before


def test_a_new_model_needs_the_name_of_its_author(operator: Client, db: None) -> None:
    form = read_form(operator.get(listing(LanguageModel, "add")).context["adminform"].form)
    form |= {"name": "Falcon", "slug": "acme/falcon", "canonical_slug": "falcon", "created": "0"}
    form |= {"input_modalities": "text", "output_modalities": "text"}
    with snapshots.unchanged():
        refused = operator.post(listing(LanguageModel, "add"), form)
    assert errors_of(refused) == {"canonical_slug": ["Must be AUTHOR/NAME, without spaces."]}
    form["canonical_slug"] = "acme/falcon-1"
    assert operator.post(listing(LanguageModel, "add"), form).status_code == 302
    assert imports.parse(imports.export()[0]).models[0].id == "acme/falcon"


def test_a_value_that_was_stored_before_may_stay(operator: Client, db: None) -> None:
    model = factories.make_model("falcon")
    assert send_changed(operator, model, name="Falcon").status_code == 302
    model.refresh_from_db()
    assert (model.slug, model.name) == ("falcon", "Falcon")


def test_pages_show_models_with_any_stored_time(operator: Client, db: None) -> None:
    model = factories.make_model()
    for created, shown in (
        (10**11, "5138-11-16"),
        (1767225600000, "1767225600000 (not a time in seconds)"),
        (-(10**15), "-1000000000000000 (not a time in seconds)"),
    ):
        LanguageModel.objects.filter(pk=model.pk).update(created=created)
        for path in (listing(LanguageModel), page(model)):
            assert shown in operator.get(path).content.decode()


def test_change_model_endpoint_stores_changed_rates_as_a_new_price_version(
    operator: Client, db: None
) -> None:
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    first = endpoint.price
    form = {
        "prompt": "1",
        "completion": "2",
        "image": "0",
        "request": "0",
        "is_listed": "on",
        "context_length": "131072",
    }

    operator.post(page(endpoint), form)

    assert ModelEndpoint.objects.get().price == first
    operator.post(page(endpoint), {**form, "completion": "0.0000000000000000000003"})
    price = ModelEndpoint.objects.get().price
    assert (price.price.text("prompt"), price.price.text("completion")) == (
        "0.000001",
        "0.0000000000000000000000000003",
    )
    assert PriceVersion.objects.get(pk=first.pk).price.text("completion") == "0.000002"


@pytest.mark.parametrize(
    ("model", "first"),
    [
        (ModelEndpoint, ["model", "provider", "upstream_model_id", "prompt", "completion"]),
        (PrivateEndpoint, ["organization", "model", "provider", "upstream_model_id", "base_url"]),
    ],
)
def test_a_new_row_asks_for_little_and_folds_the_rest(
    operator: Client, model: type[Any], first: list[str]
) -> None:
    shown = operator.get(listing(model, "add")).context["adminform"]
    asked, more = shown
    assert [field.field.name for line in asked for field in line] == first
    assert (more.name, more.is_collapsible) == ("More", True)
    # A fault in what is folded opens it.
    fault = {"context_length": "x", "cache_read": "x"}
    _, more = operator.post(listing(model, "add"), fault).context["adminform"]
    assert not more.is_collapsible


def test_rates_are_read_and_written_per_million_tokens(operator: Client, db: None) -> None:
    endpoint = factories.make_endpoint(
        factories.make_model(), factories.make_provider(), price=factories.make_price("0.000003")
    )
    form = operator.get(page(endpoint)).context["adminform"].form
    assert (form["prompt"].value(), form["prompt"].help_text) == ("3", "USD per million tokens.")
    viewer = User.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.set(Permission.objects.filter(codename="view_modelendpoint"))
    client = Client()
    client.force_login(viewer)
    assert "<div>prompt: $3 per million</div>" in client.get(page(endpoint)).text


def test_add_model_endpoint_stores_its_price(operator: Client, db: None) -> None:
    model, provider = factories.make_model(), factories.make_provider()

    response = operator.post(
        listing(ModelEndpoint, "add"),
        {
            "model": str(model.pk),
            "provider": str(provider.pk),
            "upstream_model_id": "m-1",
            "region": "global",
            "prompt": "2.5",
            "completion": "10",
            "image": "0",
            "request": "0",
            "image_output": "30",
        },
    )

    endpoint = ModelEndpoint.objects.select_related("price").get()
    assert response.status_code == 302
    assert endpoint.price.subject_id == endpoint.pk
    assert endpoint.price.price.text("image_output") == "0.00003"
    assert endpoint.price.price.text("prompt") == "0.0000025"


def test_a_price_that_was_changed_since_is_not_brought_back(operator: Client, db: None) -> None:
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    shown = operator.get(page(endpoint)).context["adminform"].form
    form = {name: shown[name].value() or "" for name in shown.fields}
    form |= {"is_moderated": "on", "supported_parameters": "", "abilities": "{}"}
    endpoint.reprice(factories.make_price("0.000007"))
    with snapshots.unchanged():
        refused = operator.post(page(endpoint), form, follow=True)
    assert "The price has changed since this page was opened." in refused.text
    form["basis"] = str(endpoint.price_id)
    assert operator.post(page(endpoint), form).status_code == 302
    endpoint.refresh_from_db()
    assert (endpoint.is_moderated, endpoint.price.price.text("prompt")) == (True, "0.000001")
