"""Builds requests: OpenAI's fields without the extensions that a server refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from catalog.abilities import UNSTATED
from catalog.dialects.base import Call, Operation, decode_object
from catalog.dialects.openai.abilities import (
    UPDATE,
    choose_effort,
    decode_wish,
    read_wish,
    settle_effort,
    shape_messages,
    write_switch,
)
from catalog.dialects.openai.fields import (
    TIDIED,
    adapt_fields,
    drop_lifetimes,
    order_roles,
    repair_calls,
    return_thoughts,
    tidy_fields,
)
from catalog.dialects.openai.images import build_images
from catalog.dialects.openai.speech import write_speech
from catalog.dialects.openai.transcriptions import write_transcription
from catalog.dialects.shared.constraints import MISTRAL, OPENAI, SHORT_IDS, name_media_types
from catalog.dialects.shared.multipart import MultipartContent
from catalog.dialects.shared.raw import LONG_BYTES, Piece, encode_pieces
from catalog.dialects.shared.searches import WEB_SEARCH_OPTIONS, write_options
from config.egress import OutboundRequest

_encode = msgspec.json.Encoder().encode
_INCLUDE_USAGE: Final = msgspec.Raw(b'{"include_usage":true}')
# Members of messages, parts and tools that OpenAI's interface lacks and its servers refuse; each
# with the parameter by which an endpoint declares support, and with its quoted name.
_EXTENSIONS: Final = (
    ("cache_control", "cache_control", b'"cache_control"'),
    ("reasoning", "reasoning_details", b'"reasoning"'),
    ("reasoning_details", "reasoning_details", b'"reasoning_details"'),
)
# The extension that is named where it is left out: it asks for something.
_CACHE_MARK: Final = "cache_control"
# An id of a call that is empty or too long, or another long id.
_ODD_ID: Final = re.compile(rb'"(?:tool_call_)?id"\s*:\s*"(?:"|[^"\\]{41})')
# What may have to be adapted: earlier calls, thoughts, marks of cached prefixes, a wrong name.
_MARKED: Final = re.compile(
    rb'"(?:tool_call(?:s|_id)"|reasoning(?:_details|_content)?"|cache_control"'
    rb"|(?i:data):(?:;|application\\?/(?:octet-stream|x-pdf)|image\\?/(?!(?:png|jpeg|gif|webp);base64,)|[a-zA-Z]+\\?/[a-z.-]*[A-Z]))"
)
# Mistral's order of roles matters as soon as there is an answer.
_ANSWERED: Final = re.compile(rb'"assistant"|' + _MARKED.pattern)
_MEDIA: Final = (b'"image_url"', b'"video_url"', b'"input_audio"', b'"file"')


# The writers of operations whose requests are not the JSON of completions.
_WRITERS: Final[Mapping[Operation, Callable[[Call], MultipartContent]]] = {
    Operation.SPEECH: write_speech,
    Operation.TRANSCRIPTION: write_transcription,
}
# Mistral's own servers refuse fields that others of this format need, vLLM with its models too.
MISTRAL_HOST: Final = ".mistral.ai/"
# The operations whose answers any server may stream.
_STREAMED: Final = frozenset((Operation.CHAT, Operation.TEXT))


def build_request(
    call: Call, url: str, login: Mapping[str, str], *, has_signatures: bool = False
) -> OutboundRequest:
    """Returns the HTTP request of a call to this URL; the headers of ``login`` authenticate it.

    An endpoint that lists its parameters gets only the extensions on its list; an endpoint without
    a list gets all of them. ``has_signatures`` is true when the server signs tool calls and
    requires the signatures in later requests. Raises :class:`base.Untranslatable`.
    """
    if call.operation is Operation.IMAGES:
        return build_images(call, url, login)
    if (write := _WRITERS.get(call.operation)) is not None:
        content = write(call)
        return OutboundRequest(
            "POST", url, {**login, **content.headers}, content.body, content.rest
        )
    fields = dict(call.fields)
    listed = call.supported_parameters
    if call.most_searches and listed is not None and WEB_SEARCH_OPTIONS in listed:
        fields = write_options(fields)
    fields["model"] = call.model
    left_out: frozenset[str] = frozenset()
    if listed is not None or call.abilities.reasoning.switch is not None:
        left_out = _set_effort(fields, call)
    if call.abilities is not UNSTATED:
        shape_messages(fields, call.abilities)
    if call.stream or call.operation in _STREAMED:
        # Some servers stream unless they are told not to.
        fields["stream"] = call.stream
    if call.stream and MISTRAL_HOST not in url:
        fields["stream_options"] = _add_include_usage(fields.get("stream_options"))
    if not call.keeps_lifetimes:
        fields = drop_lifetimes(fields)
    if not TIDIED.isdisjoint(fields):
        tidy_fields(fields)
    body, *rest = pieces = _write_pieces(fields)
    marked = _ANSWERED if call.capabilities.has_short_call_ids else _MARKED
    if any(marked.search(piece) for piece in pieces):
        whole = b"".join(pieces)
        body, rest = _adapt_body(call, fields, whole, has_signatures=has_signatures), []
        if listed is not None and _CACHE_MARK not in listed and b'"cache_control"' in whole:
            left_out |= {_CACHE_MARK}
    return OutboundRequest(
        method="POST",
        url=url,
        headers={
            **login,
            "Content-Type": "application/json",
            "Accept": "text/event-stream" if call.stream else "application/json",
        },
        body=bytes(body),
        rest=tuple(rest),
        left_out=left_out,
    )


def _adapt_body(call: Call, fields: dict[str, Any], body: bytes, *, has_signatures: bool) -> bytes:
    """Returns a body with a mark as its server accepts it; the same bytes if nothing is wrong."""
    listed = call.supported_parameters
    target = MISTRAL if call.capabilities.has_short_call_ids else OPENAI
    is_ordered = target.has_strict_roles and b'"assistant"' in body
    if b'"tool_call' in body or is_ordered:
        if target is OPENAI and _ODD_ID.search(body):
            target = SHORT_IDS
        repaired = repair_calls(fields, target)
        if repaired is not fields:
            fields, body = repaired, _write_body(repaired)
    if b'"reasoning' in body and _returns_thoughts(call):
        returned = return_thoughts(fields)
        if returned is not fields:
            fields, body = returned, _write_body(returned)
    unsupported = {
        member
        for member, parameter, mark in _EXTENSIONS
        if listed is not None and parameter not in listed and mark in body
    }
    if b'"reasoning' in body and MISTRAL_HOST in (call.base_url or ""):
        unsupported |= {"reasoning", "reasoning_content", "reasoning_details"}
    restores_signatures = has_signatures and b'"tool_calls"' in body
    has_media = b'"tool_call_id"' in body and any(mark in body for mark in _MEDIA)
    if unsupported or restores_signatures or has_media:
        fields = adapt_fields(fields, unsupported, restores_signatures=restores_signatures)
        body = _write_body(fields)
    # The media of a result are a user's by now.
    if is_ordered and (ordered := order_roles(fields)) is not fields:
        body = _write_body(ordered)
    # Some servers know the type by its registered name alone.
    return name_media_types(body)


def _returns_thoughts(call: Call) -> bool:
    """Returns whether the thoughts of earlier answers go back as ``reasoning_content``.

    Where nobody has said it, an endpoint without a list gets them. One with a list gets them if its
    model thinks and has no efforts: OpenAI's own models, which refuse the member, have efforts.
    Mistral's servers refuse it for all models.
    """
    stated = call.abilities.reasoning
    if stated.must_return is not None:
        return stated.must_return
    if MISTRAL_HOST in (call.base_url or ""):
        return False
    listed = call.supported_parameters
    return listed is None or ("reasoning" in listed and "reasoning_effort" not in listed)


def _write_pieces(fields: dict[str, Any]) -> list[Piece]:
    """Encodes a body; long raw members are not copied, where an encoder copies them repeatedly."""
    raws = (value for value in fields.values() if isinstance(value, msgspec.Raw))
    if any(len(raw) > LONG_BYTES for raw in raws):
        return encode_pieces(fields)
    return [_encode(fields)]


def _write_body(fields: dict[str, Any]) -> bytes:
    return b"".join(_write_pieces(fields))


def _set_effort(fields: dict[str, Any], call: Call) -> frozenset[str]:
    """Writes the reasoning options as the endpoint's switch, or as ``reasoning_effort``.

    Drops them where it accepts neither, and returns the member of the messages that is lost then.
    The gateway itself hides the reasoning from callers that exclude it.
    """
    stated = call.abilities.reasoning
    has_word = "reasoning_effort" in (call.supported_parameters or ())
    is_updated = settle_effort(fields)
    if stated.switch is not None:
        asked = read_wish(fields)
        for name in ("reasoning", "include_reasoning", "reasoning_effort"):
            fields.pop(name, None)
        write_switch(fields, asked, stated)
        has_word = stated.switch != "none"
    else:
        reasoning = fields.pop("reasoning", None)
        fields.pop("include_reasoning", None)
        if not has_word:
            fields.pop("reasoning_effort", None)
        elif (wish := decode_wish(reasoning)) is not None and (effort := choose_effort(wish)):
            fields["reasoning_effort"] = effort
    return frozenset((UPDATE,)) if is_updated and not has_word else frozenset()


def _add_include_usage(options: Any) -> Any:
    """Returns the stream options with ``include_usage``; the caller's other options stay."""
    if options is None:
        return _INCLUDE_USAGE
    members = decode_object(bytes(options)) or {}
    return {**members, "include_usage": True}
