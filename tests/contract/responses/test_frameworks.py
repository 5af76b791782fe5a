"""Frameworks that are built on Responses; `.ci/run` installs them from `frameworks.lock`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from config.local.simulator.server import Simulator
from tests.support.contract.clients import Serve
from tests.support.factories import Tenant

# The frameworks warn about each other's versions.
pytestmark = pytest.mark.filterwarnings("ignore")

WORDS = "You said: one two"


@pytest.fixture
def login(server: str, tenant: Tenant) -> dict[str, Any]:
    return {"api_key": tenant.api_key, "base_url": f"{server}/api/v1"}


def sent(simulator: Simulator) -> Any:
    return simulator.requests[-1].body


class TestPydanticAI:
    """Its default model of OpenAI speaks Responses."""

    @pytest.fixture
    def model(self, login: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
        pydantic_ai = pytest.importorskip("pydantic_ai")
        responses = pytest.importorskip("pydantic_ai.models.openai").OpenAIResponsesModel
        monkeypatch.setenv("OPENAI_API_KEY", login["api_key"])
        monkeypatch.setenv("OPENAI_BASE_URL", login["base_url"])

        def make(name: str) -> Any:
            found = pydantic_ai.models.infer_model(f"openai:{name}")
            assert isinstance(found, responses)
            return found

        return make

    def agent(self, model: Any, **options: Any) -> Any:
        import_module = pytest.importorskip("pydantic_ai")
        return import_module.Agent(model, **options)

    def test_it_answers_and_streams(self, model: Any, serve: Serve) -> None:
        agent = self.agent(model(serve("sim-echo")), instructions="Be brief.")

        async def talk() -> tuple[str, list[str]]:
            answer = await agent.run("one two")
            async with agent.run_stream("one two") as stream:
                texts = [text async for text in stream.stream_text(delta=True, debounce_by=None)]
            return answer.output, texts

        answer, texts = asyncio.run(talk())
        assert (answer, "".join(texts)) == (WORDS, WORDS)

    def test_it_calls_tools_and_sends_their_results(
        self, model: Any, serve: Serve, simulator: Simulator
    ) -> None:
        exceptions = pytest.importorskip("pydantic_ai.exceptions")
        usage = pytest.importorskip("pydantic_ai.usage")
        agent = self.agent(model(serve("sim-tools")))
        found: list[Any] = []

        @agent.tool_plain
        def get_weather(city: str, number: int) -> str:
            found.append((city, number))
            return "12 °C"

        # The simulated model never stops to call.
        with pytest.raises(exceptions.UsageLimitExceeded):
            agent.run_sync("Hi", usage_limits=usage.UsageLimits(request_limit=3))
        assert found[0] == ("Zürich", 0)
        roles = [message["role"] for message in sent(simulator)["messages"]]
        assert roles[:3] == ["user", "assistant", "tool"]

    def test_reasoning_is_read(self, model: Any, serve: Serve) -> None:
        answer = self.agent(model(serve("sim-reasoning"))).run_sync("one two")
        kinds = [part.part_kind for part in answer.all_messages()[-1].parts]
        assert kinds == ["thinking", "text"]

    def test_an_error_is_raised(self, model: Any, serve: Serve) -> None:
        exceptions = pytest.importorskip("pydantic_ai.exceptions")
        with pytest.raises(exceptions.ModelHTTPError) as caught:
            self.agent(model(serve("sim-status-400"))).run_sync("Hi")
        assert caught.value.status_code == 400


class TestLangChain:
    """Its Responses mode."""

    @pytest.fixture
    def model(self, login: dict[str, Any]) -> Any:
        langchain = pytest.importorskip("langchain_openai")

        def make(name: str) -> Any:
            return langchain.ChatOpenAI(
                model=name, use_responses_api=True, max_retries=0, store=False, **login
            )

        return make

    def test_it_answers_and_streams(self, model: Any, serve: Serve) -> None:
        chat = model(serve("sim-echo"))
        answer = chat.invoke("one two")
        assert answer.text == WORDS
        assert answer.usage_metadata["total_tokens"] == 6
        assert "".join(chunk.text for chunk in chat.stream("one two")) == WORDS

    def test_it_calls_tools_and_sends_their_results(
        self, model: Any, serve: Serve, simulator: Simulator
    ) -> None:
        messages = pytest.importorskip("langchain_core.messages")
        chat = model(serve("sim-tools:2")).bind_tools(
            [{"type": "function", "function": {"name": "get_weather", "parameters": {}}}]
        )
        asked = messages.HumanMessage("Hi")
        for answer in (chat.invoke([asked]), sum_of(chat.stream([asked]))):
            assert [call["args"]["number"] for call in answer.tool_calls] == [0, 1]
            results = [
                messages.ToolMessage("12 °C", tool_call_id=call["id"]) for call in answer.tool_calls
            ]
            chat.invoke([asked, answer, *results])
            roles = [message["role"] for message in sent(simulator)["messages"]]
            assert roles == ["user", "assistant", "tool", "tool"]

    def test_structured_output_reaches_the_model(
        self, model: Any, serve: Serve, simulator: Simulator
    ) -> None:
        schema = {"title": "Answer", "type": "object", "properties": {"body": {"type": "object"}}}
        chat = model(serve("sim-mirror")).with_structured_output(schema, method="json_schema")
        assert chat.invoke("Hi")["body"]["response_format"]["type"] == "json_schema"

    def test_an_error_is_raised(self, model: Any, serve: Serve) -> None:
        with pytest.raises(Exception, match=r"400|Bad"):
            model(serve("sim-status-400")).invoke("Hi")


def sum_of(chunks: Any) -> Any:
    first, *rest = chunks
    for chunk in rest:
        first += chunk
    return first


class TestLiteLLM:
    """Its function `responses`."""

    @pytest.fixture
    def ask(self, login: dict[str, Any], serve: Serve) -> Any:
        litellm = pytest.importorskip("litellm")

        def ask(behaviour: str, content: Any = "one two", **fields: Any) -> Any:
            return litellm.responses(
                model=f"openai/{serve(behaviour)}",
                input=content,
                api_base=login["base_url"],
                api_key=login["api_key"],
                **fields,
            )

        return ask

    def test_it_answers(self, ask: Any) -> None:
        answer = ask("sim-echo")
        assert answer.output[0].content[0].text == WORDS
        assert answer.usage.total_tokens == 6

    def test_it_streams(self, ask: Any) -> None:
        events = list(ask("sim-echo", stream=True))
        kinds = [str(getattr(event.type, "value", event.type)) for event in events]
        assert kinds[-1] == "response.completed"
        deltas = [event.delta for event, kind in zip(events, kinds, strict=True)
                  if kind == "response.output_text.delta"]  # fmt: skip
        assert "".join(deltas) == WORDS

    def test_it_calls_tools(self, ask: Any) -> None:
        tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
        [call] = ask("sim-tools", tools=[tool]).output
        assert json.loads(call.arguments)["number"] == 0

    def test_an_error_is_raised(self, ask: Any) -> None:
        litellm = pytest.importorskip("litellm")
        with pytest.raises(litellm.BadRequestError):
            ask("sim-status-400")
