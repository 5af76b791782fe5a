"""The probe of a rerank."""

from __future__ import annotations

from typing import Final

from catalog.dialects.base import Ranked, Reply
from endpoints.validation.probes.base import Probe

_QUERY: Final = "What is the capital of France?"
_DOCUMENTS: Final = ("Bread is made of flour and water.", "Paris is the capital of France.")


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
