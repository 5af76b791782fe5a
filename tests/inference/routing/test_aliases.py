"""A request may send an alias: its answer names the model, and nobody reaches more by it."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
import requests

from accounts.models import ApiKey
from catalog.aliases import changes
from catalog.models import LanguageModel, ModelAlias
from config.secrets import digest_api_key
from inference.models import Generation
from tests.support import factories
from tests.support.contract.sdks import anthropic_client, openai_client
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail
from tests.support.inference.site import Site, events_of

METADATA = {"X-OpenRouter-Metadata": "enabled"}


def alias(owner: Tenant | None, name: str, *targets: str) -> ModelAlias:
    organization_id = None if owner is None else owner.organization.pk
    return changes.create_alias(organization_id=organization_id, name=name, targets=targets)


def ask(site: Site, model: str, *, key: str | None = None, **fields: Any) -> requests.Response:
    return site.post(site.chat_body(model=model, **fields), key=key, headers=METADATA)


def served(answer: requests.Response) -> tuple[str, str, str]:
    """Returns the model that served, the name that was asked for, and how it was chosen."""
    assert answer.status_code == 200, answer.text
    body = answer.json()
    metadata = body["openrouter_metadata"]
    return body["model"], metadata["requested"], metadata["strategy"]


def refused(answer: requests.Response) -> str:
    assert answer.status_code == 404, answer.text
    error = answer.json()["error"]
    assert error["metadata"]["error_type"] == "model_not_found"
    message: str = error["message"]
    return message


def another_model(site: Site, slug: str, **fields: Any) -> LanguageModel:
    model = factories.make_model(slug, **fields)
    site.publish(model=model)
    return model


def test_an_alias_is_served_by_its_model(published: Site) -> None:
    alias(published.tenant, "fast", "acme/falcon")
    assert served(ask(published, "fast")) == ("acme/falcon", "fast", "alias")
    assert published.settled().model == "acme/falcon"
    answer = ask(published, "fast:nitro").json()
    assert answer["openrouter_metadata"]["pipeline"][0] == {
        "type": "routing",
        "name": "alias",
        "summary": "'fast:nitro' stands for acme/falcon:nitro.",
        "data": {"origin": "organization", "alias": "fast", "targets": ["acme/falcon:nitro"]},
    }


def test_a_pattern_leaves_the_variants_of_a_name(published: Site) -> None:
    alias(published.tenant, "fal*", "acme/falcon")
    answer = ask(published, "falcon-9:nitro").json()
    assert (
        "stands for acme/falcon:nitro." in answer["openrouter_metadata"]["pipeline"][0]["summary"]
    )


def test_a_stream_names_the_model_that_serves(published: Site) -> None:
    alias(published.tenant, "fast", "acme/falcon")
    events = events_of(ask(published, "fast", stream=True).text)
    assert {event["model"] for event in events if isinstance(event, dict)} == {"acme/falcon"}


def test_a_change_holds_on_the_next_request(published: Site) -> None:
    another_model(published, "acme/hawk")
    for owner in (published.tenant, None):
        assert "There is no model 'fast'" in refused(ask(published, "fast"))
        row = alias(owner, "fast", "acme/falcon")
        assert served(ask(published, "fast"))[0] == "acme/falcon"
        changes.edit_alias(row, targets=["acme/hawk"])
        assert served(ask(published, "fast"))[0] == "acme/hawk"
        changes.edit_alias(row, name="quick")
        assert served(ask(published, "quick"))[0] == "acme/hawk"
        assert "There is no model 'fast'" in refused(ask(published, "fast"))
        changes.remove_alias(row)
        assert "There is no model 'quick'" in refused(ask(published, "quick"))


def test_the_organization_wins_over_the_operator_and_both_over_what_is_built_in(
    published: Site,
) -> None:
    another_model(published, "acme/hawk-2")
    another_model(published, "acme/eagle")
    assert served(ask(published, "hawk-2"))[0] == "acme/hawk-2"
    alias(None, "hawk-2", "acme/eagle")
    assert served(ask(published, "hawk-2"))[0] == "acme/eagle"
    # An exact name of the operator is behind a pattern of the organization.
    alias(published.tenant, "hawk*", "acme/falcon")
    assert served(ask(published, "hawk-2"))[0] == "acme/falcon"
    # A model's own name always wins.
    assert served(ask(published, "acme/hawk-2")) == ("acme/hawk-2", "acme/hawk-2", "direct")


def test_the_longest_pattern_wins_and_an_exact_name_over_it(published: Site) -> None:
    for name in ("hawk", "eagle", "kite"):
        another_model(published, f"acme/{name}")
    alias(published.tenant, "*", "acme/falcon")
    alias(published.tenant, "gpt-*", "acme/hawk")
    alias(published.tenant, "gpt-*-mini", "acme/eagle")
    alias(published.tenant, "gpt-5-mini", "acme/kite")
    for name, slug in (
        ("gpt-5-mini", "acme/kite"), ("gpt-4-mini", "acme/eagle"), ("gpt-mini", "acme/hawk"),
        ("gpt-", "acme/hawk"), ("gp", "acme/falcon"), ("*", "acme/falcon"),
    ):  # fmt: skip
        assert served(ask(published, name))[0] == slug, name


def test_a_model_that_comes_later_takes_its_name_from_an_alias(published: Site) -> None:
    alias(published.tenant, "acme/hawk", "acme/falcon")
    assert served(ask(published, "acme/hawk"))[0] == "acme/falcon"
    another_model(published, "acme/hawk")
    assert served(ask(published, "acme/hawk")) == ("acme/hawk", "acme/hawk", "direct")


def test_the_targets_of_an_alias_are_tried_in_order(site: Site) -> None:
    site.publish("sim-error-500")
    another_model(site, "acme/hawk")
    alias(site.tenant, "safe", "acme/falcon", "acme/hawk")
    assert served(ask(site, "safe")) == ("acme/hawk", "safe", "fallback")


def test_an_alias_may_stand_in_a_list_of_models(site: Site) -> None:
    site.publish("sim-error-500")
    another_model(site, "acme/hawk")
    alias(site.tenant, "safe", "acme/hawk")
    answer = site.chat(model="acme/falcon", models=["no-such", "safe"])
    assert answer.json()["model"] == "acme/hawk"


def test_a_target_that_left_the_catalogue_is_passed_over(published: Site) -> None:
    gone = another_model(published, "acme/hawk")
    alias(published.tenant, "both", "acme/hawk", "acme/falcon")
    alias(published.tenant, "one", "acme/hawk")
    gone.is_listed = False
    gone.save_fields("is_listed")
    assert served(ask(published, "both"))[0] == "acme/falcon"
    assert refused(ask(published, "one")) == (
        "The alias 'one' stands for models that the catalogue no longer has. Change the alias, or "
        "name a model."
    )


def test_an_alias_is_private_to_its_organization(published: Site) -> None:
    other = factories.make_tenant("Other")
    alias(other, "secret-project", "acme/falcon")
    assert served(ask(published, "secret-project", key=other.api_key))[0] == "acme/falcon"
    published.settled()
    with snapshots.unchanged():
        assert refused(ask(published, "secret-project")) == "There is no model 'secret-project'."
        assert refused(ask(published, "secret-projec")) == "There is no model 'secret-projec'."


def test_an_alias_reaches_no_model_that_a_guardrail_hides(published: Site) -> None:
    another_model(published, "acme/falcon-2", created=2_000_000_000)
    key = ApiKey.objects.get(digest=digest_api_key(published.tenant.api_key))
    allowed = ["acme/falcon-2026-01-01"]
    guardrail = make_guardrail(published.tenant.workspace, allowed_models=allowed)
    guardrail.assign_keys([key], by="test")
    alias(published.tenant, "hidden", "acme/falcon-2")
    alias(None, "open", "acme/falcon-2", "acme/falcon")
    answer = ask(published, "hidden")
    assert answer.status_code == 404
    [excluded] = answer.json()["error"]["metadata"]["excluded"]
    assert excluded["excluded_by"] == ["model_not_allowed"]
    assert served(ask(published, "open"))[0] == "acme/falcon"
    # The newest model is the newest that the key may use, and an error names no other.
    assert served(ask(published, "~acme/falcon-latest")) == (
        "acme/falcon", "~acme/falcon-latest", "latest",
    )  # fmt: skip
    assert refused(ask(published, "falcon-3")) == (
        "There is no model 'falcon-3'. Did you mean acme/falcon?"
    )


def test_a_model_of_another_organization_is_not_the_newest(published: Site) -> None:
    own = factories.make_model("acme/falcon-2", created=2_000_000_000)
    published.own(model=own)
    other = factories.make_tenant("Other")
    assert served(ask(published, "~acme/falcon-latest"))[0] == "acme/falcon-2"
    assert served(ask(published, "~acme/falcon-latest", key=other.api_key))[0] == "acme/falcon"


def test_the_newest_model_is_another_one_once_there_is_one(published: Site) -> None:
    assert served(ask(published, "~acme/falcon-latest"))[0] == "acme/falcon"
    another_model(published, "acme/falcon-2", created=2_000_000_000)
    assert served(ask(published, "~acme/falcon-latest"))[0] == "acme/falcon-2"


@pytest.mark.parametrize(
    "name",
    ["*", "fal*con", "\0", "falcon\n", "fal\x7fcon", "a" * 255, "[1m]", "~", "../falcon", "%s%n"],
)
def test_hostile_names_are_answered_and_change_nothing(published: Site, name: str) -> None:
    with snapshots.unchanged():
        assert refused(ask(published, name)).startswith("There is no model ")
    assert published.upstream.requests == []


def test_the_default_model_of_a_workspace_may_be_an_alias(published: Site) -> None:
    alias(published.tenant, "fast", "acme/falcon")
    published.tenant.workspace.edit(default_text_model="fast")
    body = published.chat_body()
    del body["model"]
    assert served(published.post(body, headers=METADATA)) == ("acme/falcon", "fast", "alias")


def test_the_anthropic_sdk_sends_a_bare_name(site: Site) -> None:
    model = another_model(site, "anthropic/claude-opus-4.8")
    client = anthropic_client(site)
    asked: Any = {"max_tokens": 50, "messages": [{"role": "user", "content": "one"}]}
    for name in ("claude-opus-4-8", "claude-opus-4-8[1m]", "claude-opus-4-8-20260528", "opus"):
        assert client.messages.create(model=name, **asked).model == model.slug
    with pytest.raises(anthropic.NotFoundError, match="Did you mean anthropic"):
        client.messages.create(model="claude-opus-4-9", **asked)


def test_the_openai_sdk_sends_a_bare_name_to_every_operation(published: Site) -> None:
    asked: Any = {"model": "falcon", "input": "one"}
    with openai_client(published) as client:
        assert client.responses.create(**asked, store=False).model == "acme/falcon"
        assert client.embeddings.create(**asked).model == "acme/falcon"
    published.wait_for_settlement()
    assert set(Generation.objects.values_list("model", flat=True)) == {"acme/falcon"}
