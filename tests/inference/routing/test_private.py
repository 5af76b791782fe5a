"""Private means private: what is meant for an organization's own deployment stays there."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Final

import pytest
import requests

from accounts.models import ApiKey, ByokCredential
from accounts.policy import Fallback, Policy
from billing.models import Meter
from catalog.models import ModelAlias
from catalog.visibility import EndpointFacts
from endpoints.models import PrivateEndpoint
from inference.models import Generation
from inference.requests.schemas import Sorting
from inference.routing.routes import PrivateModel
from tests.support import factories
from tests.support.governance import make_preset, make_workspace
from tests.support.inference.repeats import cache_status, keep_answers
from tests.support.inference.routes import (
    credential,
    excluded,
    planned,
    reasons,
    refused,
    route,
    used,
)
from tests.support.inference.site import ASKED, MESSAGES, Site

REQUESTS: Final = [
    *(
        (path, {**body, "stream": stream})
        for path, body in ASKED.items()
        for stream in (False, True)
    ),
    ("/api/v1/embeddings", {"input": "one two"}),
]


class Leak:
    """A site whose model has a private endpoint, and public ones that any leak would reach.

    The operator's credential serves two providers, one of them that of the private endpoint, and
    the organization has a credential of its own at a third.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.private = site.own()
        self.private_id = str(self.private.pk)
        beta, gamma = (site.another_provider(slug) for slug in ("beta", "gamma"))
        for provider in (site.provider, beta, gamma):
            site.publish(provider=provider, price=factories.make_price("0", "0"))
        factories.make_credential(site.tenant, gamma, "own-at-gamma-0123456789")
        self.manager = factories.client(site.tenant.management_key)

    def delete(self, query: str = "") -> Any:
        return self.manager.delete(f"/api/v1/private-endpoints/{self.private_id}{query}")

    def metadata(self) -> Any:
        """Returns what an answer says about its routing."""
        headers = {"X-OpenRouter-Experimental-Metadata": "enabled"}
        answer = self.site.post(self.site.chat_body(), headers=headers)
        return answer.json()["openrouter_metadata"]

    def behave(self, behaviour: str, **fields: Any) -> None:
        PrivateEndpoint.objects.filter(pk=self.private.pk).update(
            upstream_model_id=behaviour, **fields
        )

    def ask_all(self, **fields: Any) -> list[requests.Response]:
        """Sends a request of every face, plain and streamed, all at the same time."""

        def ask(asked: tuple[str, dict[str, Any]]) -> requests.Response:
            path, body = asked
            return self.site.post({"model": self.site.model.slug, **body, **fields}, path=path)

        self.site.upstream.clear()
        with ThreadPoolExecutor(len(REQUESTS)) as pool:
            return list(pool.map(ask, REQUESTS))

    def prompts_elsewhere(self) -> int:
        """Counts the prompts that reached a public endpoint: those have no other behaviour."""
        return sum(1 for each in self.site.dialled() if each.body["model"] == "sim-echo")


@pytest.fixture
def leak(site: Site) -> Leak:
    return Leak(site)


def status_of(status: str) -> Callable[[Leak], None]:
    return lambda leak: leak.behave(f"sim-status:{status}")


def open_circuit(leak: Leak) -> None:
    leak.behave("sim-status:500")
    for _ in range(6):
        assert leak.site.chat().status_code == 502
    # The workers exchange their health once a second.
    leak.site.eventually(lambda: leak.site.explain()["candidates"][0]["health"]["state"] == "open")


def lose_key(leak: Leak) -> None:
    leak.behave("sim-private")
    ByokCredential.objects.filter(provider_slug="acme").update(sealed=b"lost")


def fill(leak: Leak) -> None:
    leak.private.edit(settings={"routing": {"max_in_flight": 1}})
    Meter.objects.filter(subject_id=leak.private.pk).update(running=1)


def drift(leak: Leak) -> None:
    leak.behave("sim-private", drifted_at=leak.private.created_at)
    leak.private.disable(by="drift watch", reason="model: model_mismatch")


