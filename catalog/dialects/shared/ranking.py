"""The results of a rerank, as every dialect returns them."""

from __future__ import annotations

import msgspec


class Ranked(msgspec.Struct):
    """The relevance of one document, by its place in the request."""

    index: int
    relevance_score: float
