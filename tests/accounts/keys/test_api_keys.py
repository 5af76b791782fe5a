"""API keys: format, storage, validity, and the answer of ``GET /key``."""

from __future__ import annotations

import re
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from accounts.models import ApiKey, workspace_for
from config import secrets
from config.api.errors import NotFound
from config.clocks.clock import clock
from config.credentials import Secret
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.governance import issue_key, usage_of

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(("is_management", "prefix"), [(True, "mk-cw-"), (False, "sk-cw-")])
def test_a_key_has_a_prefix_and_a_checksum(is_management: bool, prefix: str) -> None:
    key = secrets.generate_api_key(is_management=is_management).reveal()
    assert re.fullmatch(rf"{prefix}[0-9A-Za-z]{{49}}", key)
    number = 0
    for character in key[-6:]:
        number = number * 62 + ALPHABET.index(character)
    assert number == zlib.crc32(key[:-6].encode())
    assert secrets.is_well_formed(key)


def test_keys_differ() -> None:
    keys = {secrets.generate_api_key(is_management=True).reveal() for _ in range(1000)}
    assert len(keys) == 1000


def test_a_typo_in_any_place_fails_the_checksum() -> None:
    key = secrets.generate_api_key(is_management=False).reveal()
    for place in range(len(key)):
        swapped = "A" if key[place] != "A" else "B"
        assert not secrets.is_well_formed(key[:place] + swapped + key[place + 1 :])
    assert not secrets.is_well_formed(key + "0")
    assert not secrets.is_well_formed(key + "\n")


def test_a_key_is_stored_as_a_digest_only(tenant: Tenant) -> None:
    stored = ApiKey.objects.get(is_management=True)
    digest = secrets.digest_api_key(tenant.management_key)
    assert re.fullmatch(r"[0-9a-f]{64}", digest)
    assert stored.digest == digest
    values = [str(value) for value in ApiKey.objects.values_list().get(pk=stored.pk)]
    assert [value for value in values if tenant.management_key[9:-3] in value] == []
    key = tenant.management_key
    assert stored.label == f"{key[:9]}…{key[-3:]}"


def test_a_secret_does_not_print_itself() -> None:
    secret = Secret("sk-very-secret-0123456789")
    assert f"{secret} {secret!r} {[secret]}" == "******** ******** [********]"
    assert secret.label == "…6789"
    assert Secret("short").label == "…"
    assert secret == Secret("sk-very-secret-0123456789")
    assert secret != Secret("other")
    assert secret != "sk-very-secret-0123456789"
    assert len({secret, Secret("sk-very-secret-0123456789")}) == 1


@pytest.mark.parametrize(
    ("disabled", "lifetime", "usable"),
    [
        (False, None, True), (False, 60, True), (False, 0, False), (False, -60, False),
        (True, None, False), (True, 60, False),
    ],
)  # fmt: skip
def test_a_key_is_usable_until_it_is_revoked_or_expires(
    tenant: Tenant, disabled: bool, lifetime: int | None, usable: bool
) -> None:
    expires_at = None if lifetime is None else clock.now() + timedelta(seconds=lifetime)
    key, secret = issue_key(tenant, expires_at=expires_at)
    if disabled:
        key.revoke()
    assert key.is_usable is usable
    response = factories.client(secret).get("/api/v1/key")
    assert response.status_code == (200 if usable else 401)
    if not usable:
        reason = "is disabled" if disabled else "has expired"
        assert response.json()["error"]["message"] == f"The API key {reason}."


FIELDS = {
    "allowed_data_regions": ["global", "europe", "us"],
    "budgets": [],
    **usage_of(0.0),
    "creator_user_id": None,
    "effective_budget": None,
    "free_model_daily_requests": {"limit": 0, "remaining": 0, "used": 0},
    "include_byok_in_limit": False,
    "is_free_tier": False,
    "limit": None,
    "limit_remaining": None,
    "limit_reset": None,
    "rate_limit": {
        "requests": -1,
        "interval": "10s",
        "note": "This field is deprecated and safe to ignore.",
    },
    "expires_at": None,
}


@pytest.mark.parametrize("is_management", [True, False])
def test_the_current_key_shows_itself(tenant: Tenant, is_management: bool) -> None:
    key = tenant.management_key if is_management else tenant.api_key
    response = factories.client(key).get("/api/v1/key")
    assert response.status_code == 200
    assert response.json() == {
        "data": FIELDS
        | {
            "label": f"{key[:9]}…{key[-3:]}",
            "organization_id": str(tenant.organization.pk),
            "workspace_id": str(tenant.workspace.pk),
            "hash": secrets.digest_api_key(key),
            "is_management_key": is_management,
            "is_provisioning_key": is_management,
        }
    }


def test_the_current_key_shows_when_it_expires(tenant: Tenant) -> None:
    expires_at = datetime(2099, 1, 2, 3, 4, 5, tzinfo=UTC)
    _, secret = issue_key(tenant, expires_at=expires_at)
    data = factories.client(secret).get("/api/v1/key").json()["data"]
    assert data["expires_at"] == "2099-01-02T03:04:05Z"


def _usage(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if "usage" in name}


def test_usage_is_the_sum_of_the_generations_of_the_key(
    tenant: Tenant, inference: APIClient, management: APIClient
) -> None:
    factories.make_generation(tenant, cost_nano=1_500_000_000, upstream_cost_nano=9)
    factories.make_generation(tenant, cost_nano=1, upstream_cost_nano=9)
    factories.make_generation(
        tenant, is_byok=True, cost_nano=250_000_000, upstream_cost_nano=2_000_000_000
    )
    factories.make_generation(factories.make_tenant("Other"), cost_nano=7_000_000_000)
    shown = _usage(inference.get("/api/v1/key").json()["data"])
    assert shown == usage_of(1.750000001, byok=2.0)
    assert set(_usage(management.get("/api/v1/key").json()["data"]).values()) == {0.0}


def test_usage_is_summed_by_utc_day_week_and_month(tenant: Tenant, inference: APIClient) -> None:
    now = timezone.now()
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    monday = today - timedelta(days=today.weekday())
    first = today.replace(day=1)
    tick = timedelta(microseconds=1)
    starts = {"daily": today, "weekly": monday, "monthly": first}
    moments = [today, today - tick, monday, monday - tick, first, first - tick]
    for number, moment in enumerate(moments):
        factories.make_generation(tenant, cost_nano=10**9 * 2**number, created_at=moment)
    data = inference.get("/api/v1/key").json()["data"]
    assert data["usage"] == 63.0
    for name, start in starts.items():
        expected = sum(2**number for number, moment in enumerate(moments) if moment >= start)
        assert data[f"usage_{name}"] == float(expected)


def test_workspace_for_returns_the_default_or_the_named_workspace(tenant: Tenant) -> None:
    assert workspace_for(tenant.organization.pk, None) == tenant.workspace
    assert workspace_for(tenant.organization.pk, tenant.workspace.pk) == tenant.workspace
    with pytest.raises(NotFound):
        workspace_for(tenant.organization.pk, factories.make_tenant("Other").workspace.pk)
