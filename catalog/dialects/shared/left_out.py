"""Names the fields of a request that are not sent, because nobody there has a word for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

# What these fields say with these values is so without them, too.
_USUAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "frequency_penalty": (0,),
    "min_p": (0,),
    "modalities": ([], ["text"]),
    "n": (1,),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"}, {}),
    "service_tier": ("", "auto", "default"),
    "temperature": (1,),
    "tool_choice": ("auto", ""),
    "top_a": (0,),
    "top_logprobs": (0,),
    "top_p": (1,),
}
# The longest value that may say nothing.
_LONGEST: Final = 64
_encode = msgspec.json.Encoder().encode


def name_asked(fields: Mapping[str, Any], names: Iterable[str]) -> frozenset[str]:
    """Returns those of the names whose fields ask for what would not be so without them."""
    return frozenset(name for name in names if _is_asked(name, fields[name]))


def _is_asked(name: str, value: Any) -> bool:
    raw = value if isinstance(value, msgspec.Raw) else _encode(value)
    if len(raw) > _LONGEST:
        return True
    try:
        given = msgspec.json.decode(raw)
    except msgspec.DecodeError:  # a number out of range
        return True
    if name in _USUAL and given is not None:
        return given not in _USUAL[name]
    return given is not None and given is not False and given not in ("", [], {})
