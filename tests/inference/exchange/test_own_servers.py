"""Servers of the operator's own: without a key, in a network of their own."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from accounts.models import Organization
from catalog.models import Provider
from config.credentials import NO_SECRET, Secret
from config.egress import Reach
from config.egress.addresses import parse_network
from inference.admission.copies.organizations import load_organization
from inference.admission.copies.whole import read_catalog_on_orm
from tests.support import factories
from tests.support.inference.site import OPERATOR_SECRET, Site
from tests.support.upstreams.tls import Authority


def test_a_keyless_provider_is_called_without_a_header(site: Site) -> None:
    site.publish()
    site.provider.set_credential(NO_SECRET)
    site.upstream.is_keyless = True
    try:
        answer = site.chat("one two")
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"] == "You said: one two"
        # A server that wants a key after all is told apart from one that fails.
        site.upstream.is_keyless = False
        refused = site.chat("three")
        assert refused.status_code == 502
        assert refused.json()["error"]["metadata"]["kind"] == "credential"
        site.provider.set_credential(Secret(OPERATOR_SECRET))
        assert site.chat("four").json()["choices"][0]["message"]["content"] == "You said: four"
    finally:
        site.upstream.is_keyless = False
    assert Provider.objects.get(slug="acme").is_keyless is False


def test_the_database_knows_no_keyless_provider_with_a_credential(db: None) -> None:
    provider = factories.make_provider()
    provider.set_credential(Secret(OPERATOR_SECRET))
    cloud = factories.make_provider(dialect="azure", base_url=None)
    for row in (provider, cloud):
        with pytest.raises(IntegrityError, match="keyless"), transaction.atomic():
            Provider.objects.filter(pk=row.pk).update(is_keyless=True)


def test_routes_have_the_reach_of_their_owner(db: None, tmp_path: Path) -> None:
    pem = Path(Authority(tmp_path).bundle).read_text()
    tenant, model = factories.make_tenant(), factories.make_model("acme/falcon")
    provider = factories.make_provider(allowed_networks=["10.1.0.0/16"], ca_certificates=pem)
    factories.make_endpoint(model, provider)
    endpoint = factories.make_draft(tenant, model, provider)
    factories.make_validation(endpoint, factories.make_credential(tenant, provider))
    endpoint.activate()
    Organization.objects.filter(pk=tenant.organization.pk).update(allowed_networks=["10.2.0.5/32"])
    catalog = read_catalog_on_orm()
    [public] = catalog.routes["acme/falcon"]
    assert public.reach == Reach((parse_network("10.1.0.0/16"),), pem, is_proxied=True)
    [private] = load_organization(tenant.organization.pk).resolve(catalog).routes["acme/falcon"]
    owner = str(tenant.organization.pk)
    assert private.reach == Reach((parse_network("10.2.0.5/32"),), "", False, owner)


@pytest.mark.parametrize(
    ("name", "value"), [("allowed_networks", ["10.2.0.5/32"]), ("ca_certificates", "PEM")]
)
def test_a_changed_reach_is_a_new_version(transactional_db: None, name: str, value: Any) -> None:
    organization_id: uuid.UUID = factories.make_tenant().organization.pk
    provider = factories.make_provider()
    versions = Organization.objects.values_list("routing_version", flat=True)
    before, catalog = versions.get(pk=organization_id), read_catalog_on_orm().version
    Organization.objects.filter(pk=organization_id).update(**{name: value})
    Provider.objects.filter(pk=provider.pk).update(**{name: value})
    assert versions.get(pk=organization_id) != before
    assert read_catalog_on_orm().version != catalog
