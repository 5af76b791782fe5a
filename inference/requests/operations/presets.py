"""Presets: how a request names one, and how the fields of a preset join those of a request.

The merged fields are parsed like any request, so holds, filters and prices see them.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from catalog.dialects.base import Operation
from catalog.dialects.shared.raw import is_empty, is_null
from catalog.operations import OPERATIONS
from config.api.errors import NotFound
from config.api.text import NOT_STORABLE
from inference.requests.limits import check_body
from inference.requests.problems import field_error

_MARK: Final = "@preset/"
# A body without any of these names no preset. Clients in PHP escape the slash.
PRESET_MARKS: Final = (b'"preset"', b"@preset")
_MAX_SLUG: Final = 64
# Fields that belong together: a request that has one of them takes none from the preset.
_GROUPS: Final = (
    frozenset(("model", "models")),
    frozenset(("max_tokens", "max_completion_tokens")),
    frozenset(("reasoning", "reasoning_effort")),
    frozenset(("tools", "tool_choice", "parallel_tool_calls")),
)
# Fields that belong to one request, not to a preset.
_OF_ONE_REQUEST: Final = frozenset(
    (
        "messages", "prompt", "input", "stream", "stream_options", "user", "safety_identifier",
        "session_id", "trace", "preset", "usage", "debug", "metadata",
    )
)  # fmt: skip
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_names = msgspec.json.Decoder(list[str]).decode
_encode = msgspec.json.Encoder().encode
_NOTHING: Final = msgspec.Raw()


class PresetUnknown(NotFound):
    """The workspace of the key has no preset of this name."""

    error_type = "preset_not_found"


class AppliedPreset(msgspec.Struct, frozen=True):
    """The version of a preset that applies; ``config`` is the JSON of its fields.

    ``left_out`` names those of its fields that the interface of the request has no place for.
    """

    preset_id: UUID
    status: str
    config: str | None
    system_prompt: str | None
    left_out: tuple[str, ...] = ()


class NamedPreset(msgspec.Struct, frozen=True):
    """The name of a preset in a request.

    ``field`` is the field with the name, and ``fields`` are those of the request without it.
    """

    slug: str
    field: str
    fields: dict[str, msgspec.Raw]


def find_preset_name(body: bytes) -> NamedPreset | None:
    """Returns the preset that a request names; ``None`` without one.

    The body has passed no check yet: its keys must be unique before one of them is replaced. Raises
    :class:`InvalidRequest` for a name in the wrong place. A malformed body names none; its parser
    explains it.
    """
    if not any(mark in body for mark in PRESET_MARKS):
        return None
    check_body(body)
    try:
        fields = _decode_fields(body)
    except msgspec.DecodeError:
        return None
    slug, field = None, "preset"
    raw = fields.pop("preset", _NOTHING)
    if not is_empty(raw):
        slug = _read_text(raw)
        if slug is None:
            raise field_error("preset", "Expected str.")
        slug = slug.removeprefix(_MARK)
    name = _read_text(fields.get("model", _NOTHING))
    if name is not None and _MARK in name:
        base, _, in_model = name.partition(_MARK)
        if slug not in (None, in_model):
            raise field_error("preset", "Names another preset than 'model'.")
        slug, field = in_model, "model"
        del fields["model"]
        if base:
            fields["model"] = msgspec.Raw(_encode(base))
    if _has_mark(fields.get("models", _NOTHING)):
        raise field_error("models", "Name a preset in 'preset' or in 'model'.")
    return None if slug is None else NamedPreset(slug, field, fields)


def require_usable(named: NamedPreset, preset: AppliedPreset | None) -> AppliedPreset:
    """Returns the preset that a request names.

    Raises :class:`PresetUnknown`, and :class:`InvalidRequest` for one that is not active.
    """
    name = named.slug[:_MAX_SLUG]
    if preset is None:
        text = f"The workspace has no preset {name!r}."
        raise PresetUnknown(f"{named.field}: {text}", metadata={"fields": {named.field: text}})
    if preset.status != "active":
        raise field_error(named.field, f"The preset {name!r} is {preset.status}.")
    return preset


def leave_out_unshown(preset: AppliedPreset, shown: Set[str]) -> AppliedPreset:
    """Returns the preset for an interface that shows one choice, of these modalities.

    All else would be paid in vain.
    """
    config = _read_config(preset)
    left_out = [] if bytes(config.get("n", b"1")) in (b"1", b"null") else ["n"]
    modalities = config.get("modalities", _NOTHING)
    if not is_null(modalities) and not shown >= {*_decode_names(modalities)}:
        left_out += [name for name in ("modalities", "audio") if name in config]
    if not left_out:
        return preset
    kept = {name: raw for name, raw in config.items() if name not in left_out}
    return replace(preset, config=_encode(kept).decode(), left_out=tuple(left_out))


def name_models(named: NamedPreset, preset: AppliedPreset) -> bytes:
    """Returns the body of a request with the models of its preset, if it names none itself."""
    fields = named.fields
    if not _has_any(fields, _GROUPS[0]):
        config = _read_config(preset)
        fields.update({name: config[name] for name in _GROUPS[0] if name in config})
    return _encode(fields)


def merge_preset(operation: Operation, body: bytes, preset: AppliedPreset) -> bytes:
    """Returns a request in chat's format with the fields of a preset that it does not set itself.

    A null field is not set. The members of ``provider`` are merged one by one. The system prompt of
    the preset goes before the messages.
    """
    fields = _decode_fields(body)
    config = _read_config(preset)
    for group in _GROUPS:
        if _has_any(fields, group):
            for name in group:
                config.pop(name, None)
    for name, raw in config.items():
        if not _has_any(fields, (name,)):
            fields[name] = raw
        elif name == "provider":
            fields[name] = _merge_objects(raw, fields[name])
    if preset.system_prompt:
        if not OPERATIONS[operation].has_messages:
            raise field_error("preset", f"Has a system prompt, which /{operation} does not take.")
        fields["messages"] = _put_first(preset.system_prompt, fields.get("messages"))
    return _encode(fields)


def split_config(chat: bytes) -> tuple[str, str | None]:
    """Returns the fields of a chat request that a preset keeps, as JSON, and its system prompt.

    The system prompt is the text of the messages of the system that stand first. Raises
    :class:`InvalidRequest` for one that is not only text.
    """
    fields: dict[str, Any] = msgspec.json.decode(chat)
    texts: list[str] = []
    for position, message in enumerate(fields.get("messages") or ()):
        if message.get("role") not in ("system", "developer"):
            break
        content = message.get("content") or ""
        # A part without a text stands for itself.
        parts = [content] if isinstance(content, str) else [p.get("text", p) for p in content]
        if not all(isinstance(text, str | None) for text in parts):
            raise field_error(f"messages[{position}].content", "A preset keeps text alone.")
        if NOT_STORABLE.search("".join(filter(None, parts))):
            raise field_error(f"messages[{position}].content", "Must not contain NUL.")
        texts += filter(None, parts)
    kept = {
        name: value
        for name, value in fields.items()
        if name not in _OF_ONE_REQUEST and value is not None
    }
    return _encode(kept).decode(), "\n\n".join(texts) or None


def _read_config(preset: AppliedPreset) -> dict[str, msgspec.Raw]:
    return _decode_fields(preset.config or "{}")


def _has_any(fields: Mapping[str, msgspec.Raw], names: Any) -> bool:
    return any(not is_null(fields.get(name, _NOTHING)) for name in names)


def _has_mark(raw: msgspec.Raw) -> bool:
    try:
        return bool(raw) and any(_MARK in name for name in _decode_names(raw))
    except msgspec.DecodeError:
        return False


def _read_text(raw: msgspec.Raw) -> str | None:
    try:
        return _decode_text(raw) if raw else None
    except msgspec.DecodeError:
        return None


def _merge_objects(default: msgspec.Raw, own: msgspec.Raw) -> msgspec.Raw:
    """Returns both objects as one, whose members are its own first; its own value otherwise."""
    try:
        return msgspec.Raw(_encode({**_decode_fields(default), **_decode_fields(own)}))
    except msgspec.DecodeError:
        return own


def _put_first(text: str, messages: msgspec.Raw | None) -> msgspec.Raw:
    """Returns the messages behind a system prompt; malformed ones stay for their parser."""
    rest = bytes(messages or b"").lstrip()
    inner = rest[1:].lstrip()
    if not rest.startswith(b"[") or inner.startswith(b"]"):
        return msgspec.Raw(rest or b"null")
    first = _encode({"role": "system", "content": text})
    return msgspec.Raw(b"[" + first + b"," + inner)
