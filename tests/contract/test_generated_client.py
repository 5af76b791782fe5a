"""A client that openapi-python-client generates from the document is typed, and it works."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from endpoints.models import PrivateEndpoint, PrivateProvider
from tests.support import factories
from tests.support.contract import document
from tests.support.contract.clients import NO_AUTHORITIES, Serve
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator

NAME = "causeway_generated"
OPTIONS = """\
post_hooks: []
literal_enums: true
"""
Part = Callable[[str], Any]


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Part]:
    """Generates the client; returns a function that imports one of its modules."""
    folder = tmp_path_factory.mktemp("client")
    (folder / "options.yaml").write_text(OPTIONS)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "openapi_python_client", "generate", "--fail-on-warning"),
            *("--path", str(document.GOLDEN), "--config", str(folder / "options.yaml")),
            *("--meta", "none", "--output-path", str(folder / NAME)),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield lambda name: importlib.import_module(f"{NAME}.{name}")
    for name in [name for name in sys.modules if name.split(".")[0] == NAME]:
        del sys.modules[name]


@pytest.fixture
def connect(part: Part, server: str) -> Iterator[Callable[[str], Any]]:
    """Returns a function that makes a client for a key; undocumented statuses raise."""
    made = []

    def make(key: str) -> Any:
        client = part("client").AuthenticatedClient(
            base_url=f"{server}/api/v1",
            token=key,
            raise_on_unexpected_status=True,
            timeout=httpx.Timeout(30),
            verify_ssl=NO_AUTHORITIES,
            httpx_args={"event_hooks": {"response": [document.check_answer]}},
        )
        made.append(client)
        return client

    yield make
    for client in made:
        client.get_httpx_client().close()


@pytest.fixture
def client(connect: Callable[[str], Any], tenant: Tenant) -> Any:
    return connect(tenant.api_key)


def test_chat_answers_with_typed_members(part: Part, client: Any, serve: Serve) -> None:
    models = part("models")
    body = models.ChatRequest(
        model=serve("sim-reasoning"),
        messages=[
            models.ChatSystemMessage(role="system", content="Be brief."),
            models.ChatUserMessage(
                role="user", content=[models.ChatTextPart(type_="text", text="one two")]
            ),
        ],
        reasoning=models.ChatReasoning(effort="low"),
        provider=models.ProviderPreferences(sort="price"),
    )
    answer = part("api.chat_completions.create_chat_completion").sync(
        client=client, body=body, x_open_router_metadata="enabled"
    )
    assert isinstance(answer, models.ChatResult)
    assert answer.id.startswith("gen-")
    [choice] = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("You said: one two", "stop")
    assert (answer.usage.prompt_tokens, answer.usage.cost, answer.usage.is_byok) == (4, 0, True)
    assert answer.usage.cost_details.upstream_inference_prompt_cost == 0.000004
    assert answer.openrouter_metadata.endpoints.available[0].selected is True


def test_calls_of_tools_are_typed(part: Part, client: Any, serve: Serve) -> None:
    models = part("models")
    function = models.ChatFunction(name="get_weather")
    body = models.ChatRequest(
        model=serve("sim-tools"),
        messages=[models.ChatUserMessage(role="user", content="Hi")],
        tools=[models.ChatFunctionTool(type_="function", function=function)],
        tool_choice=models.ChatNamedToolChoice(
            type_="function", function=models.ChatFunctionChoice(name="get_weather")
        ),
        response_format=models.ChatJsonObjectFormat(type_="json_object"),
    )
    answer = part("api.chat_completions.create_chat_completion").sync(client=client, body=body)
    [call] = answer.choices[0].message.tool_calls
    assert (call.id, call.function.name) == ("call_0", "get_weather")
    assert "rich" in call.function.arguments


def test_the_other_faces_answer_with_typed_members(part: Part, client: Any, serve: Serve) -> None:
    models, model = part("models"), serve("sim-echo")
    message = part("api.anthropic_messages.create_messages").sync(
        client=client,
        body=models.MessagesRequest(
            model=model, max_tokens=50, messages=[models.UserTurn(role="user", content="one two")]
        ),
    )
    assert isinstance(message.content[0], models.MessagesTextBlock)
    assert message.content[0].text == "You said: one two"
    response = part("api.responses.create_responses").sync(
        client=client,
        body=models.ResponsesRequest(
            model=model, input_=[models.InputMessage(role="user", content="one two")]
        ),
    )
    [item] = response.output
    assert isinstance(item, models.OutputMessage)
    assert item.content[0].text == "You said: one two"
    assert response.usage.output_tokens == 4


def test_models_and_embeddings_are_listed(part: Part, client: Any, serve: Serve) -> None:
    models, model = part("models"), serve("sim-echo")
    listed = part("api.models.get_models").sync(client=client)
    assert [each.id for each in listed.data] == [model]
    vectors = part("api.embeddings.create_embeddings").sync(
        client=client, body=models.EmbeddingsRequest(model=model, input_=["one", "two"])
    )
    assert [len(each.embedding) for each in vectors.data] == [8, 8]


def test_a_private_endpoint_is_created(
    part: Part, connect: Callable[[str], Any], tenant: Tenant
) -> None:
    models = part("models")
    provider, model = factories.make_provider("acme"), factories.make_model("acme/falcon")
    created = part("api.private_endpoints.create_private_endpoint").sync(
        client=connect(tenant.management_key),
        body=models.CreatePrivateEndpointRequest(
            model_permaslug=model.canonical_slug,
            provider_slug=provider.slug,
            upstream_model_id="sim-echo",
            base_url="https://llm.example.com/v1",
        ),
    )
    assert isinstance(created, models.CreatePrivateEndpointResponse)
    assert created.data.status == "draft"
    assert str(created.data.id) == str(PrivateEndpoint.objects.get().pk)


def test_an_endpoint_of_ones_own_provider_is_managed(
    part: Part, connect: Callable[[str], Any], tenant: Tenant, simulator: Simulator
) -> None:
    """A client of the newest contract's shapes parses each answer, and sends partial changes."""
    models, manager = part("models"), connect(tenant.management_key)
    workspace_id, model = tenant.workspace.pk, factories.make_model("acme/falcon")

    def call(name: str, *path: Any, **given: Any) -> Any:
        tag = (
            "private_providers" if name.endswith(("provider", "providers")) else "private_endpoints"
        )
        return part(f"api.{tag}.{name}").sync(*path, client=manager, **given)

    body = models.CreatePrivateProviderRequest(name="My Rack", base_url=simulator.base_url)
    provider = call("create_private_provider", body=body).data
    assert (provider.slug, provider.base_url) == ("my-rack", simulator.base_url)
    named = models.UpdatePrivateProviderRequest(display_name="Rack 7")
    assert call("update_private_provider", "my-rack", body=named).data.display_name == "Rack 7"
    assert call("get_private_provider", "my-rack").data.name == "My Rack"
    assert [each.slug for each in call("list_private_providers").data] == ["my-rack"]
    credential = factories.make_credential(tenant, PrivateProvider.objects.get())
    made = call(
        "create_private_endpoint",
        body=models.CreatePrivateEndpointRequest(
            model_permaslug=model.canonical_slug,
            provider_slug="my-rack",
            upstream_model_id="sim-able",
            declared_parameters=["seed"],
            settings=models.PrivateEndpointSettings(
                context_length=128_000, max_completion_tokens=16_384
            ),
        ),
    ).data
    assert (made.status, made.max_completion_tokens) == ("draft", 16_384)
    ask = models.ValidatePrivateEndpointRequest(workspace_id=workspace_id, probe_parameters=True)
    validation = call("validate_private_endpoint", made.id, body=ask).data
    assert validation.passed, validation
    assert "tools" in {each.parameter for each in validation.parameters if each.supported}
    assert call("activate_private_endpoint", made.id).data.status == "active"
    full = call("get_private_endpoint", made.id).data
    assert (full.declared_parameters, full.max_completion_tokens) == (["seed"], 16_384)
    assert (full.settings.context_length, "tools" in full.tested_parameters) == (128_000, True)
    change = models.UpdatePrivateEndpointRequest(
        pricing=models.PrivateEndpointPricing(prompt="0.0000025", completion="0.00001"),
        declared_parameters=["seed", "stop"],
        settings=models.PrivateEndpointSettings(max_completion_tokens=None),
    )
    changed = call("update_private_endpoint", made.id, body=change).data
    assert (changed.pricing.prompt, changed.max_completion_tokens) == ("0.0000025", None)
    assert (changed.settings.context_length, changed.status) == (128_000, "active")
    moved = models.UpdatePrivateEndpointRequest(upstream_model_id="sim-echo")
    refused = call("update_private_endpoint", made.id, body=moved)
    assert refused.error.metadata["error_type"] == "already_active"
    parameters = models.UpdatePrivateEndpointParametersRequest(declared_parameters=["stop"])
    replaced = call("update_private_endpoint_parameters", made.id, body=parameters).data
    assert replaced.declared_parameters == ["stop"]
    rates = models.UpdatePrivateEndpointPricingRequest(
        pricing=models.PrivateEndpointPricing(prompt="0.1", completion="0.2")
    )
    repriced = call("update_private_endpoint_pricing", made.id, body=rates).data
    assert repriced.pricing.completion == "0.2"
    assert call("disable_private_endpoint", made.id).data.status == "disabled"
    assert call("enable_private_endpoint", made.id).data.status == "active"
    assert call("delete_private_provider", "my-rack").error.code == 409
    assert call("delete_private_endpoint", made.id).data.id == made.id
    assert call("list_private_endpoints").data == []
    assert call("delete_private_provider", "my-rack").error.code == 409
    credential.remove()
    assert call("delete_private_provider", "my-rack").data.slug == "my-rack"


def test_errors_are_typed(part: Part, client: Any, serve: Serve) -> None:
    models = part("models")
    create = part("api.chat_completions.create_chat_completion")
    body = models.ChatRequest(
        model="acme/none", messages=[models.ChatUserMessage(role="user", content="Hi")]
    )
    unknown = create.sync_detailed(client=client, body=body)
    assert isinstance(unknown.parsed, models.Error)
    assert (unknown.status_code, unknown.parsed.error.code) == (404, 404)
    body.model = serve("sim-status:429,7")
    limited = create.sync_detailed(client=client, body=body)
    assert (limited.status_code, limited.headers["Retry-After"]) == (429, "7")
    turn = models.UserTurn(role="user", content="Hi")
    refused = part("api.anthropic_messages.create_messages").sync(
        client=client, body=models.MessagesRequest(model="acme/none", max_tokens=5, messages=[turn])
    )
    assert isinstance(refused, models.MessagesError)
    assert refused.error.type_ == "not_found_error"
    assert refused.error.details.error_code == "model_not_found"