# What happens to the private endpoint, and the status that its callers get.
STATES: Final[dict[str, tuple[Callable[[Leak], None], int]]] = {
    "500": (status_of("500"), 502),
    "reset": (lambda leak: leak.behave("sim-connect-reset"), 502),
    "timeout": (lambda leak: leak.behave("sim-stall", total_timeout=1), 504),
    "429": (status_of("429"), 429),
    "undecryptable": (lose_key, 503),
    "disabled": (lambda leak: leak.private.disable(), 404),
    "deleted": (lambda leak: leak.private.remove(), 404),
    "circuit open": (open_circuit, 502),
    "drifted": (drift, 404),
    "over its in-flight limit": (fill, 503),
}


@pytest.mark.parametrize("state", list(STATES))
def test_no_prompt_reaches_a_public_endpoint_unless_listed(leak: Leak, state: str) -> None:
    happen, status = STATES[state]
    happen(leak)
    answers = leak.ask_all()
    assert [answer.status_code for answer in answers] == [status] * len(REQUESTS)
    assert leak.prompts_elsewhere() == 0
    assert not Generation.objects.exclude(private_endpoint=leak.private).exists()
    for answer in answers:
        if MESSAGES not in answer.url:
            left_out = answer.json()["error"]["metadata"]["excluded"]
            public = [each["excluded_by"] for each in left_out if not each["private"]]
            assert public == [["private_only"]] * 3


@pytest.mark.parametrize("fields", [{"order": ["beta"]}, {"only": ["Beta"]}])
@pytest.mark.parametrize("state", ["500", "disabled", "deleted", "undecryptable"])
def test_a_public_provider_serves_what_lists_it(
    leak: Leak, state: str, fields: dict[str, Any]
) -> None:
    STATES[state][0](leak)
    answer = leak.site.chat(provider=fields)
    assert (answer.status_code, answer.json()["provider"]) == (200, "Beta")
    assert leak.prompts_elsewhere() == 1


@pytest.mark.parametrize(
    "fields", [{"order": ["acme"]}, {"only": ["acme"]}, {"order": ["ACME AI"]}]
)
@pytest.mark.parametrize(("state", "status"), [("500", 502), ("disabled", 404), ("deleted", 404)])
def test_a_shared_slug_lists_the_private_endpoint_alone(
    leak: Leak, state: str, status: int, fields: dict[str, Any]
) -> None:
    STATES[state][0](leak)
    assert leak.site.chat(provider=fields).status_code == status
    assert leak.prompts_elsewhere() == 0


def test_the_metadata_of_an_answer_says_what_is_not_used(leak: Leak) -> None:
    [step] = leak.metadata()["pipeline"]
    assert [each["excluded_by"] for each in step["data"]["excluded"]] == [["private_only"]] * 3
    assert [each["excluded_by"] for each in leak.site.explain()["excluded"]] == [
        ["private_only"]
    ] * 3
    assert leak.site.explain()["policy"]["fallback"] == "listed"


def test_explain_and_metadata_say_since_when_an_endpoint_has_drifted(leak: Leak) -> None:
    def told() -> tuple[list[Any], list[Any]]:
        places = leak.metadata()["endpoints"]["available"], leak.site.explain()["candidates"]
        available, candidates = ([each.get("drifted_at") for each in place] for place in places)
        return available, candidates

    assert told() == ([None], [None])
    noon = datetime(2026, 5, 4, 12, 0, 1, 500_000, tzinfo=UTC)
    PrivateEndpoint.objects.filter(pk=leak.private.pk).update(drifted_at=noon)
    assert told() == (["2026-05-04T12:00:01Z"], ["2026-05-04T12:00:01Z"])


LEVELS: Final = [None, "none", "listed", "any"]
STRICTEST: Final = {"none": 0, "listed": 1, "any": 2}


@pytest.mark.parametrize("endpoint", LEVELS)
@pytest.mark.parametrize("workspace", LEVELS)
@pytest.mark.parametrize("listing", [True, False])
def test_the_strictest_level_that_is_set_decides(
    endpoint: str | None, workspace: str | None, listing: bool
) -> None:
    stated = [level for level in (endpoint, workspace) if level is not None]
    level = min(stated, key=STRICTEST.__getitem__, default="listed")
    fallback = None if endpoint is None else Fallback(endpoint)
    found = planned(
        [route("pub"), route("own")],
        [route("own", private=True)],
        [credential("own")],
        Policy.of(fallback=workspace),
        private_models={"a/b": PrivateModel(frozenset(("own",)), fallback)},
        order=["own", "pub"] if listing else None,
    )
    own, shared, pub = "own-own", ["own-own", "operator-own"], "operator-pub"
    expected = {
        "none": [own],
        "listed": [own, pub] if listing else [own],
        "any": [own, *shared, pub],
    }
    # Without an order, a draw decides between the public ones.
    assert sorted(used(found)) == sorted(expected[level])


