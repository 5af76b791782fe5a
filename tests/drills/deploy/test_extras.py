"""What an installation without an extra says of the providers that it cannot call."""

from __future__ import annotations

import html
import json
import logging
import sys
from collections.abc import Iterator
from io import BytesIO, TextIOWrapper
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client
from rest_framework.test import APIClient

from catalog import dialects
from catalog.models import LanguageModel, Provider
from config.local.bootstrap import install_command
from config.management.extras import log_missing_extras
from endpoints import validation
from tests.support import factories
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.machine.logs import own_records
from tests.support.upstreams import clouds

MISSING = install_command("bedrock")
SECRET = json.dumps(clouds.bedrock())


@pytest.fixture
def lacking() -> Iterator[None]:
    """Python does not find botocore, as in an installation without the extra."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "botocore", None)
        dialects.missing_extra.cache_clear()
        yield
    dialects.missing_extra.cache_clear()


@pytest.fixture
def provider(db: None) -> Provider:
    return factories.make_provider(
        "amazon-bedrock", name="Amazon Bedrock", dialect="bedrock", base_url=None
    )


@pytest.fixture
def model(provider: Provider) -> LanguageModel:
    model = factories.make_model("acme/falcon")
    factories.make_endpoint(model, provider)
    return model


def test_each_dialect_lacks_what_its_own_extra_installs(lacking: None) -> None:
    assert [dialects.missing_extra(name) for name in ("bedrock", "vertex", "openai")] == [
        *("bedrock", None, None)
    ]
    assert dialects.get("bedrock") is None
    assert dialects.get("vertex") is not None


def test_the_packages_of_google_may_be_missing_as_a_whole() -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in sys.modules if name.partition(".")[0] == "google"]:
            patch.delitem(sys.modules, name)
        patch.setitem(sys.modules, "google", None)
        dialects.missing_extra.cache_clear()
        assert dialects.missing_extra("vertex") == "vertex"
    dialects.missing_extra.cache_clear()
    assert dialects.missing_extra("vertex") is None


def test_a_credential_is_refused_in_every_place(
    lacking: None, provider: Provider, management: APIClient, operator: Client
) -> None:
    before = snapshots.everything()
    by_api = management.post("/api/v1/byok", {"provider": provider.slug, "key": SECRET})
    assert by_api.status_code == 400
    assert MISSING in by_api.json()["error"]["message"]
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(CommandError) as caught,
    ):
        patch.setattr(sys, "stdin", TextIOWrapper(BytesIO(SECRET.encode())))
        call_command("set_provider_credential", provider.slug)
    assert MISSING in str(caught.value)
    form = {"slug": provider.slug, "name": provider.name, "dialect": "bedrock", "secret": SECRET}
    page = operator.post(f"/admin/catalog/provider/{provider.pk}/change/", form)
    assert page.status_code == 200
    assert MISSING in html.unescape(page.content.decode())
    assert snapshots.everything() == before


def test_a_private_endpoint_is_refused_when_it_is_created(
    lacking: None, provider: Provider, model: LanguageModel, management: APIClient
) -> None:
    before = snapshots.everything()
    body: dict[str, Any] = {
        "model_permaslug": model.canonical_slug,
        "provider_slug": provider.slug,
        "upstream_model_id": "acme.falcon",
    }
    refused = management.post("/api/v1/private-endpoints", body)
    assert refused.status_code == 422
    assert MISSING in refused.json()["error"]["message"]
    assert snapshots.everything() == before


def test_the_validation_of_an_older_endpoint_says_what_is_missing(
    provider: Provider, model: LanguageModel, tenant: Tenant
) -> None:
    endpoint = factories.make_draft(tenant, model, provider, base_url=None)
    factories.make_credential(tenant, provider, SECRET)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "botocore", None)
        dialects.missing_extra.cache_clear()
        result = validation.run(endpoint, workspace_id=tenant.workspace.pk)
    dialects.missing_extra.cache_clear()
    assert not result.passed
    assert MISSING in result.checks[-1]["upstream_message"]


def test_the_start_names_the_providers(
    lacking: None, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    factories.make_provider("acme")
    with caplog.at_level(logging.INFO, logger="causeway.start"):
        log_missing_extras()
    [record] = own_records(caplog)
    assert (record.levelname, record.getMessage()) == (
        "INFO",
        f"cannot call amazon-bedrock: {MISSING}, and start again",
    )


def test_it_is_a_warning_where_a_credential_waits(
    provider: Provider, tenant: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    log_missing_extras()
    assert own_records(caplog) == []
    factories.make_credential(tenant, provider, SECRET)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "botocore", None)
        dialects.missing_extra.cache_clear()
        log_missing_extras()
    dialects.missing_extra.cache_clear()
    assert [record.levelname for record in own_records(caplog)] == ["WARNING"]
