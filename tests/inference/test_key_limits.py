"""A key that has spent its limit is refused until the limit is reset, or raised."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import requests
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.models import ApiKey, LimitReset
from catalog.models import ModelEndpoint
from inference import admission
from inference.models import Generation
from tests import factories
from tests.inference.conftest import Site


@pytest.fixture
def key(site: Site) -> ApiKey:
    """The tenant's inference key, with a model to spend at."""
    site.publish(price=factories.make_price("0.000001", "0.000001"))
    found: ApiKey = ApiKey.objects.get(name="inference")
    return found


def spend(site: Site, key: ApiKey, **fields: Any) -> Generation:
    endpoint = ModelEndpoint.objects.get()
    return factories.make_generation(site.tenant, api_key=key, model_endpoint=endpoint, **fields)


def stamp(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize(
    ("spent", "status"), [(0, 200), (10**9 - 1, 200), (10**9, 403), (10**9 + 1, 403)]
)
def test_a_limit_holds_to_the_last_nano_dollar(
    site: Site, key: ApiKey, spent: int, status: int
) -> None:
    key.edit(limit_nano=10**9)
    spend(site, key, cost_nano=spent)
    assert site.chat().status_code == status


def test_the_refusal_says_why_and_sends_nothing(site: Site, key: ApiKey) -> None:
    key.edit(limit_nano=1_500_000_000, limit_reset="daily")
    now = timezone.now()
    spend(site, key, cost_nano=2_000_000_000, created_at=now)
    resets_at = stamp(LimitReset.DAILY.ends_at(now))
    for body in ({"stream": False}, {"stream": True}):
        answer = site.chat(**body)
        assert answer.status_code == 403
        assert answer.json() == {
            "error": {
                "code": 403,
                "message": f"The key has spent its limit of $1.5; it is reset at {resets_at}.",
                "metadata": {
                    "error_type": "permission_denied",
                    "budget": {
                        "scope": "key_limit",
                        "limit_usd": 1.5,
                        "spend_usd": 2.0,
                        "resets_at": resets_at,
                    },
                },
            }
        }
    assert Generation.objects.count() == 1
    assert site.dialled() == []


def test_a_limit_that_is_never_reset_counts_everything(site: Site, key: ApiKey) -> None:
    key.edit(limit_nano=10)
    spend(site, key, cost_nano=10, created_at=datetime(2020, 1, 1, tzinfo=UTC))
    answer = site.chat()
    assert answer.status_code == 403
    assert answer.json()["error"]["message"] == "The key has spent its limit of $0.00000001."
    assert answer.json()["error"]["metadata"]["budget"]["resets_at"] is None


def test_a_limit_of_nothing_refuses_everything(site: Site, key: ApiKey) -> None:
    key.edit(limit_nano=0)
    assert site.chat().status_code == 403
    site.assert_nothing_happened()


@pytest.mark.parametrize("reset", LimitReset)
def test_only_the_present_period_counts(site: Site, key: ApiKey, reset: LimitReset) -> None:
    key.edit(limit_nano=10, limit_reset=reset)
    began = reset.began_at(timezone.now())
    spend(site, key, cost_nano=10, created_at=began - timedelta(microseconds=1))
    assert site.chat().status_code == 200
    Generation.objects.update(cost_nano=0)
    spend(site, key, cost_nano=10, created_at=began)
    assert site.chat().status_code == 403


@pytest.mark.parametrize(
    ("include_byok", "is_byok", "status"),
    [(False, True, 200), (True, True, 403), (True, False, 200)],
)
def test_own_credentials_count_when_the_key_says_so(
    site: Site, key: ApiKey, include_byok: bool, is_byok: bool, status: int
) -> None:
    key.edit(limit_nano=10, include_byok_in_limit=include_byok)
    spend(site, key, cost_nano=4, upstream_cost_nano=6, is_byok=is_byok)
    assert site.chat().status_code == status


def test_spending_of_other_keys_does_not_count(site: Site, key: ApiKey) -> None:
    key.edit(limit_nano=10)
    other, _ = ApiKey.objects.issue(workspace=site.tenant.workspace, name="other")
    spend(site, other, cost_nano=10)
    assert site.chat().status_code == 200


def test_a_limit_counts_from_the_next_request_on(site: Site, key: ApiKey) -> None:
    def change(body: dict[str, Any]) -> None:
        answer = requests.patch(
            f"{site.server}/api/v1/keys/{key.digest}",
            json=body,
            headers={"Authorization": f"Bearer {site.tenant.management_key}"},
            timeout=20,
        )
        assert answer.status_code == 200

    spend(site, key, cost_nano=10**9)
    statuses = [site.chat().status_code]
    for body in ({"limit": 1}, {"limit": 1.1}, {"limit": 0.5}, {"limit": None}):
        change(body)
        statuses.append(site.chat().status_code)
    assert statuses == [200, 403, 200, 403, 200]


def test_what_a_request_cost_counts_against_the_next(site: Site, key: ApiKey) -> None:
    key.edit(limit_nano=1)
    assert site.chat().status_code == 200
    assert site.settled().cost_nano == 6000
    assert site.chat().status_code == 403
    shown = requests.get(
        f"{site.server}/api/v1/key",
        headers={"Authorization": f"Bearer {site.tenant.api_key}"},
        timeout=20,
    ).json()["data"]
    assert shown["effective_budget"]["remaining_usd"] == -0.000005999


def test_keys_of_one_batch_are_judged_each_for_itself(site: Site, key: ApiKey) -> None:
    key.edit(limit_nano=10)
    spend(site, key, cost_nano=10)
    _, free = ApiKey.objects.issue(workspace=site.tenant.workspace, name="free")
    left, roomy = ApiKey.objects.issue(
        workspace=site.tenant.workspace, name="left", limit_nano=10**12
    )
    spend(site, left, cost_nano=10)
    wanted = [(site.tenant.api_key, 403), (free.reveal(), 200), (roomy.reveal(), 200)] * 8

    def ask(secret: str) -> int:
        return site.post(site.chat_body(), key=secret).status_code

    with ThreadPoolExecutor(24) as pool:
        assert list(pool.map(ask, [secret for secret, _ in wanted])) == [
            status for _, status in wanted
        ]


def test_the_spending_is_found_by_the_index(site: Site, key: ApiKey) -> None:
    parameters = [[key.pk], [LimitReset.DAILY.began_at(timezone.now())], [True]]
    with CaptureQueriesContext(connection), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN {admission._SPENT}", parameters)
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "generation_by_key" in plan
    assert "Seq Scan" not in plan
