"""What providers report is summed beside the estimates, and a large bias is proposed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from typing import Any
from uuid import UUID

import pytest

from billing.models import Excess
from catalog.abilities import read_abilities
from catalog.models import CatalogProposal, ModelEndpoint
from catalog.sync import proposals
from catalog.sync.plans.comparing import read_changes
from catalog.tokens import TextCounts, correct_family, find_family
from config.credentials import Secret
from inference.models import Generation, TokenSum
from inference.reports.estimates import propose_estimates
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.inference.site import Site
from tests.support.simulator.server import Simulator
from tests.support.upstreams.clouds import azure

THAI = "สวัสดีครับ วันนี้อากาศดีมาก ไปเที่ยวทะเลกันเถอะ " * 20


def count(text: str) -> TextCounts:
    counts = TextCounts()
    counts.add(text)
    return counts


def add_sums(
    endpoint: ModelEndpoint, script: str, estimated: int, reported: int, mark: str = ""
) -> None:
    stated = read_abilities(endpoint.abilities).estimate
    family = correct_family(find_family(endpoint.model.tokenizer, endpoint.model.slug), stated)
    for kind, tokens in (("estimated", estimated), ("reported", reported)):
        TokenSum.objects.create(
            endpoint_id=endpoint.pk,
            script=script,
            mark=mark or family.mark,
            kind=kind,
            tokens=tokens,
        )


def sums() -> Mapping[tuple[UUID, str, str], int]:
    rows = TokenSum.objects.values_list("endpoint_id", "script", "kind", "tokens")
    return {(endpoint, script, kind): tokens for endpoint, script, kind, tokens in rows}


@pytest.fixture
def endpoint(db: None) -> ModelEndpoint:
    model = factories.make_model("acme/falcon", tokenizer="GPT")
    provider = factories.make_provider("acme")
    return factories.make_endpoint(model, provider, source="litellm", as_of=date(2026, 11, 1))


def test_reported_prompts_are_summed_by_endpoint_and_script(site: Site) -> None:
    endpoint = site.publish("sim-tokens:900,5")
    family = find_family(site.model.tokenizer, site.model.slug)
    for _ in range(2):
        assert site.chat(THAI).status_code == 200
    # What says nothing of the estimate of a script: few bytes, ASCII alone, and a tool.
    tool = {"type": "function", "function": {"name": "look"}}
    assert site.chat("สวัสดี").status_code == 200
    assert site.chat("two words").status_code == 200
    assert site.chat(THAI, tools=[tool]).status_code == 200
    site.eventually(
        lambda: (
            sums()
            == {
                (endpoint.pk, "Thai", "estimated"): 2 * (family.estimate(count(THAI)) + 4),
                (endpoint.pk, "Thai", "reported"): 1_800,
            }
        )
    )
    assert set(TokenSum.objects.values_list("mark", flat=True)) == {family.mark}


def test_estimates_of_private_endpoints_and_of_claims_are_not_summed(site: Site) -> None:
    endpoint = site.publish("sim-usage-huge")
    own = factories.make_model("acme/own")
    site.own("sim-tokens:700,5", model=own)
    assert site.chat(THAI).status_code == 200
    assert site.chat(THAI, model=own.slug).status_code == 200
    site.eventually(lambda: Generation.objects.filter(status="completed").count() == 2)
    ModelEndpoint.objects.filter(pk=endpoint.pk).update(upstream_model_id="sim-tokens:900,5")
    assert site.chat(THAI).status_code == 200
    # It is counted last, and so stored with them or after them.
    site.eventually(lambda: sums().get((endpoint.pk, "Thai", "reported")) == 900)
    assert len(sums()) == 2


def test_reports_of_a_server_that_a_tenants_credential_names_are_not_summed(
    site: Site, clouds: Simulator
) -> None:
    secret = json.dumps(azure())
    cloud = factories.make_provider("cloud", dialect="azure", base_url=None, secret=Secret(secret))
    endpoint = site.publish("sim-tokens:700,5", provider=cloud)
    factories.make_credential(site.tenant, cloud, secret)
    assert site.chat(THAI).status_code == 200
    assert site.settled().is_byok
    # The operator's own account is counted, and last.
    ModelEndpoint.objects.filter(pk=endpoint.pk).update(upstream_model_id="sim-tokens:900,5")
    other = factories.make_tenant("Other")
    assert site.post(site.chat_body(THAI), key=other.api_key).status_code == 200
    site.eventually(lambda: sums().get((endpoint.pk, "Thai", "reported")) == 900)


def test_a_large_bias_is_proposed_and_an_approval_corrects_it(endpoint: ModelEndpoint) -> None:
    add_sums(endpoint, "Thai", 200_000, 300_000)
    add_sums(endpoint, "Greek", 200_000, 120_000)
    add_sums(endpoint, "ASCII", 200_000, 270_000)
    # Too few to say anything.
    add_sums(endpoint, "Khmer", 1_000, 9_000)
    assert propose_estimates() == 1
    proposal = CatalogProposal.objects.get()
    assert (proposal.source, proposal.reason, proposal.endpoint_id) == (
        "usage", "change", endpoint.pk,
    )  # fmt: skip
    assert proposal.changes == [
        {"column": "estimate.Greek", "old": "1", "new": "0.6", "percent": None},
        {"column": "estimate.Thai", "old": "1", "new": "1.5", "percent": None},
    ]
    assert [str(each) for each in read_changes(proposal.changes)] == [
        "Factor of estimated tokens, Greek: 1 → 0.6", "Factor of estimated tokens, Thai: 1 → 1.5",
    ]  # fmt: skip
    assert ModelEndpoint.objects.get().abilities == {}
    assert propose_estimates() == 1
    assert CatalogProposal.objects.get() == proposal
    proposals.approve(proposal, by="operator ann")
    found = ModelEndpoint.objects.get()
    assert found.abilities == {"estimate": {"Greek": 0.6, "Thai": 1.5}}
    assert (found.source, found.as_of, found.price_id) == (
        "litellm", date(2026, 11, 1), endpoint.price_id,
    )  # fmt: skip
    # The sums of the weights before say nothing of those now.
    assert propose_estimates() == 0
    assert not TokenSum.objects.exists()
    add_sums(found, "Thai", 300_000, 300_000)
    assert propose_estimates() == 0


def test_a_bias_that_goes_is_withdrawn_and_a_refused_one_does_not_return(
    endpoint: ModelEndpoint,
) -> None:
    add_sums(endpoint, "Thai", 200_000, 300_000)
    assert propose_estimates() == 1
    TokenSum.objects.filter(kind="estimated").update(tokens=290_000)
    assert propose_estimates() == 0
    assert CatalogProposal.objects.get().status == "withdrawn"
    TokenSum.objects.filter(kind="estimated").update(tokens=200_000)
    assert propose_estimates() == 1
    CatalogProposal.objects.get(status="waiting").refuse(by="operator ann")
    assert propose_estimates() == 0
    assert ModelEndpoint.objects.get().abilities == {}


def test_a_price_and_an_estimate_wait_beside_each_other(endpoint: ModelEndpoint) -> None:
    add_sums(endpoint, "Thai", 200_000, 300_000)
    assert propose_estimates() == 1
    subject = CatalogProposal.objects.get().subject
    assert subject.removesuffix(" estimate") == " ".join(
        (
            endpoint.model.canonical_slug,
            endpoint.provider.slug,
            endpoint.upstream_model_id,
            "global",
        )
    )
    # What changed the endpoint meanwhile is seen: the proposal is made anew.
    endpoint.context_length = 4_096
    endpoint.save_fields("context_length")
    with pytest.raises(proposals.CatalogMoved):
        proposals.approve(CatalogProposal.objects.get(), by="operator ann")
    assert propose_estimates() == 1
    proposals.approve(CatalogProposal.objects.get(status="waiting"), by="operator ann")
    found = ModelEndpoint.objects.get()
    assert (found.context_length, found.abilities) == (4_096, {"estimate": {"Thai": 1.5}})


def test_claims_of_three_prompts_propose_a_larger_bound(endpoint: ModelEndpoint) -> None:
    organization = factories.make_tenant().organization

    def claim(number: int, claimed: int, allowed: int = 50) -> None:
        Excess.objects.create(
            organization=organization,
            reference=f"gen-{number}-a",
            endpoint_id=endpoint.pk,
            provider_name="Acme",
            model="acme/falcon",
            amount_nano=1,
            upstream_nano=1,
            claimed_prompt_tokens=claimed,
            claimed_completion_tokens=1,
            allowed_prompt_tokens=allowed,
            allowed_completion_tokens=1,
        )

    claim(1, 700)
    claim(2, 740)
    # No text of a vendor is so long, and this one claims no prompt.
    claim(3, 900_000)
    claim(4, 40)
    assert propose_estimates() == 0
    claim(5, 690)
    assert propose_estimates() == 1
    proposal = CatalogProposal.objects.get()
    assert proposal.changes == [
        {"column": "bound.prompt", "old": "0", "new": "690", "percent": None}
    ]
    proposals.approve(proposal, by="operator ann")
    assert ModelEndpoint.objects.get().abilities == {"bound": {"prompt": 690}}
    # Those were claimed beyond the bound before.
    assert propose_estimates() == 0


def test_claims_of_a_server_that_a_tenants_credential_names_propose_nothing(tenant: Tenant) -> None:
    cloud = factories.make_provider(dialect="azure", base_url=None)
    told = {"source": "litellm", "as_of": date(2026, 11, 1)}
    endpoint = factories.make_endpoint(factories.make_model(), cloud, **told)
    claim = {"endpoint_id": endpoint.pk, "claimed_prompt_tokens": 700, "allowed_prompt_tokens": 50}
    for is_byok in (True, True, True, False, False):
        made = factories.make_generation(tenant, model_endpoint=endpoint, is_byok=is_byok)
        factories.make_excess(tenant, reference=made.pk, **claim)
    assert propose_estimates() == 0
    made = factories.make_generation(tenant, model_endpoint=endpoint)
    factories.make_excess(tenant, reference=made.pk, **claim)
    assert propose_estimates() == 1


def test_sums_of_other_weights_are_deleted(endpoint: ModelEndpoint) -> None:
    add_sums(endpoint, "Thai", 200_000, 300_000, mark="00000000")
    assert propose_estimates() == 0
    assert not TokenSum.objects.exists()


@pytest.mark.parametrize(
    ("text", "script"),
    [(THAI, "Thai"), ("Plain words. ไทย", "ASCII"), ("ไทย Greek α β γ abc", None), ("", None)],
)
def test_a_text_has_at_most_one_main_script(text: str, script: str | None) -> None:
    assert count(text).main_script == script


def test_a_factor_corrects_the_estimates_of_its_script_alone() -> None:
    family = find_family("GPT", "openai/gpt-5")
    twice: Any = correct_family(family, {"Thai": 2.0})
    assert twice.estimate(count(THAI * 9)) > 1.9 * family.estimate(count(THAI * 9))
    assert twice.estimate(count("Plain words.")) == family.estimate(count("Plain words."))
    assert twice.bound_more(count(THAI)) == family.bound_more(count(THAI))
    assert twice.mark != family.mark
    words = correct_family(family, {"ASCII": 2.0})
    assert words.estimate(count("word " * 99)) == pytest.approx(
        2 * family.estimate(count("word " * 99)), abs=1
    )
    assert correct_family(family, {}) is family
