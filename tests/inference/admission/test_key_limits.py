"""A key that has spent its limit is refused until the limit is reset or raised.

A spent limit is refused with 403; a remainder that does not cover the request with 402.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import requests
from django.utils import timezone

from accounts.models import ApiKey, LimitReset
from billing import ledger
from billing.models import Account, Meter, Transfer
from catalog.models import ModelEndpoint
from catalog.pricing import usd
from inference.models import Generation
from tests.support import factories
from tests.support.admission.entries import bound_of
from tests.support.governance import stamp
from tests.support.inference.site import Site, error_of
from tests.support.ledger import assert_in_order


@pytest.fixture
def key(site: Site) -> ApiKey:
    """Publishes a model and returns the tenant's inference key."""
    site.publish(price=factories.make_price("0.000001", "0.000001"))
    found: ApiKey = ApiKey.objects.get(name="inference")
    return found


def spend(site: Site, key: ApiKey, **fields: Any) -> Generation:
    endpoint = ModelEndpoint.objects.get()
    return factories.make_generation(site.tenant, api_key=key, model_endpoint=endpoint, **fields)


@pytest.mark.parametrize(
    ("left", "status"), [(5_000, 200), (4_999, 402), (1, 402), (0, 403), (-1, 403)]
)
def test_a_limit_is_exact_to_one_nano_dollar(
    site: Site, key: ApiKey, left: int, status: int
) -> None:
    prompt_nano = 1000 * bound_of(site.chat_body(max_tokens=5))
    limit = 10**9
    key.edit(limit_nano=limit)
    # Above 1, the remainder also covers the prompt.
    spend(site, key, cost_nano=limit - left - (prompt_nano if left > 1 else 0))
    assert site.chat(max_tokens=5).status_code == status
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert len(site.dialled()) == (status == 200)
    assert Generation.objects.count() == 1 + (status == 200)
    assert_in_order()


def test_holds_count_against_a_limit_like_spending(site: Site, key: ApiKey) -> None:
    ModelEndpoint.objects.update(upstream_model_id="sim-held")
    body = site.chat_body(max_tokens=5)
    hold = 1000 * (bound_of(body) + 5)
    key.edit(limit_nano=2 * hold - 1)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(site.post, body)
        site.eventually(lambda: Generation.objects.count() == 1)
        assert Meter.objects.get(subject_id=key.pk).held_cost == hold
        refused = site.post(body)
        assert refused.status_code == 402
        assert refused.json()["error"]["metadata"]["budget"]["held_usd"] == usd(hold)
        site.upstream.release()
        assert first.result().status_code == 200
    site.settled()
    site.upstream.release()
    assert site.post(body).status_code == 200
    site.eventually(lambda: Generation.objects.filter(status="completed").count() == 2)
    assert_in_order()


def test_a_budget_refusal_names_the_affordable_tokens(site: Site, key: ApiKey) -> None:
    body = site.chat_body(max_tokens=99)
    prompt = bound_of(body)
    key.edit(limit_nano=1000 * (prompt + 20))
    answer = site.post(body)
    assert answer.status_code == 402
    assert answer.json() == {
        "error": {
            "code": 402,
            "message": f"The key has ${(prompt + 20) / 10**6:f} left, and this request may cost "
            f"${(prompt + 99) / 10**6:f}. It can be paid with max_tokens of at most 20.",
            "metadata": {
                "error_type": "payment_required",
                "balance_usd": 1000,
                "estimate_usd": usd(1000 * (prompt + 99)),
                "affordable_max_tokens": 20,
                "limit": "key_limit",
                "budget": {
                    "scope": "key_limit",
                    "limit_usd": usd(1000 * (prompt + 20)),
                    "spend_usd": 0,
                    "held_usd": 0,
                    "resets_at": None,
                },
            },
        }
    }
    site.assert_nothing_happened()
    assert site.post({**body, "max_tokens": 21}).status_code == 402
    assert site.post({**body, "max_tokens": 20}).status_code == 200
    assert site.settled().hold_nano <= 1000 * (prompt + 20)


