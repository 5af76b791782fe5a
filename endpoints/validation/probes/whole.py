"""The probes of embeddings, images and reranks, whose answers come whole."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from catalog.dialects.base import Ranked, Reply, Untranslatable
from endpoints.validation.calls import Refused
from endpoints.validation.probes.base import Probe

_INPUT: Final = "ready"
_TWO_INPUTS: Final = ("ready", "A second text, which has more words than the first one.")
_read_vectors: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_read_numbers: Final = msgspec.json.Decoder(list[float]).decode
_DRAWN: Final = "A black square."
# What most providers sell at the lowest price.
_CHEAPEST: Final = {"size": "1024x1024", "quality": "low"}
_QUERY: Final = "What is the capital of France?"
_DOCUMENTS: Final = ("Bread is made of flour and water.", "Paris is the capital of France.")


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


class ImagesProbe(Probe):
    """Asks for one image, the cheapest that the provider has.

    A provider without a choice of sizes and qualities refuses the first call, which is free, and is
    asked for its only image.
    """

    check = "images"
    most_completion_tokens: ClassVar = 32_768
    # A PNG of 2048x2048 has up to 12 MiB, and a third more in Base64.
    most_reply_bytes: ClassVar = 16 * 1_048_576

    async def make_calls(self) -> None:
        fields: dict[str, Any] = {"prompt": _DRAWN}
        try:
            reply = await self.caller.ask({**fields, **_CHEAPEST})
        except Untranslatable:
            reply = await self.caller.ask(fields)
        except Refused as refusal:
            if refusal.status not in (400, 422):
                raise
            reply = await self.caller.ask(fields)
        if reply.choices != 1:
            raise self.refuse(f"The answer has {reply.choices} images instead of 1.")
        [image] = reply.fields["data"]
        if "media_type" not in image:
            raise self.refuse("The answer has no data of an image, or of none that is known.")
        self.note_reply(reply)
        self.result.evidence["media_type"] = image["media_type"]
        self.result.add_pass("images")


class RerankProbe(Probe):
    """Asks for the order of two documents, then of the two in reverse: each has one score."""

    check = "rerank"

    async def make_calls(self) -> None:
        scores = []
        for documents in (_DOCUMENTS, _DOCUMENTS[::-1]):
            reply = await self.caller.ask({"query": _QUERY, "documents": list(documents)})
            found = self._read(reply)
            scores.append([found[documents.index(text)] for text in _DOCUMENTS])
            if len(scores) == 1:
                self.note_reply(reply)
            else:
                self.note(reply.model, reply.usage)
        self.result.evidence["scores"] = scores[0]
        self.result.add_pass("rerank")

    def _read(self, reply: Reply) -> dict[int, float]:
        """Returns the score of each document; raises :class:`CheckFailed` unless each has one."""
        results: list[Ranked] = reply.fields["results"]
        if sorted(each.index for each in results) != list(range(len(_DOCUMENTS))):
            raise self.refuse("The answer does not have one result for each document.")
        return {each.index: each.relevance_score for each in results}
