"""What tests of public SDKs share: types of fixtures, whom clients trust, a paid model."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

import openai
from openrouter import OpenRouter

from catalog.pricing import Price
from config.credentials import Secret
from tests.support import factories
from tests.support.upstreams.speaking import Upstream

MakeOpenRouter = Callable[[str], OpenRouter]
MakeOpenAI = Callable[[str], openai.OpenAI]
Serve = Callable[..., str]
Piece = TypeVar("Piece")

# The service of the tests has no TLS. A client that reads the authorities takes 20 ms more to make.
NO_AUTHORITIES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def publish_maker(
    maker: Upstream, price: Price, upstream_model_id: str = "claude-sonnet-4-5", **model: Any
) -> str:
    """Returns the slug of a model that ``maker`` serves, paid from credits."""
    provider = factories.make_provider(
        "maker", name="Maker", dialect="anthropic", base_url=maker.base_url,
        secret=Secret("operator-credential-0123456789"),
    )  # fmt: skip
    factories.make_endpoint(
        factories.make_model("acme/falcon", **model), provider,
        price=price, upstream_model_id=upstream_model_id,
    )  # fmt: skip
    return "acme/falcon"


def pieces_of(stream: AbstractContextManager[Iterable[Piece]]) -> list[Piece]:
    """Reads a stream to its end and closes it."""
    with stream as pieces:
        return list(pieces)


def calls_of(chunks: Iterable[Any]) -> list[Any]:
    """Returns the parts of calls of tools in the chunks of a chat."""
    choices = (choice for chunk in chunks for choice in chunk.choices)
    return [call for choice in choices for call in choice.delta.tool_calls or ()]


def tokens_of(usage: Any) -> tuple[int, int]:
    return usage.prompt_tokens, usage.completion_tokens


def answer_to(client: openai.OpenAI, is_streamed: bool, **wanted: Any) -> Any:
    """Returns the response that a stream ends with, or that comes at once."""
    if not is_streamed:
        return client.responses.create(**wanted)
    with client.responses.stream(**wanted) as stream:
        for _ in stream:
            pass
        return stream.get_final_response()