def test_what_follows_a_private_model_is_closed_too() -> None:
    case: dict[str, Any] = {
        "public": [route("x"), route("y", model_slug="c/d", model_permaslug="c/d-1")],
        "private": [route("own", private=True)],
        "credentials": [credential("own")],
        "policy": Policy(),
    }
    found = planned(**case, models=["a/b", "c/d"])
    assert used(found) == ["own-own"]
    assert reasons(found) == {"x": ["private_only"], "y": ["private_only"]}
    assert used(planned(**case, models=["c/d", "a/b"])) == ["operator-y", "own-own"]
    assert used(planned(**case, models=["a/b", "c/d"], order=["own", "y"])) == [
        "own-own", "operator-y",
    ]  # fmt: skip
    pool = Sorting(by="price", partition="none")
    swift: dict[str, Any] = {"preferred_max_latency": 1.0}
    for mixing in ({"sort": pool}, swift, {"preferred_min_throughput": 50.0}):
        assert used(planned(**case, models=["c/d", "a/b"], **mixing)) == ["own-own"]
    # With an order, the models keep their places.
    ordered = planned(**case, models=["c/d", "a/b"], sort=pool, order=["own"])
    assert used(ordered) == ["operator-y", "own-own"]


@pytest.mark.parametrize("name", ["own", "OWN Inc"])
def test_a_name_of_the_private_provider_lists_no_other_one(name: str) -> None:
    public = [
        route("own"),
        route("twin", facts=EndpointFacts("twin", "Own", False, False)),
        route("heir", facts=EndpointFacts("heir", "Own Inc", False, False)),
    ]
    private = [route("own", private=True)]
    own = {"a/b": PrivateModel(frozenset(("own", "own inc")))}
    for model in ({"private": private}, {"private_models": own}):
        case: dict[str, Any] = {
            "public": public, "credentials": [credential("own")], "policy": Policy(), **model,
        }  # fmt: skip
        found = planned(**case, order=[name, "twin"])
        kept = ["own-own"] if "private" in model else []
        assert used(found) == [*kept, "operator-twin"]
        assert reasons(found) == {"own": ["private_only"], "heir": ["private_only"]}


def test_a_withdrawn_model_is_closed_without_any_endpoint() -> None:
    own = {"a/b": PrivateModel(frozenset(("own",)))}
    expected = [excluded("X", "private_only")]
    assert refused(public=[route("x")], policy=Policy(), private_models=own) == expected
    listed = planned([route("x")], policy=Policy(), private_models=own, only=["x"])
    assert used(listed) == ["operator-x"]


def test_an_alias_and_the_models_of_a_preset_do_not_list(leak: Leak) -> None:
    other = factories.make_model("acme/eagle")
    leak.site.publish(model=other)
    ModelAlias.objects.create(
        organization=leak.site.tenant.organization,
        name="ours",
        targets=[leak.site.model.slug, other.slug],
    )
    make_preset(leak.site.tenant.workspace, "backup", models=[leak.site.model.slug, other.slug])
    leak.behave("sim-status:500")
    for body in (
        leak.site.chat_body(model="@preset/backup"),
        leak.site.chat_body(model="ours"),
        leak.site.chat_body(models=[leak.site.model.slug, other.slug]),
        leak.site.chat_body(model=f"{leak.site.model.slug}:floor"),
        leak.site.chat_body(model=leak.site.model.canonical_slug),
        leak.site.chat_body(plugins=[{"id": "web"}]),
    ):
        assert leak.site.post(body).status_code == 502
    assert leak.prompts_elsewhere() == 0


