"""Changes that meet at the rows of one organization: whichever comes first, both end well."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from accounts.models import ByokCredential
from config.bulk.problems import ImportRefused
from endpoints.models import (
    OwnModel,
    PrivateEndpoint,
    PrivateProvider,
    create_own_model,
    edit_own_model,
)
from tests.support import factories
from tests.support.database.locks import at_once
from tests.support.endpoints.importing import load
from tests.support.factories import Tenant

SECRET = "test-credential-0123456789"
DEPLOYMENT = {"model": "openai/falcon-9", "api_key": SECRET}
OWN = {"model_permaslug": "acme/own", "provider_slug": "my-rack", "upstream_model_id": "own"}
DRAFT = {**OWN, "upstream_model_id": "draft"}


@pytest.fixture
def tenant(transactional_db: None) -> Tenant:
    """Returns an organization with a disabled endpoint, a draft and credentials."""
    tenant = factories.make_tenant()
    owner = tenant.organization.pk
    openai = factories.make_provider("openai", base_url="https://api.openai.com/v1")
    factories.make_endpoint(factories.make_model("birds/falcon-9"), openai)
    factories.make_credential(tenant, openai, SECRET, allowed_models=["birds/other"])
    rack: Any = PrivateProvider.objects.create_provider(
        organization_id=owner, name="My Rack", base_url="https://old.example.com/v1"
    )
    create_own_model(owner, "acme/own", "Own")
    credential = factories.make_credential(tenant, rack)
    for row in (OWN, DRAFT):
        endpoint, _ = PrivateEndpoint.objects.create_draft(
            organization_id=owner, base_url=None, price=factories.make_price(), **row
        )
        factories.make_validation(endpoint, credential)
        if row is OWN:
            endpoint.activate()
            endpoint.disable()
    return tenant


def endpoint(row: dict[str, str] = OWN) -> PrivateEndpoint:
    return PrivateEndpoint.objects.get(upstream_model_id=row["upstream_model_id"])


def credential() -> ByokCredential:
    return ByokCredential.objects.get(provider_slug="openai")


def own_model() -> OwnModel:
    return OwnModel.objects.get()


def import_file(tenant: Tenant) -> None:
    # An endpoint that is active by then is left alone.
    with suppress(ImportRefused):
        load(tenant, {**DRAFT, "timeouts": {"total": 60}})


def import_gateway(tenant: Tenant, folder: Path) -> None:
    file = folder / "config.json"
    models = [{"model_name": "ours", "litellm_params": DEPLOYMENT}]
    file.write_text(json.dumps({"model_list": models}))
    owner = str(tenant.organization.pk)
    call_command(
        "import_gateway", "--from", "litellm", str(file), "--organization", owner,
        stdout=io.StringIO(),
    )  # fmt: skip


@pytest.mark.parametrize("turn", [1, -1])
@pytest.mark.parametrize(
    "names",
    [
        ("edit", "move"),
        ("edit", "open"),
        ("edit", "rebase"),
        ("activate", "import"),
        ("edit a credential", "import a gateway"),
    ],
)
def test_two_changes_at_once_both_end(
    tenant: Tenant, tmp_path: Path, names: tuple[str, str], turn: int
) -> None:
    changes: dict[str, tuple[Callable[[], Any], Callable[[], bool]]] = {
        "edit": (
            lambda: endpoint().edit(fallback="none"), lambda: endpoint().fallback == "none"
        ),
        "move": (
            lambda: PrivateProvider.objects.get().edit(base_url="https://new.example.com/v1"),
            lambda: PrivateProvider.objects.get().base_url == "https://new.example.com/v1",
        ),
        "open": (
            lambda: PrivateProvider.objects.get().edit(is_keyless=True),
            lambda: PrivateProvider.objects.get().is_keyless,
        ),
        "rebase": (
            lambda: edit_own_model(own_model(), base_model="birds/falcon-9"),
            lambda: own_model().base_model == "birds/falcon-9-2026-01-01",
        ),
        "activate": (
            lambda: endpoint(DRAFT).activate(), lambda: endpoint(DRAFT).status == "active"
        ),
        "import": (
            lambda: import_file(tenant),
            lambda: endpoint(DRAFT).total_timeout == (None if turn == 1 else 60),
        ),
        "edit a credential": (
            lambda: credential().edit(name="Other"), lambda: credential().name == "Other"
        ),
        "import a gateway": (
            lambda: import_gateway(tenant, tmp_path),
            lambda: credential().allowed_models == ["birds/falcon-9", "birds/other"],
        ),
    }  # fmt: skip
    works, ended = zip(*(changes[name] for name in names[::turn]), strict=True)
    at_once(*works, held="SELECT 1 FROM accounts_organization FOR UPDATE")
    assert all(has_ended() for has_ended in ended)
