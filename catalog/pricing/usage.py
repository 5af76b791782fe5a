"""What a generation used: the tokens and the other units that providers bill."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """The usage of a generation: tokens, and what else providers bill.

    ``cached``, ``cache_write``, ``cache_write_1h``, ``audio``, ``audio_cached`` (cached tokens of
    audio) and ``image_prompt`` (tokens of images) are parts of ``prompt``. ``reasoning``,
    ``image_output`` (tokens of generated images) and ``audio_output`` are parts of ``completion``.
    An answer without tokens has 0 of both.

    ``images`` is the number of images in the prompt, and ``output_images`` that of the answer;
    ``image_variant`` is their size and quality in the words of the price list, for instance
    ``1024x1024/high``. ``searches`` counts searches of the web, or the search units of a rerank.
    ``citations`` are tokens of pages that a model has read by itself, and ``research`` those with
    which it reasoned about them: they stand beside prompt and completion.
    ``milliseconds`` is the length of the audio, in or out, and ``characters`` that of the text to
    speak.
    """

    prompt: int
    completion: int
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0
    images: int = 0
    image_output: int = 0
    cache_write_1h: int = 0
    audio: int = 0
    audio_cached: int = 0
    audio_output: int = 0
    searches: int = 0
    milliseconds: int = 0
    characters: int = 0
    output_images: int = 0
    image_variant: str = ""
    image_prompt: int = 0
    citations: int = 0
    research: int = 0

    @property
    def units(self) -> dict[str, Any] | None:
        """Returns what columns of tokens do not say; ``None`` for a usage of plain tokens."""
        values = _get_units(self)
        if not any(values):
            return None
        return {name: value for name, value in zip(UNITS, values, strict=True) if value}


# The fields that are no column of a generation.
UNITS: Final = (
    "images", "image_output", "cache_write_1h", "audio", "audio_cached", "audio_output",
    "searches", "milliseconds", "characters", "output_images", "image_variant", "image_prompt",
    "citations", "research",
)  # fmt: skip
_get_units: Final = attrgetter(*UNITS)
# The parts of the prompt's tokens, and those of the completion's tokens.
PROMPT_PARTS: Final = (
    "cached", "cache_write", "cache_write_1h", "audio", "audio_cached", "image_prompt",
)  # fmt: skip
COMPLETION_PARTS: Final = ("reasoning", "image_output", "audio_output")
# What is counted beside the tokens of prompt and completion.
PIECES: Final = (
    "images", "searches", "milliseconds", "characters", "output_images", "citations", "research",
)  # fmt: skip
