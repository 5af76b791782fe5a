"""Suspects: organizations whose rows another transaction has locked lately."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

# How long an organization stays apart after its last blocked statement. Each further lock within
# the memory doubles it, so that short repeated locks do not stop the shared lanes every time.
_FIRST_SECONDS: Final = 1.0
_LONGEST_SECONDS: Final = 32.0
_REMEMBERED_SECONDS: Final = 60.0


@dataclass(slots=True)
class _Suspect:
    strikes: int
    until: float


class Suspects:
    """The organizations that the lanes of a worker serve apart, each until a time.

    All lanes share them: a lock that stops an admission will stop the settlements too.
    """

    def __init__(self) -> None:
        self._suspects: dict[UUID, _Suspect] = {}

    def __bool__(self) -> bool:
        return bool(self._suspects)

    def accuse(self, organization_id: UUID, now: float) -> None:
        """Records that a statement of this organization alone met a lock."""
        self._forget(now)
        suspect = self._suspects.setdefault(organization_id, _Suspect(0, 0.0))
        if suspect.until <= now:
            suspect.strikes += 1
        seconds = min(_FIRST_SECONDS * 2 ** (suspect.strikes - 1), _LONGEST_SECONDS)
        suspect.until = now + seconds

    def has(self, organization_id: UUID, now: float) -> bool:
        """Returns whether the organization is to be served apart."""
        suspect = self._suspects.get(organization_id)
        return suspect is not None and suspect.until > now

    def _forget(self, now: float) -> None:
        for organization_id, suspect in list(self._suspects.items()):
            if suspect.until + _REMEMBERED_SECONDS < now:
                del self._suspects[organization_id]
