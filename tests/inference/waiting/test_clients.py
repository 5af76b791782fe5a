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
from django.conf import LazySettings

from tests.support.inference.site import Site

ASKED: Any = [{"role": "user", "content": "one two"}]
WORDS = "You said: one two"
FAILED = "The engine is overloaded"


@pytest.fixture
def quick(site: Site, settings: LazySettings) -> Site:
    settings.STREAM_KEEPALIVE_INTERVAL = 0.05
    return site


@contextmanager
def released_late(site: Site, settings: LazySettings) -> Iterator[None]:
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
        anthropic.Anthropic(
            base_url=f"{site.server}/api", api_key=site.tenant.api_key, max_retries=0
        ) as client,
        client.messages.stream(model=site.model.slug, max_tokens=50, messages=ASKED) as stream,
    ):
        return stream.get_final_text()


def ask_openai(site: Site) -> str:
    with openai.OpenAI(
        base_url=f"{site.server}/api/v1", api_key=site.tenant.api_key, max_retries=0
    ) as client:
        stream = client.chat.completions.create(model=site.model.slug, messages=ASKED, stream=True)
        parts = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    return "".join(parts)


def ask_responses(site: Site) -> str:
    with (
        openai.OpenAI(
            base_url=f"{site.server}/api/v1", api_key=site.tenant.api_key, max_retries=0
        ) as client,
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
        stream: Any = client.chat.send(model=site.model.slug, messages=ASKED, stream=True)
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
def test_a_client_ignores_the_comments(quick: Site, settings: LazySettings, name: str) -> None:
    quick.publish("sim-held")
    ask, _ = CLIENTS[name]
    with released_late(quick, settings):
        assert ask(quick) == WORDS
    assert quick.settled().status == "completed"


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_raises_the_error_behind_the_comments(
    quick: Site, settings: LazySettings, name: str
) -> None:
    quick.publish("sim-held-status:503")
    ask, failure = CLIENTS[name]
    with released_late(quick, settings), pytest.raises(failure, match=FAILED):
        ask(quick)
    assert quick.settled().status == "failed"
