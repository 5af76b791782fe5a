"""What frameworks do with Responses beyond the table of clients, which installs them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.contract.clients import Serve
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator

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

    def test_reasoning_is_read(self, model: Any, serve: Serve) -> None:
        answer = self.agent(model(serve("sim-reasoning"))).run_sync("one two")
        kinds = [part.part_kind for part in answer.all_messages()[-1].parts]
        assert kinds == ["thinking", "text"]


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


def sum_of(chunks: Any) -> Any:
    first, *rest = chunks
    for chunk in rest:
        first += chunk
    return first
