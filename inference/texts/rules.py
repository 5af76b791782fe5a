"""Whether the input and the output of a request are logged; the rules of a workspace."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

from accounts.models.terms import number_of_key
from catalog.dialects.base import Operation
from inference.requests.parsing import InferenceRequest

_HASHES: Final = 2**64
# The fields that are the input of each operation whose input and output are texts that
# ``GET /generation/content`` has a place for.
INPUTS: Final[Mapping[Operation, tuple[str, ...]]] = {
    Operation.CHAT: ("messages",),
    Operation.TEXT: ("prompt",),
    Operation.EMBEDDINGS: ("input",),
}


class Obstacle(StrEnum):
    """Why the texts of a request are not logged."""

    WORKSPACE = "workspace"
    OPERATOR = "operator"
    ZERO_DATA_RETENTION = "zero_data_retention"
    DATA_COLLECTION = "data_collection"
    OPERATION = "operation"
    API_KEY = "api_key"


class LoggingRules(NamedTuple):
    """The settings of a workspace that logs; ``keys`` are the numbers of its keys, ``None`` all."""

    sampling_rate: Decimal = Decimal(1)
    keys: frozenset[int] | None = None

    def find_obstacle(
        self, key_id: UUID, request: InferenceRequest, *, is_zdr: bool
    ) -> Obstacle | None:
        """Returns why no request like this one is logged; ``None`` if it may be sampled.

        ``is_zdr`` says that the organization or a guardrail demands zero data retention. A caller
        who denies data collection says it of this text, so it is not stored here either; a policy
        against training says it of providers.
        """
        if is_zdr or request.preferences.zdr:
            return Obstacle.ZERO_DATA_RETENTION
        if request.preferences.data_collection == "deny":
            return Obstacle.DATA_COLLECTION
        if request.operation not in INPUTS:
            return Obstacle.OPERATION
        if self.keys is not None and number_of_key(key_id) not in self.keys:
            return Obstacle.API_KEY
        return None

    def has_in_sample(self, generation_id: str) -> bool:
        """Returns whether a generation belongs to the sample; always the same for one id."""
        if self.sampling_rate == 1:
            return True
        drawn = hashlib.blake2b(generation_id.encode(), digest_size=8).digest()
        return int.from_bytes(drawn, "big") < self.sampling_rate * _HASHES