def test_a_balance_refusal_names_the_affordable_tokens(site: Site, key: ApiKey) -> None:
    poor = factories.make_tenant("Poor", credits_usd=0)
    body = site.chat_body(max_tokens=99)
    prompt = bound_of(body)
    ledger.grant(poor.organization.pk, 1000 * (prompt + 20), actor="test")
    error = error_of(site.post(body, key=poor.api_key), 402)
    assert error["metadata"] == {
        "error_type": "payment_required",
        "balance_usd": usd(1000 * (prompt + 20)),
        "estimate_usd": usd(1000 * (prompt + 99)),
        "affordable_max_tokens": 20,
        "limit": "balance",
    }
    site.assert_nothing_happened()
    assert not Transfer.objects.filter(kind="usage").exists()


@pytest.mark.parametrize(("tokens", "status"), [(16, 200), (40, 200), (15, 402), (0, 402)])
@pytest.mark.parametrize("limited_by", ["balance", "key_limit"])
def test_a_request_without_max_tokens_gets_an_affordable_bound(
    site: Site, key: ApiKey, limited_by: str, tokens: int, status: int
) -> None:
    poor = factories.make_tenant("Poor", credits_usd=0)
    body = site.chat_body()
    amount = 1000 * (bound_of(body) + tokens) + 999
    if limited_by == "balance":
        ledger.grant(poor.organization.pk, amount, actor="test")
    else:
        ledger.grant(poor.organization.pk, 10**12, actor="test")
        poor.organization.api_keys.get(is_management=False).edit(limit_nano=amount)
    answer = site.post(body, key=poor.api_key)
    assert answer.status_code == status
    if status == 402:
        metadata = answer.json()["error"]["metadata"]
        assert (metadata["affordable_max_tokens"], metadata["limit"]) == (0, limited_by)
        site.assert_nothing_happened()
        return
    row = site.settled()
    assert (row.hold_nano, row.cost_nano) == (amount - 999, 6000)
    [sent] = site.dialled()
    assert (sent.body["max_tokens"], "max_completion_tokens" in sent.body) == (tokens, False)
    assert_in_order()


def test_an_affordable_default_bound_is_not_lowered(site: Site, key: ApiKey) -> None:
    assert site.chat().status_code == 200
    assert "max_tokens" not in site.dialled()[0].body
    assert site.settled().hold_nano == 1000 * (bound_of(site.chat_body()) + 131_072)
    account = Account.objects.get(organization=site.tenant.organization, kind="credits")
    assert (account.posted_debits, account.pending_debits) == (6000, 0)


def test_a_free_private_endpoint_ignores_other_holds_of_the_key(site: Site, key: ApiKey) -> None:
    site.own(price=factories.make_price("0.000001", "0.000001"))
    key.edit(limit_nano=10**9)
    Meter.objects.filter(subject_id=key.pk).update(held_cost=2 * 10**9)
    assert site.chat().status_code == 200
    assert site.settled().is_byok


def test_a_spent_limit_is_explained_and_sends_nothing(site: Site, key: ApiKey) -> None:
    key.edit(limit_nano=1_500_000_000, limit_reset="daily")
    now = timezone.now()
    spend(site, key, cost_nano=2_000_000_000, created_at=now)
    resets_at = stamp(LimitReset.DAILY.ends_at(now))
    for stream in (False, True):
        answer = site.chat(stream=stream)
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
                        "held_usd": 0,
                        "resets_at": resets_at,
                    },
                },
            }
        }
    assert Generation.objects.count() == 1
    assert site.dialled() == []


def test_a_limit_without_reset_counts_all_spending(site: Site, key: ApiKey) -> None:
    key.edit(limit_nano=10)
    spend(site, key, cost_nano=10, created_at=datetime(2020, 1, 1, tzinfo=UTC))
    error = error_of(site.chat(), 403)
    assert error["message"] == "The key has spent its limit of $0.00000001."
    assert error["metadata"]["budget"]["resets_at"] is None


def test_a_limit_of_zero_refuses_every_request(site: Site, key: ApiKey) -> None:
    key.edit(limit_nano=0)
    assert site.chat().status_code == 403
    site.assert_nothing_happened()


