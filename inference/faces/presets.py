"""Reads a preset from the body of an inference request, in the format of any face."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from catalog.dialects.base import Operation
from catalog.dialects.shared.raw import is_null
from config.api.errors import InvalidRequest
from inference.requests import parsing
from inference.requests.limits import check_body
from inference.requests.messages import request as messages
from inference.requests.operations.presets import find_preset_name, split_config
from inference.requests.problems import field_error
from inference.requests.responses import request as responses

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class _Face(NamedTuple):
    """How a face becomes chat, and the fields that it requires and a preset does not."""

    to_chat: Callable[[bytes], bytes]
    required: Mapping[str, Any]


_MESSAGES: Final = [{"role": "user", "content": "x"}]
FACES: Final[Mapping[str, _Face]] = {
    "chat/completions": _Face(bytes, {"messages": _MESSAGES}),
    "messages": _Face(
        lambda body: messages.convert(body)[0],
        {"messages": _MESSAGES, "model": "x", "max_tokens": 1},
    ),
    "responses": _Face(lambda body: responses.to_chat(body).chat, {"input": "x"}),
}


def read_preset(face: str, body: bytes) -> tuple[str, str | None]:
    """Returns the JSON of the fields that a preset keeps of a request, and its system prompt.

    Raises :class:`InvalidRequest` for a request that the face would refuse.
    """
    check_body(body)
    if (named := find_preset_name(body)) is not None:
        raise field_error(named.field, "A preset cannot name another one.")
    try:
        fields = _decode_fields(body)
    except msgspec.ValidationError:
        raise InvalidRequest("The body must be a JSON object.") from None
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest("The body is not valid JSON.") from None
    to_chat, required = FACES[face]
    added = [name for name in required if is_null(fields.get(name, msgspec.Raw()))]
    chat = to_chat(_encode({**fields, **{name: required[name] for name in added}}))
    parsing.parse(Operation.CHAT, chat, is_checked=True)
    kept = _decode_fields(chat)
    for name in added:
        if name != "messages":
            kept.pop(name, None)
    return split_config(_encode(kept))
