"""The samples that the console shows with a new key, run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from accounts.admin.keys.snippets import NO_MODEL, Snippet, find_example, write_snippets
from accounts.models import ApiKey
from config.credentials import Secret
from config.local.bootstrap import PROJECT
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.markdown import read_blocks
from tests.support.simulator.server import Simulator

PAGE: Path = PROJECT / "docs" / "clients.md"
ANSWER = "Hello from the simulated upstream. Ask me something and I will repeat it."


@pytest.fixture
def samples(server: str, tenant: Tenant, simulator: Simulator) -> dict[str, Snippet]:
    """Serves a model, and returns the samples for the tenant's inference key by client."""
    provider = factories.make_provider("acme", base_url=simulator.base_url)
    model = factories.make_model("acme/falcon")
    factories.make_endpoint(model, provider, upstream_model_id="sim-echo")
    factories.make_credential(tenant, provider)
    key = ApiKey.objects.get(name="inference")
    return {one.client: one for one in write_snippets(key, tenant.api_key, origin=server)}


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("client", ["OpenAI SDK", "OpenRouter SDK", "Anthropic SDK"])
def test_samples_of_sdks_print_the_answer(samples: dict[str, Snippet], client: str) -> None:
    assert run(sys.executable, "-W", "ignore", "-c", samples[client].text).strip() == ANSWER


def test_the_sample_of_curl_answers(samples: dict[str, Snippet]) -> None:
    assert ANSWER in run("sh", "-c", samples["curl"].text)


def test_samples_of_agents_are_those_of_the_documentation(
    samples: dict[str, Snippet], server: str, tenant: Tenant
) -> None:
    """Other tests run the documentation's samples with the agents themselves."""
    blocks = [block.text for block in read_blocks(PAGE)]
    [documented] = [tomllib.loads(text) for text in blocks if "[model_providers." in text]
    [exports] = [text for text in blocks if "ANTHROPIC_MODEL" in text]
    shown = tomllib.loads(samples["Codex"].text)
    provider = shown["model_providers"]["causeway"]
    assert provider["base_url"] == f"{server}/api/v1"
    assert shown["model"] == "acme/falcon"
    assert shown.keys() == documented.keys()
    expected = documented["model_providers"]["causeway"]
    assert provider | {"base_url": "", "env_key": ""} == expected | {"base_url": "", "env_key": ""}

    names = re.compile(r"^export (\w+)=(.*)$", re.M)
    claude = dict(names.findall(samples["Claude Code"].text))
    assert claude.keys() == dict(names.findall(exports)).keys()
    assert claude == {
        "ANTHROPIC_BASE_URL": f"{server}/api",
        "ANTHROPIC_AUTH_TOKEN": tenant.api_key,
        "ANTHROPIC_MODEL": "acme/falcon",
    }


def test_the_samples_of_a_management_key_manage(server: str, tenant: Tenant) -> None:
    key = ApiKey.objects.get(name="management")
    samples = write_snippets(key, tenant.management_key, origin=server)
    texts = {one.client: one.text for one in samples}

    assert texts.keys() == {"curl", "OpenRouter SDK"}
    assert '"inference"' in run("sh", "-c", texts["curl"])
    run(sys.executable, "-W", "ignore", "-c", texts["OpenRouter SDK"])


def test_the_example_is_a_model_of_text_that_the_key_can_call(
    tenant: Tenant, simulator: Simulator
) -> None:
    key = ApiKey.objects.get(name="inference", organization=tenant.organization)
    assert find_example(key) == NO_MODEL
    provider = factories.make_provider("bare")
    factories.make_endpoint(factories.make_model("acme/unpaid", created=3), provider)
    assert find_example(key) == NO_MODEL
    paid = factories.make_provider("paid")
    paid.set_credential(Secret("operator-credential-0123456789"))
    picture = factories.make_model("acme/picture", created=2, output_modalities=["image"])
    factories.make_endpoint(picture, paid)
    factories.make_endpoint(factories.make_model("acme/listed"), paid)
    assert find_example(key) == "acme/listed"

    stranger = factories.make_tenant("Other")
    other = ApiKey.objects.get(name="inference", organization=stranger.organization)
    own = factories.make_model("acme/own", created=1)
    factories.make_draft(stranger, own, provider, base_url=simulator.base_url)
    assert find_example(other) == "acme/listed"
    factories.make_active(stranger, own, provider, base_url=simulator.base_url)
    assert find_example(other) == "acme/own"
    assert find_example(key) == "acme/listed"
