"""Google's Gemini API, as https://ai.google.dev/api/generate-content describes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote

from catalog.dialects.base import Body, Call, Operation, Reply, StreamParser, post_json
from catalog.dialects.gemini.chat import build_chat, chat_parser, parse_chat
from catalog.dialects.gemini.images import (
    build_images,
    image_parameters,
    images_parser,
    parse_images,
)
from catalog.dialects.shared.credentials import host_of_url
from config.egress import OutboundRequest

_BUILDERS: Final[Mapping[Operation, Callable[[Call], tuple[bytes, frozenset[str]]]]] = {
    Operation.CHAT: build_chat,
    Operation.IMAGES: build_images,
}
_PARSERS: Final[Mapping[Operation, Callable[[Body], Reply]]] = {
    Operation.CHAT: parse_chat,
    Operation.IMAGES: parse_images,
}
_STREAM_PARSERS: Final[Mapping[Operation, Callable[[int], StreamParser]]] = {
    Operation.CHAT: chat_parser,
    Operation.IMAGES: images_parser,
}

operations: Final = frozenset(_BUILDERS)
names_deployments: Final = False
host = host_of_url


def build(call: Call) -> OutboundRequest:
    method = "streamGenerateContent?alt=sse" if call.stream else "generateContent"
    url = f"{call.base_url}/models/{quote(call.model, safe='')}:{method}"
    login = call.secret.in_header("x-goog-api-key")
    body, lost = _BUILDERS[call.operation](call)
    request = post_json(call, url, login, body)
    request.left_out = lost
    return request


def parse_reply(operation: Operation, body: Body) -> Reply:
    return _PARSERS[operation](body)


def stream_parser(operation: Operation, choices: int = 1) -> StreamParser:
    return _STREAM_PARSERS[operation](choices)
