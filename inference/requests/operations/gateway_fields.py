"""The fields of a request that the gateway reads itself and never sends.

Each of them does what it says, or is refused by name. A value that sets nothing is always accepted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from catalog.dialects.base import Operation
from catalog.dialects.shared.raw import is_unset
from catalog.operations import OPERATIONS
from inference.requests.operations.plugins import Plugins, WebSearch, read_plugins
from inference.requests.problems import explain_decode_error, field_error, require_user
from inference.requests.schemas import User

# The size of a trace as compact JSON.
MAX_TRACE_BYTES: Final = 8_192
_ONLINE: Final = ":online"
GATEWAY_FIELDS: Final = frozenset(
    (
        "model", "models", "provider", "plugins", "route", "session_id", "trace", "transforms",
        "debug", "deferred_tools", "stop_server_tools_when", "usage", "user", "safety_identifier",
        "preset",
    )
)  # fmt: skip
_REFUSED: Final = {
    "debug": "This service does not show what it sends to a provider.",
    "deferred_tools": "This service does not search tools. Send them in 'tools'.",
    "stop_server_tools_when": "This service runs no tools itself, so it cannot end their runs.",
    "preset": "Only chat and text completions take a preset.",
}
_CHECKED: Final = frozenset(
    (*_REFUSED, "plugins", "route", "trace", "safety_identifier", "transforms")
)
# Fields that may be empty, but whose members are the caller's: the trace, and two of chat that go
# upstream, where a value that sets nothing is refused.
_EMPTIABLE: Final = frozenset(("response_format", "tool_choice", "trace"))
MAY_BE_UNSET: Final = _CHECKED | _EMPTIABLE
_decode = msgspec.json.decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_trace = msgspec.json.Decoder(dict[str, Any]).decode
_decode_identifier = msgspec.json.Decoder(User).decode
_encode = msgspec.json.Encoder().encode


class Wishes(msgspec.Struct, frozen=True):
    """The fields of a request that the gateway itself reads.

    ``trace`` is the caller's trace as compact JSON. ``search`` is the search of the web that a
    plugin or a variant of the model asks for. ``identifier`` names the end user of a request that
    has no ``user``. ``reads_pdfs`` asks for the text of PDF files in place of them. ``shortening``
    is the field that asks to shorten a prompt that is too long, which is refused by its name.
    """

    trace: str | None = None
    search: WebSearch | None = None
    identifier: str | None = None
    reads_pdfs: bool = False
    shortening: str = ""


_NO_PLUGINS: Final = Plugins()
_NO_WISHES: Final = Wishes()


def drop_unset(fields: dict[str, msgspec.Raw]) -> bool:
    """Removes the fields that set nothing; returns whether there were any.

    Such a field may have any type. Nobody may read it later: no shape has checked it.
    """
    unset = [name for name in MAY_BE_UNSET.intersection(fields) if not _sets(name, fields[name])]
    for name in unset:
        del fields[name]
    return bool(unset)


def take_wishes(
    operation: Operation, fields: dict[str, msgspec.Raw], models: Iterable[str]
) -> Wishes:
    """Removes the gateway's fields from a request; returns what they ask for.

    None of them is unset. Raises :class:`InvalidRequest` with the name of a field that asks for
    what this service does not do.
    """
    found = {name: fields.pop(name) for name in GATEWAY_FIELDS.intersection(fields)}
    # One text is searched faster than each name.
    is_online = _ONLINE in " ".join(models)
    if _CHECKED.isdisjoint(found) and not is_online:
        return _NO_WISHES
    for name in _REFUSED.keys() & found.keys():
        _refuse(name, found[name])
    if "route" in found and _read_value(found["route"]) != "fallback":
        raise field_error("route", "Only 'fallback' is known: models are tried in their order.")
    shortening = ""
    if "transforms" in found:
        if _read_value(found["transforms"]) != ["middle-out"]:
            raise field_error("transforms", "Only ['middle-out'] is known.")
        shortening = "transforms"
    plugins = read_plugins(found["plugins"]) if "plugins" in found else _NO_PLUGINS
    search = plugins.search
    if search is None and is_online:
        search = WebSearch("model")
    row = OPERATIONS[operation]
    if search is not None and not row.is_written:
        raise field_error(search.field, f"A request to /{operation} cannot search the web.")
    if plugins.pdf_field is not None and not row.is_written:
        raise field_error(plugins.pdf_field, f"A request to /{operation} has no files to read.")
    shortening = shortening or plugins.shortening
    if shortening and not row.is_written:
        raise field_error(shortening, f"A request to /{operation} has no prompt to shorten.")
    return Wishes(
        trace=_read_trace(found["trace"]) if "trace" in found else None,
        search=search,
        identifier=_read_identifier(found.get("safety_identifier")),
        # A prompt of a text completion has no files.
        reads_pdfs=plugins.pdf_field is not None and row.has_messages,
        shortening=shortening,
    )


def _refuse(name: str, raw: msgspec.Raw) -> None:
    """Raises :class:`InvalidRequest` with the name of the field, or of its member."""
    text = _REFUSED[name]
    try:
        members = _decode_object(raw)
    except msgspec.ValidationError:
        raise field_error(name, text) from None
    member = next(key for key, value in members.items() if is_set(_read_value(value)))
    raise field_error(f"{name}.{member}"[:128], text)


def _sets(name: str, raw: msgspec.Raw) -> bool:
    """Returns whether a field sets anything, or a member of it if the gateway has its members."""
    return not is_unset(raw) if name in _EMPTIABLE else is_set(_read_value(raw))


def _read_value(raw: msgspec.Raw) -> Any:
    """Decodes a value; one with a number out of range stays as it is."""
    try:
        return _decode(raw)
    except msgspec.DecodeError:
        return raw


def is_set(value: Any) -> bool:
    """Tells whether a value, or any member of an object, asks for anything."""
    if isinstance(value, dict):
        return any(map(is_set, value.values()))
    return value is not None and value is not False and value not in ("", [])


def _read_trace(raw: msgspec.Raw) -> str:
    """Returns a trace as compact JSON."""
    text: bytes = _encode(_read(_decode_trace, raw, "trace"))
    if len(text) > MAX_TRACE_BYTES:
        raise field_error(
            "trace", f"Has {len(text):,} bytes as JSON; send at most {MAX_TRACE_BYTES:,}."
        )
    return text.decode()


def _read_identifier(raw: msgspec.Raw | None) -> str | None:
    if raw is None:
        return None
    identifier: str = _read(_decode_identifier, raw, "safety_identifier")
    require_user("safety_identifier", identifier)
    return identifier


def _read(decode: Any, raw: msgspec.Raw, name: str) -> Any:
    try:
        return decode(raw)
    except msgspec.ValidationError as exc:
        raise explain_decode_error(str(exc), within=name) from None
    except msgspec.DecodeError:
        raise field_error(name, "Is not valid JSON.") from None
