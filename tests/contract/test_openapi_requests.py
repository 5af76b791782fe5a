"""The parser accepts every shape that the OpenAPI document allows."""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from catalog.dialects.base import Operation
from config.api.errors import InvalidRequest
from inference.requests import parsing
from inference.requests.messages import request as messages
from inference.requests.responses import request as responses
from inference.requests.transcriptions import parse_transcription
from tests.support.bodies.samples import make_wav
from tests.support.contract import document, examples
from tests.support.suite.tiers import count_examples

GOLDEN: Final = json.loads(document.GOLDEN.read_text())
# What refuses a shape, or a value that is always refused. Other refusals are rules between members,
# or of what nobody does here.
SHAPE: Final = re.compile(
    r"Expected |Object contains|Invalid (value|enum)|is required|The body |cannot be streamed"
    r"|is downloaded"
)
SOUND: Final = base64.b64encode(make_wav()).decode()
# Rules in the words of shapes: names of tools are those of chat, and instructions alone are a
# conversation too.
RULES: Final = re.compile(
    r"^tools\[\d+\]\.function\.name: |^input: This field|^tool_choice\.mode: "
)


def parse_chat_of(convert: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def parse(body: bytes) -> Any:
        chat = convert(body)
        return parsing.parse(Operation.CHAT, getattr(chat, "chat", chat), is_checked=True)

    return parse


def parse_sound(body: bytes) -> Any:
    """Parses a request for a transcription, which has a sound in the place of any text."""
    fields = json.loads(body)
    audio = fields["input_audio"]
    assert audio.keys() >= {"data", "format"}
    fields["input_audio"] = {**audio, "data": SOUND, "format": "wav"}
    text = json.dumps(fields).encode()
    return parse_transcription(text, "application/json", max_bytes=10**6)


def parse_images(body: bytes) -> Any:
    """Parses a request for images, which the route answers with data alone."""
    assert json.loads(body).get("response_format") != "url"
    return parsing.parse(Operation.IMAGES, body)


PARSERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "/chat/completions": functools.partial(parsing.parse, Operation.CHAT),
    "/completions": functools.partial(parsing.parse, Operation.TEXT),
    "/embeddings": functools.partial(parsing.parse, Operation.EMBEDDINGS),
    "/rerank": functools.partial(parsing.parse, Operation.RERANK),
    "/audio/speech": functools.partial(parsing.parse, Operation.SPEECH),
    "/audio/transcriptions": parse_sound,
    "/images": parse_images,
    "/images/generations": functools.partial(parsing.parse, Operation.IMAGES),
    "/messages": parse_chat_of(lambda body: messages.convert(body)[0]),
    "/responses": parse_chat_of(responses.to_chat),
}


def schema_of(path: str) -> dict[str, Any]:
    body = GOLDEN["paths"][path]["post"]["requestBody"]["content"]
    found: dict[str, Any] = body["application/json"]["schema"]
    return found


@pytest.mark.parametrize("path", PARSERS)
@settings(
    max_examples=count_examples(50), deadline=None, derandomize=True, database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
@given(data=st.data())
def test_the_parser_accepts_what_the_document_allows(path: str, data: st.DataObject) -> None:
    body = data.draw(examples.values(schema_of(path), GOLDEN))
    try:
        PARSERS[path](json.dumps(body).encode())
    except InvalidRequest as refused:
        text = refused.message
        assert RULES.search(text) or not SHAPE.search(text), (text, body)
        event("refused by a rule")


@pytest.mark.parametrize("path", PARSERS)
def test_the_example_of_a_body_is_accepted(path: str) -> None:
    content = GOLDEN["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    document.check_schema(content["schema"], content["example"])
    PARSERS[path](json.dumps(content["example"]).encode())
