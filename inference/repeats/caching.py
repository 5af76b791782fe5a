"""The response cache of an organization: what a request says of it, and what it answers with."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid5

import msgspec
from msgspec.structs import asdict

from config.api.errors import InvalidRequest
from config.clocks.clock import clock
from config.peppers import REQUEST, oldest_pepper
from inference.admission.copies.catalog import host_of_credential
from inference.admission.decide import Admission
from inference.exchange.rendering import DONE
from inference.faces.connection import RequestHead
from inference.requests.messages.relay import STOP
from inference.routing.routes import Candidate

_CACHE: Final = b"x-openrouter-cache"
_TTL: Final = b"x-openrouter-cache-ttl"
_CLEAR: Final = b"x-openrouter-cache-clear"
CACHE_HEADERS: Final = (_CACHE, _TTL, _CLEAR)
_FLAGS: Final = {"true": True, "false": False}
_SECONDS: Final = re.compile("[1-9][0-9]{0,4}")
_MOST_SECONDS: Final = 86_400
_DEFAULT_SECONDS: Final = 300
_METADATA: Final = "openrouter_metadata"
# What an endpoint states for the choice of endpoints and for estimates: it changes no answer.
_BESIDE_ANSWERS: Final = frozenset({"bound", "estimate", "routing"})
_DATA: Final = b"data: "
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class CacheWish(NamedTuple):
    """The headers of a request that concern the response cache.

    ``is_wanted`` is ``None`` if they leave it to the workspace. ``seconds`` is the lifetime of a
    new entry, and ``is_cleared`` asks for a new one in any case.
    """

    is_wanted: bool | None = None
    seconds: int = _DEFAULT_SECONDS
    is_cleared: bool = False


_NO_WISH: Final = CacheWish()


def read_wish(head: RequestHead) -> CacheWish:
    """Returns what a request says of the cache; raises :class:`InvalidRequest`."""
    if head.header_names.isdisjoint(CACHE_HEADERS):
        return _NO_WISH
    seconds = _DEFAULT_SECONDS
    if (text := head.header(_TTL)) is not None:
        seconds = int(text) if _SECONDS.fullmatch(text) else 0
        if not 0 < seconds <= _MOST_SECONDS:
            raise InvalidRequest(
                f"X-OpenRouter-Cache-TTL: must be a number of seconds from 1 to {_MOST_SECONDS}."
            )
    is_cleared = _read_flag(head, _CLEAR, "X-OpenRouter-Cache-Clear")
    return CacheWish(_read_flag(head, _CACHE, "X-OpenRouter-Cache"), seconds, bool(is_cleared))


def _read_flag(head: RequestHead, name: bytes, shown: str) -> bool | None:
    text = head.header(name)
    if text is None:
        return None
    flag = _FLAGS.get(text.lower())
    if flag is None:
        raise InvalidRequest(f"{shown}: must be true or false.")
    return flag


def make_cache_key(head: RequestHead, admission: Admission) -> bytes:
    """Returns the key of an admitted request among the entries of its organization.

    It has the route, the body and its headers, what is sent of it after its content filters, and
    the workspace. Which endpoints the caller may use is compared with each entry.
    """
    request = admission.request
    parts = (
        head.path.encode(),
        head.digest,
        admission.authority.workspace_id.bytes,
        (admission.region or "").encode(),
        repr(admission.filters).encode(),
        admission.selection.requested.encode(),
        _encode(request.fields),
        # A preset may have changed them, which no body says.
        _encode(request.preferences.options),
        b"" if request.native is None else _encode(request.native.fields),
    )
    found = hashlib.sha256()
    for part in parts:
        found.update(b"%d:" % len(part))
        found.update(part)
    return bytes.fromhex(oldest_pepper(REQUEST).digest(found.hexdigest()))


def identify_deployment(candidate: Candidate) -> UUID:
    """Returns the id of what answers as a candidate: its subject, with the present deployment.

    An endpoint keeps its id when its deployment is replaced. A price is not in it.
    """
    route = candidate.route
    parts = (
        route.dialect,
        route.base_url or host_of_credential(route.dialect or "", candidate.secret),
        route.upstream_model_id,
        route.quantization,
        [item for item in asdict(route.abilities).items() if item[0] not in _BESIDE_ANSWERS],
    )
    return uuid5(candidate.subject, _encode(parts).decode())


def renew_reply(
    body: memoryview, source: str, generation_id: str, metadata: Mapping[str, Any]
) -> bytes:
    """Returns a whole answer for another generation, at no cost."""
    fields: dict[str, Any] = dict(_decode(_rename(body, source, generation_id)))
    if "created" in fields:
        fields["created"] = int(clock.time())
    return _encode(_renew(fields, metadata))


def renew_events(
    body: memoryview, source: str, generation_id: str, metadata: Mapping[str, Any]
) -> bytes:
    """Returns the events of a stream for another generation, at no cost.

    The event before the end mark has the usage.
    """
    events = _rename(body, source, generation_id)
    for end in (DONE, STOP):
        if events.endswith(b"\n\n" + end):
            stop = len(events) - len(end) - 2
            before = events.rfind(b"\n\n", 0, stop)
            start = 0 if before < 0 else before + 2
            name, _, data = events[start:stop].partition(_DATA)
            fields = _renew(dict(_decode(data)), metadata)
            # A line end between raw values would end the event.
            data = _encode(fields).replace(b"\n", b" ").replace(b"\r", b" ")
            return b"".join((memoryview(events)[:start], name, _DATA, data, b"\n\n", end))
    return events


def _rename(body: memoryview, source: str, generation_id: str) -> bytes:
    return bytes(body).replace(source.encode(), generation_id.encode())


def _renew(fields: dict[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces the metadata, and sets every cost to 0."""
    if "usage" not in fields and "response" in fields:
        # The last event of Responses, which has both in its response.
        return {**fields, "response": _renew(dict(_decode(fields["response"])), metadata)}
    fields.pop(_METADATA, None)
    if "usage" in fields:
        usage = msgspec.json.decode(fields["usage"])
        usage["cost"] = 0
        if details := usage.get("cost_details"):
            usage["cost_details"] = {name: 0 for name in details if name != "rules"}
        fields["usage"] = usage
    return {**fields, **metadata}