@pytest.mark.parametrize("reset", LimitReset)
def test_only_spending_of_the_current_period_counts(
    site: Site, key: ApiKey, reset: LimitReset
) -> None:
    key.edit(limit_nano=10**9, limit_reset=reset)
    began = reset.began_at(timezone.now()).date()
    spend(site, key, cost_nano=10**9)
    factories.turn_back(key, began)
    assert site.chat().status_code == 403
    factories.turn_back(key, began - timedelta(days=1))
    assert site.chat().status_code == 200
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    meter = Meter.objects.get(subject_id=key.pk)
    assert (meter.day, meter.cost) == (timezone.now().date(), 10**9 + 6000)
    assert getattr(meter, f"cost_{reset}") == 6000


@pytest.mark.parametrize(
    ("include_byok", "is_byok", "status"),
    [(False, True, 200), (True, True, 403), (True, False, 200)],
)
def test_own_credentials_count_if_the_key_includes_them(
    site: Site, key: ApiKey, include_byok: bool, is_byok: bool, status: int
) -> None:
    key.edit(limit_nano=10**9, include_byok_in_limit=include_byok)
    spend(site, key, cost_nano=4 * 10**8, upstream_cost_nano=6 * 10**8, is_byok=is_byok)
    assert site.chat().status_code == status


@pytest.mark.parametrize(
    ("reset", "include_byok", "status"),
    [(None, False, 200), (None, True, 403), (LimitReset.DAILY, True, 200)],
)
def test_a_meter_that_own_prices_have_filled_refuses_only_what_counts_them(
    site: Site, key: ApiKey, reset: LimitReset | None, include_byok: bool, status: int
) -> None:
    key.edit(limit_nano=10**9, limit_reset=reset, include_byok_in_limit=include_byok)
    spend(site, key, cost_nano=10**8)
    most = 2**63 - 1
    Meter.objects.filter(subject_id=key.pk).update(byok=most, tokens=most)
    Meter.objects.filter(subject_id=site.tenant.workspace.pk).update(byok=most, held_byok=5)
    assert site.chat().status_code == status
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert Generation.objects.count() == 1 + (status == 200)


def test_spending_of_other_keys_does_not_count(site: Site, key: ApiKey) -> None:
    key.edit(limit_nano=10**9)
    other, _ = ApiKey.objects.create_key(workspace=site.tenant.workspace, name="other")
    spend(site, other, cost_nano=10**9)
    assert site.chat().status_code == 200


def test_a_changed_limit_takes_effect_on_the_next_request(site: Site, key: ApiKey) -> None:
    def change(body: dict[str, Any]) -> None:
        answer = requests.patch(
            f"{site.server}/api/v1/keys/{key.digest}",
            json=body,
            headers={"Authorization": f"Bearer {site.tenant.management_key}"},
            timeout=60,
        )
        assert answer.status_code == 200

    spend(site, key, cost_nano=10**9)
    statuses = [site.chat().status_code]
    for body in ({"limit": 1}, {"limit": 1.1}, {"limit": 0.5}, {"limit": None}):
        change(body)
        statuses.append(site.chat().status_code)
    assert statuses == [200, 403, 200, 403, 200]


def test_the_cost_of_a_request_reduces_the_limit_for_the_next(site: Site, key: ApiKey) -> None:
    body = site.chat_body(max_tokens=5)
    hold = 1000 * (bound_of(body) + 5)
    key.edit(limit_nano=hold)
    assert site.post(body).status_code == 200
    assert site.settled().cost_nano == 6000
    assert site.post(body).status_code == 402
    shown = site.get("/api/v1/key").json()["data"]
    assert shown["effective_budget"]["remaining_usd"] == usd(hold - 6000)


def test_keys_of_one_batch_are_decided_separately(site: Site, key: ApiKey) -> None:
    key.edit(limit_nano=10)
    spend(site, key, cost_nano=10)
    _, free = ApiKey.objects.create_key(workspace=site.tenant.workspace, name="free")
    left, roomy = ApiKey.objects.create_key(
        workspace=site.tenant.workspace, name="left", limit_nano=10**12
    )
    spend(site, left, cost_nano=10)
    wanted = [(site.tenant.api_key, 403), (free.reveal(), 200), (roomy.reveal(), 200)] * 8

    def ask(case: tuple[str, int]) -> tuple[str, int]:
        return case[0], site.post(site.chat_body(), key=case[0]).status_code

    with ThreadPoolExecutor(24) as pool:
        assert list(pool.map(ask, wanted)) == wanted
