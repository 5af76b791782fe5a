"""Real clients whose stream begins with comments, or fails behind them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import anthropic
import openai
import openrouter
import pytest

from tests.support.contract.sdks import anthropic_client, openai_client
from tests.support.inference.site import Site

WORDS = "You said: one two"
FAILED = "The upstream provider is overloaded"


@contextmanager
def released_late(site: Site) -> Iterator[None]:
    """Lets the upstream answer once several comments were sent."""

    def release() -> None:
        assert site.upstream.wait_until(lambda: len(site.dialled()) == 1)
        # The client reads: the comments come meanwhile.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(site.upstream.wait_until, lambda: False, 0.5).result()
        site.upstream.release()

    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(release)
        yield
        later.result()


def ask_anthropic(site: Site) -> str:
    with (
        anthropic_client(site) as client,
        client.messages.stream(**site.chat_body(max_tokens=50)) as stream,
    ):
        return stream.get_final_text()


def ask_openai(site: Site) -> str:
    with openai_client(site) as client:
        stream: Any = client.chat.completions.create(**site.chat_body(stream=True))
        parts = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    return "".join(parts)


def ask_responses(site: Site) -> str:
    with (
        openai_client(site) as client,
        client.responses.stream(model=site.model.slug, input="one two") as stream,
    ):
        for event in stream:
            if event.type == "response.failed":
                assert event.response.error is not None
                raise openai.OpenAIError(event.response.error.message)
        return stream.get_final_response().output_text


def ask_openrouter(site: Site) -> str:
    with openrouter.OpenRouter(
        server_url=f"{site.server}/api/v1", api_key=site.tenant.api_key, retry_config=None
    ) as client:
        stream: Any = client.chat.send(**site.chat_body(stream=True))
        text = ""
        with stream:
            for event in stream:
                data = getattr(event, "data", event)
                if data.error:
                    raise RuntimeError(data.error.message)
                text += "".join(choice.delta.content or "" for choice in data.choices)
    return text


CLIENTS = {
    "anthropic": (ask_anthropic, anthropic.APIStatusError),
    "openai": (ask_openai, openai.APIError),
    "openai responses": (ask_responses, openai.OpenAIError),
    "openrouter": (ask_openrouter, RuntimeError),
}


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_ignores_the_comments(quick: Site, name: str) -> None:
    quick.publish("sim-held")
    ask, _ = CLIENTS[name]
    with released_late(quick):
        assert ask(quick) == WORDS
    assert quick.settled().status == "completed"


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_raises_the_error_behind_the_comments(quick: Site, name: str) -> None:
    quick.publish("sim-held-status:503")
    ask, failure = CLIENTS[name]
    with released_late(quick), pytest.raises(failure, match=FAILED):
        ask(quick)
    assert quick.settled().status == "failed"
