"""Changes of authority take effect on the next request, in every worker."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from accounts.models import ApiKey, BudgetInterval, ByokCredential, Guardrail
from catalog.models import ModelEndpoint
from config.credentials import Secret
from endpoints.models import PrivateEndpoint
from inference.models import Generation
from tests.support import factories
from tests.support.governance import make_guardrail
from tests.support.inference.site import TENANT_SECRET, Site
from tests.support.processes import Served


@pytest.fixture(params=[1, 2], ids=["one worker", "two workers"])
def everywhere(
    request: pytest.FixtureRequest, site: Site, running_service: Served
) -> Callable[..., list[Any]]:
    """Returns a function that sends 16 requests in parallel; every worker receives some of them."""

    def ask(address: str) -> Callable[..., list[requests.Response]]:
        def chat(**fields: Any) -> list[requests.Response]:
            site.server = address
            with ThreadPoolExecutor(8) as pool:
                return list(pool.map(lambda _: site.chat(**fields), range(16)))

        return chat

    return ask(site.server if request.param == 1 else running_service.address)


def statuses(answers: list[requests.Response]) -> set[int]:
    return {answer.status_code for answer in answers}


def errors(answers: list[requests.Response]) -> set[str]:
    return {answer.json()["error"]["metadata"]["error_type"] for answer in answers}


def usages(answers: list[requests.Response], name: str) -> set[Any]:
    return {answer.json()["usage"][name] for answer in answers}


def credentials_used(site: Site) -> set[str]:
    return {request.headers["authorization"].removeprefix("Bearer ") for request in site.dialled()}


def test_every_change_takes_effect_on_the_next_request(
    site: Site, everywhere: Callable[..., list[requests.Response]]
) -> None:
    site.allow_fallback()
    public = site.publish(price=factories.make_price("0.000001", "0.000001"))
    assert statuses(everywhere()) == {200}

    factories.set_price(public, factories.make_price("0.000002", "0.000002"))
    assert usages(everywhere(), "cost") == {0.000012}

    private = site.own()
    assert usages(everywhere(), "is_byok") == {True}
    assert credentials_used(site) == {TENANT_SECRET}

    site.upstream.clear()
    ByokCredential.objects.get().rotate(Secret("rotated-credential-0123456789"))
    assert statuses(everywhere()) == {200}
    assert credentials_used(site) == {"rotated-credential-0123456789"}

    PrivateEndpoint.objects.get(pk=private.pk).disable()
    assert usages(everywhere(), "is_byok") == {True}
    ByokCredential.objects.update(disabled=True)
    assert usages(everywhere(), "is_byok") == {False}

    ModelEndpoint.objects.update(is_listed=False)
    assert errors(everywhere()) == {"no_endpoint"}
    ModelEndpoint.objects.update(is_listed=True)
    assert statuses(everywhere()) == {200}

    site.model.is_listed = False
    site.model.save_fields("is_listed")
    assert errors(everywhere()) == {"model_not_found"}
    site.model.is_listed = True
    site.model.save_fields("is_listed")
    assert statuses(everywhere()) == {200}

    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    stored = Generation.objects.count()
    site.upstream.clear()
    ApiKey.objects.get(name="inference").revoke()
    assert statuses(everywhere()) == {401}
    assert Generation.objects.count() == stored
    assert site.dialled() == []


def test_a_disabled_private_endpoint_receives_no_requests(site: Site) -> None:
    endpoint = site.own()
    assert site.chat().status_code == 200
    endpoint.disable()
    assert site.chat().status_code == 404
    endpoint.enable()
    assert site.chat().status_code == 200


@pytest.mark.parametrize(("change", "status"), [("disable", 503), ("remove", 503), ("revoke", 401)])
def test_a_fallback_respects_changes_since_admission(site: Site, change: str, status: int) -> None:
    site.own("sim-held-status:503", price=factories.make_price("0", "0"))
    second = site.own("sim-echo", price=factories.make_price())
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(site.chat, stream=True)
        assert site.upstream.wait_until(lambda: len(site.dialled()) == 1)
        if change == "disable":
            second.disable()
        elif change == "remove":
            second.remove()
        else:
            ApiKey.objects.get(is_management=False).revoke()
        site.upstream.release()
        assert answer.result().status_code == status
    assert len(site.dialled()) == 1
    assert len(site.settled().attempts) == 1


def test_a_fallback_is_tried_if_nothing_changed_since_admission(site: Site) -> None:
    site.own("sim-status:503", price=factories.make_price("0", "0"))
    second = site.own("sim-echo", price=factories.make_price())
    assert site.chat(stream=True).status_code == 200
    assert site.settled().private_endpoint == second


def test_changed_rules_of_a_key_take_effect_on_the_next_request(
    site: Site, everywhere: Callable[..., list[requests.Response]]
) -> None:
    site.publish(price=factories.make_price("0.000001", "0.000001"))
    workspace = site.tenant.workspace
    key = ApiKey.objects.get(name="inference")
    assert statuses(everywhere()) == {200}

    closed = make_guardrail(workspace, allowed_providers=["other"])
    assert statuses(everywhere()) == {200}
    closed.assign_keys([key], by="test")
    assert statuses(everywhere()) == {404}
    closed.edit(allowed_providers=["acme"])
    assert statuses(everywhere()) == {200}
    closed.edit(limit_nano=1, reset_interval="daily")
    assert statuses(everywhere()) <= {402, 403}
    closed.unassign_keys([key])
    assert statuses(everywhere()) == {200}

    Guardrail.objects.edit_workspace_default(workspace, ignored_models=[site.model.slug])
    assert statuses(everywhere()) == {404}
    Guardrail.objects.edit_workspace_default(workspace, ignored_models=None)
    assert statuses(everywhere()) == {200}

    workspace.set_budget(BudgetInterval.DAILY, limit_nano=1)
    answers = everywhere()
    assert {answer.json()["error"]["metadata"]["budget"]["scope"] for answer in answers} == {
        "workspace"
    }
    assert workspace.lift_budget(BudgetInterval.DAILY)
    assert statuses(everywhere()) == {200}

    site.tenant.organization.edit(ignored_providers=["acme"])
    assert statuses(everywhere()) == {404}
    site.tenant.organization.edit(ignored_providers=None)
    assert statuses(everywhere()) == {200}

    closed.edit(allowed_providers=["other"], limit_nano=None, reset_interval=None)
    closed.assign_keys([key], by="test")
    assert statuses(everywhere()) == {404}
    closed.remove()
    assert statuses(everywhere()) == {200}
