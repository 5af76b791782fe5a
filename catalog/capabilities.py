"""The abilities of a model by which a wire format decides how to ask for it; pure.

They are columns of the catalogue's models. No dialect looks at the name of a model, so a new model
is a new row, and a deployment may have any name.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import Final

import msgspec


class NativeFormat(StrEnum):
    """The format in which a cloud serves the models of several authors, each in its author's."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    # OpenAI serves some models by Responses alone, and others by both.
    RESPONSES = "responses"
    BOTH = "openai_responses"


class ThinkingControl(StrEnum):
    """The parameter that limits the thinking of a model: an effort, or a budget of tokens."""

    EFFORT = "effort"
    BUDGET = "budget"


class StatedCapabilities(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The abilities that a catalogue file states of a model; columns store them.

    The defaults are those of a model that nobody has described.

    ``native_format`` matters to Azure, Bedrock and Vertex, and at OpenAI and Azure it says whether
    the model speaks Responses. ``thinking`` matters to the formats of Anthropic and Gemini. A model
    that ``thinks_between_tools`` always does so, and cannot be forced to call a tool.
    ``combines_sampling`` says that it accepts a temperature and a top_p together. Both of these
    matter to Anthropic's format.
    """

    native_format: NativeFormat = NativeFormat.OPENAI
    thinking: ThinkingControl = ThinkingControl.EFFORT
    thinks_between_tools: bool = False
    combines_sampling: bool = False


class Capabilities(StatedCapabilities, frozen=True, forbid_unknown_fields=True):
    """The abilities of one model: those that are stated, and those that its author tells.

    ``has_short_call_ids`` says that ids of tool calls have nine letters and digits, in OpenAI's
    format.
    """

    has_short_call_ids: bool = False

    @property
    def stated(self) -> StatedCapabilities:
        names = StatedCapabilities.__struct_fields__
        return StatedCapabilities(*(getattr(self, name) for name in names))

    @property
    def is_anthropic(self) -> bool:
        return self.native_format == NativeFormat.ANTHROPIC

    @property
    def has_responses(self) -> bool:
        return self.native_format in _RESPONSES

    @property
    def has_thinking_budget(self) -> bool:
        return self.thinking == ThinkingControl.BUDGET


_RESPONSES: Final = (NativeFormat.RESPONSES, NativeFormat.BOTH)
UNDESCRIBED: Final = Capabilities()
# The formats of authors whose models are served in no other format.
_NATIVE_FORMATS: Final = {"anthropic": NativeFormat.ANTHROPIC}
# The authors whose servers, and whose tokenizers at others, accept no other ids of tool calls.
_SHORT_CALL_IDS: Final = frozenset(("mistralai", "mistral"))


@cache
def read_capabilities(
    native_format: str,
    thinking: str,
    thinks_between_tools: bool,
    combines_sampling: bool,
    author: str,
) -> Capabilities:
    """Returns the capabilities of a row; rows with equal columns share one object."""
    return Capabilities(
        NativeFormat(native_format),
        ThinkingControl(thinking),
        thinks_between_tools,
        combines_sampling,
        author in _SHORT_CALL_IDS,
    )


def complete_capabilities(stated: StatedCapabilities, slug: str) -> Capabilities:
    """Returns the capabilities of a model whose row of a catalogue file states these."""
    return read_capabilities(*msgspec.structs.astuple(stated), slug.partition("/")[0])


def assume_capabilities(slug: str) -> StatedCapabilities:
    """Returns the capabilities that a new row gets when nobody states them: those of its author."""
    author, _, _ = slug.partition("/")
    return StatedCapabilities(native_format=_NATIVE_FORMATS.get(author, NativeFormat.OPENAI))
