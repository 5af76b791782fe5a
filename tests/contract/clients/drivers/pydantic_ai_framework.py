"""pydantic-ai: its models `openai-chat:` and `openai:`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import openai
from pydantic_ai import Agent, StructuredDict
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.output import NativeOutput
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

from tests.contract.clients.drivers.driver import QUESTION, SCHEMA, WEATHER, Driver


class Framework(Driver):
    model_class: Any

    def run(self, work: Any, name: str, **options: Any) -> Any:
        """Runs ``work(agent)`` with a client that is closed in the same event loop."""

        async def run() -> Any:
            async with openai.AsyncOpenAI(
                base_url=self.base_url, api_key=self.key, max_retries=0
            ) as client:
                model = self.model_class(name, provider=OpenAIProvider(openai_client=client))
                return await work(Agent(model, **options))

        return asyncio.run(run())

    def plain(self, model: str) -> str:
        async def ask(agent: Any) -> str:
            return str((await agent.run(QUESTION)).output)

        return str(self.run(ask, model))

    def stream(self, model: str) -> list[str]:
        async def ask(agent: Any) -> list[str]:
            async with agent.run_stream(QUESTION) as stream:
                return [text async for text in stream.stream_text(delta=True, debounce_by=None)]

        found: list[str] = self.run(ask, model)
        return found

    def tools(self, model: str) -> list[Any]:
        found: list[Any] = []

        def get_weather(city: str, number: int) -> str:
            found.append({"city": city, "number": number})
            return WEATHER

        async def ask(agent: Any) -> None:
            # The simulated model never stops to call.
            with_limit = agent.run(QUESTION, usage_limits=UsageLimits(request_limit=2))
            await expect_limit(with_limit)

        self.run(ask, model, tools=[get_weather])
        return found[:2]

    def structured(self, model: str) -> Any:
        async def ask(agent: Any) -> Any:
            return (await agent.run(QUESTION)).output

        schema = StructuredDict(SCHEMA, name="answer")
        return self.run(ask, model, output_type=NativeOutput(schema))

    def cancel(self, model: str) -> None:
        async def ask(agent: Any) -> None:
            async with agent.run_stream(QUESTION) as stream:
                async for _ in stream.stream_text(delta=True, debounce_by=None):
                    break

        self.run(ask, model)


async def expect_limit(run: Coroutine[Any, Any, Any]) -> None:
    try:
        await run
    except UsageLimitExceeded:
        return
    raise AssertionError("the model stopped to call")


class Chat(Framework):
    model_class = OpenAIChatModel


class Responses(Framework):
    model_class = OpenAIResponsesModel
