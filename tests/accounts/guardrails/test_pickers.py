"""The lists that the pickers of a guardrail search, and the names that they offer."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import ApiKey, Guardrail
from accounts.policy import Policy
from catalog.visibility import EndpointFacts, exclusions
from tests.support import factories
from tests.support.console import fingerprint, listing, page
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail, make_key, make_member


def search(client: Client, what: str, guardrail: Guardrail | None = None, **query: str) -> Any:
    args = [] if guardrail is None else [str(guardrail.pk)]
    answer = client.get(reverse(f"admin:accounts_guardrail_{what}", args=args), query)
    assert answer.status_code == 200
    return answer.json()


def texts(found: Any) -> list[str]:
    return [row["text"] for row in found["results"]]


def test_models_are_found_with_their_authors(operator: Client, tenant: Tenant) -> None:
    for slug in ("acme/falcon", "acme/kestrel", "globex/osprey"):
        factories.make_model(slug)

    found = search(operator, "models", term="acme")
    assert texts(found) == ["acme/* (all models of acme)", "acme/falcon", "acme/kestrel"]
    assert [row["id"] for row in found["results"]] == [
        "acme/*", "acme/falcon-2026-01-01", "acme/kestrel-2026-01-01",
    ]  # fmt: skip
    assert texts(search(operator, "models", term="acme/*"))[0] == "acme/* (all models of acme)"
    assert texts(search(operator, "models", term="kestrel")) == ["acme/kestrel"]
    assert texts(search(operator, "models", term="%")) == []
    assert texts(search(operator, "models", term="a\x00")) == texts(search(operator, "models"))


def test_models_come_in_pages(operator: Client, tenant: Tenant) -> None:
    for number in range(21):
        factories.make_model(f"acme/m{number:02}")

    first, second = (search(operator, "models", page=number) for number in ("1", "2"))
    assert (len(first["results"]), first["pagination"]) == (20, {"more": True})
    assert (texts(second), second["pagination"]) == (["acme/m20"], {"more": False})
    assert search(operator, "models", page="x") == first


def test_providers_are_found_by_slug_and_name(operator: Client, tenant: Tenant) -> None:
    factories.make_provider("globex", name="Globex Cloud")

    assert texts(search(operator, "providers", term="cloud")) == ["globex (Globex Cloud)"]
    assert texts(search(operator, "providers", term="glob")) == ["globex (Globex Cloud)"]


def test_keys_and_members_are_those_of_the_organization(operator: Client, tenant: Tenant) -> None:
    other = factories.make_tenant("Other")
    guardrail = make_guardrail(tenant.workspace)
    mine, _ = make_key(tenant, "robot one"), make_key(other, "robot two")
    person = make_member(tenant.organization, email="ann@acme.example", first_name="Ann")
    make_member(other.organization, email="ann@other.example")

    found = search(operator, "keys", guardrail, term="robot")
    assert found["results"] == [{"id": str(mine.pk), "text": f"robot one · {mine.label}"}]
    found = search(operator, "members", guardrail, term="ann")
    assert found["results"] == [{"id": str(person.pk), "text": "Ann · ann@acme.example"}]
    ApiKey.objects.get(pk=mine.pk).revoke()
    assert search(operator, "keys", guardrail, term="robot")["results"] == []


def test_lists_of_a_missing_guardrail_do_not_exist(operator: Client, tenant: Tenant) -> None:
    for what in ("keys", "members"):
        for missing in ("00000000-0000-0000-0000-000000000000", "x"):
            path = reverse(f"admin:accounts_guardrail_{what}", args=[missing])
            assert operator.get(path).status_code == 404


@pytest.mark.parametrize("what", ["models", "providers", "keys", "members"])
def test_lists_are_refused_without_permission(viewer: Client, tenant: Tenant, what: str) -> None:
    guardrail = make_guardrail(tenant.workspace)
    args = [str(guardrail.pk)] if what in ("keys", "members") else []

    assert viewer.get(reverse(f"admin:accounts_guardrail_{what}", args=args)).status_code == 403


def test_form_shows_the_public_names_of_what_is_chosen(operator: Client, tenant: Tenant) -> None:
    factories.make_model("acme/falcon")
    guardrail = make_guardrail(
        tenant.workspace, allowed_models=["acme/falcon-2026-01-01", "gone/model", "acme/*"]
    )
    text = operator.get(page(guardrail)).content.decode()

    assert '<option value="acme/falcon-2026-01-01" selected>acme/falcon</option>' in text
    assert '<option value="gone/model" selected>gone/model</option>' in text
    assert '<option value="acme/*" selected>acme/*</option>' in text


def test_all_models_of_an_author_are_one_name(operator: Client, tenant: Tenant) -> None:
    factories.make_model("acme/falcon")
    form = {
        "name": "Author", "workspace": str(tenant.workspace.pk), "ignored_models": ["acme/*"],
    }  # fmt: skip
    operator.post(listing(Guardrail, "add"), form)
    guardrail = Guardrail.objects.get()

    assert guardrail.ignored_models == ["acme/*"]
    facts = EndpointFacts("p", "P", True, False, "acme/falcon", "acme/falcon-2026-01-01")
    assert exclusions(facts, guardrail.policy) == ("model_ignored",)
    assert exclusions(facts, Policy.of(models=["globex/*"])) == ("model_not_allowed",)
    assert exclusions(facts, Policy.of(models=["acme/*"])) == ()


def test_unknown_name_is_shown_again_with_its_error(operator: Client, tenant: Tenant) -> None:
    before = fingerprint()
    form = {
        "name": "Author", "workspace": str(tenant.workspace.pk), "allowed_models": ["gone/*"],
    }  # fmt: skip
    shown = operator.post(listing(Guardrail, "add"), form)

    assert shown.context["adminform"].form.errors == {
        "allowed_models": ["gone/* is not a model of the catalogue."]
    }
    assert '<option value="gone/*" selected>' in shown.content.decode()
    assert fingerprint() == before
