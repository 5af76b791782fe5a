"""The probes of chat and text completions, and of responses where a model has no chat."""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec.structs import replace

from catalog.capabilities import NativeFormat
from catalog.dialects.base import NativeBody, Operation, Reply
from endpoints.validation.calls import DeploymentCaller, Refused
from endpoints.validation.probes.streams import MAX_TOKENS, QUESTION, StreamedProbe

_MESSAGES: Final = [{"role": "user", "content": QUESTION}]
_LONGER: Final = 512
# The tokens of the question, with what servers write around it.
_PROMPT: Final = 64
# What a refusal of the bound speaks of: its name, its size, or a field that is not known.
_ABOUT_BOUND: Final = re.compile(
    r"max_|token|length|minimum|at least|greater|extra|forbidden|not permitted|unknown|unrecogni"
    r"|unsupported|unexpected",
    re.IGNORECASE,
)


_FIELDS: Final[dict[str, Any]] = {
    "input": [{"role": "user", "content": QUESTION}],
    "max_output_tokens": MAX_TOKENS,
}
_ASKED: Final[dict[Operation, dict[str, Any]]] = {
    Operation.CHAT: {"messages": _MESSAGES},
    Operation.TEXT: {"prompt": QUESTION},
}


class ChatProbe(StreamedProbe):
    """Asks for a word, first plain and then streamed: in a chat, or by a text completion.

    A deployment may know the bound of the answer by one name alone, demand a larger one, or refuse
    any: it is asked again in another size, as long as both calls of a longer answer
    cost no more than ``VALIDATION_SPEND_LIMIT``.
    """

    check = "completion"

    def __init__(self, caller: DeploymentCaller) -> None:
        super().__init__(caller)
        self._bound: dict[str, int] = {"max_tokens": MAX_TOKENS}

    async def make_calls(self) -> None:
        reply = await self._ask_in_sizes()
        self.result.add_pass("completion", notes=reply.notes)
        self.note_reply(reply)
        self.note_bounds(reply.usage, next(iter(self._bound.values()), None))
        await self.read_stream(self._fields())

    async def _ask_in_sizes(self) -> Reply:
        """Returns the first reply; raises the first refusal if there is none."""
        try:
            return await self.caller.ask(self._fields())
        except Refused as refusal:
            if refusal.status not in (400, 422) or not _ABOUT_BOUND.search(refusal.message):
                raise
            first = refusal
        # Newer models of some providers accept only the newer name.
        newer = "max_completion_tokens" in first.message
        name = "max_completion_tokens" if newer else "max_tokens"
        bounds: list[dict[str, int]] = [
            {"max_completion_tokens": MAX_TOKENS},
            {name: _LONGER},
            {},
        ]
        for self._bound in bounds:
            longest = next(iter(self._bound.values()), self.caller.limits.longest)
            may_cost = 2 * (longest + _PROMPT)
            if longest > MAX_TOKENS and may_cost > self.caller.limits.tokens:
                hint = (
                    f"An answer of up to {longest} tokens was not asked for, because it may cost "
                    "more than VALIDATION_SPEND_LIMIT."
                )
                raise Refused(self.check, first.status, first.message, hint)
            try:
                return await self.caller.ask(self._fields())
            except Refused as refusal:
                if refusal.status not in (400, 422):
                    raise
        raise first

    def _fields(self) -> dict[str, Any]:
        return {**_ASKED[self.caller.call.operation], **self._bound}


class ResponsesProbe(StreamedProbe):
    """Asks for a word, first plain and then streamed, in the format that requests have.

    Such a model thinks before it writes, so an answer that ends at its bound passes.
    """

    check = "response"

    def __init__(self, caller: DeploymentCaller) -> None:
        super().__init__(caller)
        caller.call = replace(caller.call, native=NativeBody(NativeFormat.RESPONSES, dict(_FIELDS)))

    async def make_calls(self) -> None:
        reply = await self.caller.ask({})
        self.result.add_pass("response", notes=reply.notes)
        self.note_reply(reply)
        self.note_bounds(reply.usage, MAX_TOKENS)
        await self.read_stream({})
