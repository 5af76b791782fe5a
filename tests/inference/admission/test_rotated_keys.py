"""A rotated key: both secrets reach the same limits, and the former one ends when it should."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from accounts.models import ApiKey, ByokCredential
from accounts.rotation import rotate_key
from billing.models import Meter
from config.clocks.clock import clock
from inference.models import Generation
from tests.support import factories
from tests.support.inference.site import Site


@pytest.fixture
def key(site: Site) -> ApiKey:
    """Publishes a model and returns the tenant's inference key."""
    site.publish(price=factories.make_price("0.000001", "0.000001"))
    found: ApiKey = ApiKey.objects.get(name="inference")
    return found


def ask(site: Site, secret: str, **fields: Any) -> Any:
    return site.post(site.chat_body(**fields), key=secret)


def test_both_secrets_spend_from_one_limit(site: Site, key: ApiKey) -> None:
    old = site.tenant.api_key
    assert ask(site, old).status_code == 200
    former, secret = rotate_key(key, overlap=60)
    new = secret.reveal()
    assert [ask(site, old).status_code, ask(site, new).status_code] == [200, 200]
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    spent = Meter.objects.get(pk=key.pk).cost
    assert spent == sum(Generation.objects.values_list("cost_nano", flat=True))
    assert Meter.objects.get(pk=former.pk).requests == 0
    management = factories.client(site.tenant.management_key)
    shown = [
        management.get(f"/api/v1/keys/{digest}").json()["data"]["usage"]
        for digest in (former.digest, key.digest)
    ]
    assert shown == [spent / 10**9] * 2
    # What was spent by the former secret leaves nothing to the new one, and the other way round.
    key.edit(limit_nano=spent)
    assert [ask(site, old).status_code, ask(site, new).status_code] == [403, 403]
    key.edit(limit_nano=None, rate_limits={"requests_per_day": 3})
    assert [ask(site, old).status_code, ask(site, new).status_code] == [429, 429]


def test_a_former_secret_ends_with_its_overlap(site: Site, key: ApiKey) -> None:
    old = site.tenant.api_key
    assert ask(site, old).status_code == 200
    former, secret = rotate_key(key, overlap=60)
    assert ask(site, old).status_code == 200
    ApiKey.objects.filter(pk=former.pk).update(expires_at=clock.now() - timedelta(seconds=1))
    stored = Generation.objects.count()
    assert ask(site, old).status_code == 401
    assert Generation.objects.count() == stored
    assert ask(site, secret.reveal()).status_code == 200


@pytest.mark.parametrize("end", ["no overlap", "former", "key"])
def test_a_former_secret_is_refused_on_the_next_request(site: Site, key: ApiKey, end: str) -> None:
    old = site.tenant.api_key
    assert ask(site, old).status_code == 200
    former, secret = rotate_key(key, overlap=0 if end == "no overlap" else 60)
    if end != "no overlap":
        assert [ask(site, old).status_code, ask(site, secret.reveal()).status_code] == [200, 200]
        (former if end == "former" else key).revoke()
    assert ask(site, old).status_code == 401
    assert ask(site, secret.reveal()).status_code == (401 if end == "key" else 200)


def test_both_secrets_use_a_credential_that_names_the_key(site: Site, key: ApiKey) -> None:
    site.own()
    credential = ByokCredential.objects.get()
    credential.allowed_api_key_hashes = [key.digest]
    credential.save_fields("allowed_api_key_hashes")
    assert ask(site, site.tenant.api_key).json()["usage"]["is_byok"] is True
    _, secret = rotate_key(key, overlap=60)
    for each in (site.tenant.api_key, secret.reveal()):
        assert ask(site, each).json()["usage"]["is_byok"] is True
