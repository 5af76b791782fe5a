"""Suspects: organizations whose rows another transaction has locked lately."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

# How long an organization stays apart after its last blocked statement. Each further lock within
# the memory doubles it, so that short repeated locks do not stop the shared lanes every time.
_FIRST_SECONDS: Final = 1.0
# How long it stays apart after a lock that it met in a batch with others: until its own statement
# has shown whether the lock is held for long.
_WARNED_SECONDS: Final = 0.5
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
        if suspect.until <= now or not suspect.strikes:
            suspect.strikes += 1
        seconds = min(_FIRST_SECONDS * 2 ** (suspect.strikes - 1), _LONGEST_SECONDS)
        suspect.until = now + seconds

    def warn(self, organization_id: UUID, now: float) -> None:
        """Records that a statement of several organizations met a lock of this one."""
        self._forget(now)
        suspect = self._suspects.setdefault(organization_id, _Suspect(0, 0.0))
        suspect.until = max(suspect.until, now + _WARNED_SECONDS)

    def has(self, organization_id: UUID, now: float) -> bool:
        """Returns whether the organization is to be served apart."""
        suspect = self._suspects.get(organization_id)
        return suspect is not None and suspect.until > now

    def _forget(self, now: float) -> None:
        for organization_id, suspect in list(self._suspects.items()):
            if suspect.until + _REMEMBERED_SECONDS < now:
                del self._suspects[organization_id]
