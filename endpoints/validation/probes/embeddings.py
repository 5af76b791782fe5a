"""The probe of embeddings."""

from __future__ import annotations

from typing import Final

import msgspec

from catalog.dialects.base import Reply
from endpoints.validation.probes.base import Probe

_INPUT: Final = "ready"
_TWO_INPUTS: Final = ("ready", "A second text, which has more words than the first one.")
_read_vectors: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_read_numbers: Final = msgspec.json.Decoder(list[float]).decode


class EmbeddingsProbe(Probe):
    """Asks for the vector of a text, then for it and another one: all have the same length."""

    check = "embeddings"

    async def make_calls(self) -> None:
        reply = await self.caller.ask({"input": _INPUT})
        lengths = self._measure(reply, vectors=1)
        self.note_reply(reply)
        reply = await self.caller.ask({"input": list(_TWO_INPUTS)})
        lengths |= self._measure(reply, vectors=2)
        self.note(reply.model, reply.usage)
        if len(lengths) > 1:
            raise self.refuse("The vectors of the answers differ in length.")
        self.result.evidence["dimensions"] = lengths.pop()
        self.result.add_pass("embeddings")

    def _measure(self, reply: Reply, *, vectors: int) -> set[int]:
        """Returns the lengths of the vectors; raises :class:`CheckFailed` if one has no numbers."""
        try:
            given = [each["embedding"] for each in _read_vectors(reply.fields["data"])]
            vectors_of = [_read_numbers(vector) for vector in given]
        except (msgspec.DecodeError, KeyError):
            raise self.refuse("An embedding of the answer is not a list of numbers.") from None
        if len(given) != vectors:
            raise self.refuse(f"The answer has {len(given)} embeddings instead of {vectors}.")
        if not all(vectors_of):
            raise self.refuse("An embedding of the answer is empty.")
        if not all(map(any, vectors_of)):
            raise self.refuse("An embedding of the answer has zeros alone.")
        return {len(vector) for vector in vectors_of}