@pytest.mark.parametrize("state", ["active", "deleted"])
def test_a_private_model_that_left_the_catalogue_means_no_other_one(leak: Leak, state: str) -> None:
    falcon = leak.site.model
    heir, twin = factories.make_model("acme/falcon-2026"), factories.make_model("meta/falcon")
    for model in (heir, twin):
        leak.site.publish(model=model)
    for owner, name in ((leak.site.tenant.organization, "ours"), (None, falcon.slug)):
        targets = [falcon.slug, heir.slug]
        ModelAlias.objects.create(organization=owner, name=name, targets=targets)
    if state == "deleted":
        leak.private.remove()
    falcon.is_listed = False
    falcon.save_fields("is_listed")
    others = ("falcon", "Acme/Falcon:floor", "falcon-2026-01-01", "falcon-20250101")
    for name in (falcon.slug, f"{falcon.slug}:nitro", falcon.canonical_slug, *others):
        answer = leak.site.chat(model=name)
        error = answer.json()["error"]["metadata"]["error_type"]
        assert (answer.status_code, error) == (404, "model_not_found")
    for fields in (
        {"model": "ours"},
        {"models": [falcon.slug, heir.slug]},
        {"models": [f"{falcon.slug}:floor", "ours"]},
        {"model": "Acme/Falcon", "models": ["Acme/Falcon", heir.slug]},
    ):
        answer = leak.site.chat(**fields)
        [left_out] = answer.json()["error"]["metadata"]["excluded"]
        assert (answer.status_code, left_out["model"]) == (404, heir.slug)
        assert left_out["excluded_by"] == ["private_only"]
    assert leak.site.dialled() == []
    assert leak.site.chat(model=heir.slug).status_code == 200
    assert leak.site.chat(model="ours", provider={"only": ["acme"]}).status_code == 404
    assert leak.delete("?release=true").status_code == 200
    assert leak.site.chat(model="ours").json()["model"] == heir.slug
    assert leak.site.chat(model="falcon").json()["model"] == twin.slug


def test_a_dated_model_that_left_the_catalogue_hides_no_plain_name(site: Site) -> None:
    site.publish()
    dated = factories.make_model("acme/falcon-20250101")
    site.own(model=dated)
    factories.change(dated, is_listed=False)
    assert site.chat(model="Falcon").json()["model"] == site.model.slug
    assert site.chat(model="Falcon-20250101").status_code == 404


def test_the_newest_model_stays_the_private_one_without_endpoints(site: Site) -> None:
    site.publish()
    newest = factories.make_model("acme/falcon-2", created=2_000_000_000)
    private = site.own(model=newest)
    latest = site.chat_body(model="~acme/falcon-latest")
    assert site.post(latest).json()["model"] == newest.slug
    private.disable()
    assert site.post(latest).status_code == 404
    private.remove(release=True)
    assert site.post(latest).json()["model"] == site.model.slug


def test_a_workspace_without_the_credential_goes_nowhere_else(leak: Leak) -> None:
    other = make_workspace(leak.site.tenant.organization)
    _, secret = ApiKey.objects.create_key(workspace=other, name="elsewhere")
    answer = leak.site.post(leak.site.chat_body(), key=secret.reveal())
    error = answer.json()["error"]["metadata"]["error_type"]
    assert (answer.status_code, error) == (503, "provider_unavailable")
    other.edit(fallback="any")
    answer = leak.site.post(leak.site.chat_body(), key=secret.reveal())
    assert (answer.status_code, leak.prompts_elsewhere()) == (200, 1)
    assert leak.site.chat().json()["usage"]["is_byok"] is True


def test_an_answer_that_was_kept_from_a_public_endpoint_is_not_given(site: Site) -> None:
    keep_answers(site.tenant)
    site.publish()
    body, headers = site.chat_body(), {"X-OpenRouter-Cache": "true"}
    assert cache_status(site.post(body, headers=headers)) == "MISS"
    site.eventually(lambda: cache_status(site.post(body, headers=headers)) == "HIT")
    private = site.own("sim-status:500")
    assert site.post(body, headers=headers).status_code == 502
    private.disable()
    assert site.post(body, headers=headers).status_code == 404


