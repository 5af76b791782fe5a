"""Remembers what the SDKs of OpenAI and Anthropic send again by themselves."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final
from uuid import UUID

# The requests of an organization that a worker remembers, and the organizations: 13 MB at most.
_REQUESTS: Final = 256
_ORGANIZATIONS: Final = 256
_FIRST: Final = "0"

# The API key, the route and the hash of the body.
Marks = tuple[UUID, str, int]


class RetryMemory:
    """Finds the generation of the request that an SDK sends again after a lost connection.

    Each worker knows the requests that it has served itself. What is found is only told.
    """

    def __init__(self) -> None:
        self._organizations: OrderedDict[UUID, dict[Marks, str]] = OrderedDict()

    def note(
        self, organization_id: UUID, marks: Marks, count: str, generation_id: str
    ) -> str | None:
        """Remembers a request, and returns the generation that it repeats, if it is one.

        ``count`` is how often the SDK says that it has sent the request before.
        """
        requests = self._organizations.get(organization_id)
        if requests is None:
            requests = self._organizations[organization_id] = {}
            if len(self._organizations) > _ORGANIZATIONS:
                self._organizations.popitem(last=False)
        else:
            self._organizations.move_to_end(organization_id)
        # The newest comes last.
        earlier = requests.pop(marks, None)
        requests[marks] = generation_id
        if len(requests) > _REQUESTS:
            del requests[next(iter(requests))]
        return None if count == _FIRST else earlier