def test_levels_are_set_by_the_api_and_apply_at_once(leak: Leak) -> None:
    leak.private.remove()
    workspace = f"/api/v1/workspaces/{leak.site.tenant.workspace.pk}"
    settings = "/api/v1/organization/settings"
    guardrail = leak.site.tenant.workspace.default_guardrail_id
    for path, body, status in (
        (workspace, {"fallback": "any"}, 200),
        (settings, {"fallback": "none"}, 404),
        (settings, {"fallback": "any"}, 200),
        (workspace, {"fallback": None}, 200),
        (f"/api/v1/guardrails/{guardrail}", {"require_private": True}, 404),
        (f"/api/v1/guardrails/{guardrail}", {"require_private": None}, 200),
        (settings, {"fallback": None}, 404),
    ):
        [(name, value)] = body.items()
        answer = leak.manager.patch(path, body, format="json")
        assert (answer.status_code, answer.json()["data"][name]) == (200, value)
        assert leak.site.chat().status_code == status
    for path in (workspace, settings):
        answer = leak.manager.patch(path, {"fallback": "some"}, format="json")
        assert answer.status_code == 400
        assert "Must be one of: none, listed, any." in answer.json()["error"]["message"]


def test_the_level_of_an_endpoint_ends_with_it(leak: Leak) -> None:
    path = f"/api/v1/private-endpoints/{leak.private_id}"
    leak.behave("sim-status:500")
    answer = leak.manager.patch(path, {"settings": {"fallback": "any"}}, format="json")
    assert answer.json()["data"]["settings"]["fallback"] == "any"
    assert leak.site.chat().status_code == 200
    assert leak.manager.post(f"{path}/disable", {}, format="json").status_code == 200
    assert leak.site.chat().status_code == 404
    leak.manager.patch(path, {"settings": {"fallback": "none"}}, format="json")
    assert leak.site.chat(provider={"only": ["beta"]}).status_code == 404
    assert leak.delete().status_code == 200
    assert leak.site.chat(provider={"only": ["beta"]}).status_code == 200
    assert leak.site.chat().status_code == 404


def test_its_owner_releases_a_model(leak: Leak) -> None:
    assert leak.site.chat().status_code == 200
    deleted = leak.delete().json()
    assert deleted["data"] == {"id": leak.private_id}
    assert deleted["traffic"]["requests_last_hour"] == 1
    assert "they will get 404." in deleted["traffic"]["then"]
    assert "acme/falcon stays private until its owner releases it" in deleted["traffic"]["then"]
    assert leak.delete().status_code == 404
    assert leak.delete("?draft_only=true&release=true").status_code == 404
    assert leak.site.chat().status_code == 404
    for _ in range(2):
        released = leak.delete("?release=true")
        assert (released.status_code, released.json()["data"]) == (200, {"id": leak.private_id})
        assert "acme/falcon is not private." in released.json()["traffic"]["then"]
    assert leak.site.chat().status_code == 200
    again = leak.site.own("sim-status:500")
    assert leak.site.chat().status_code == 502
    refusal = leak.delete("?release=true")
    assert (refusal.status_code, refusal.json()["error"]["metadata"]["endpoint_id"]) == (
        409, str(again.pk),
    )  # fmt: skip
    assert leak.site.chat().status_code == 502
    answer = leak.manager.delete(f"/api/v1/private-endpoints/{again.pk}?release=true")
    assert answer.status_code == 200
    assert leak.site.chat().status_code == 200


def test_a_deletion_with_release_is_refused_while_another_endpoint_is_there(leak: Leak) -> None:
    leak.site.own("sim-status:500")
    answer = leak.delete("?release=true")
    assert (answer.status_code, answer.json()["error"]["metadata"]["error_type"]) == (
        409, "invalid_state",
    )  # fmt: skip
    leak.private.refresh_from_db()
    assert leak.private.deleted_at is None


def test_disabling_says_where_the_traffic_goes(leak: Leak) -> None:
    answer = leak.manager.post(
        f"/api/v1/private-endpoints/{leak.private_id}/disable", {}, format="json"
    )
    assert answer.json()["data"]["status"] == "disabled"
    assert answer.json()["traffic"] == {
        "requests_last_hour": 0,
        "then": "acme/falcon stays private until its owner releases it: a public endpoint serves "
        "only requests that name its provider in provider.order or provider.only, or that may fall "
        "back to any.",
    }


def test_another_organization_is_not_concerned(leak: Leak) -> None:
    stranger = factories.make_tenant("Globex")
    answer = leak.site.post(leak.site.chat_body(), key=stranger.api_key)
    assert answer.status_code == 200
    theirs = factories.client(stranger.management_key)
    leak.private.remove()
    found = theirs.delete(f"/api/v1/private-endpoints/{leak.private_id}?release=true")
    assert found.status_code == 404
    assert leak.site.chat().status_code == 404
