"""The providers that refuse the operator's credential, as all workers know them; pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

# A row stores no more of a provider's own words.
_REASON_LENGTH: Final = 600


@dataclass(frozen=True, slots=True)
class RefusedCredential:
    """A refusal of the operator's credential, for the console.

    ``label`` has the last characters of the secret that was refused: a secret that has replaced it
    meanwhile is not marked.
    """

    provider: str
    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class RefusedOwn:
    """A refusal of an organization's own credential, for its owner; the label is as above."""

    credential_id: uuid.UUID
    label: str
    status: int


class RefusedCredentials:
    """One worker's knowledge of refused credentials, by the slug of their provider.

    Of own credentials, it only keeps what the table does not have yet.

    Each worker exchanges it with one small database table once a second. The first success with
    the credential removes the mark. Not thread-safe.
    """

    def __init__(self) -> None:
        # Empty nearly always, so that a success costs one test.
        self.providers: frozenset[str] = frozenset()
        self._fresh: dict[str, RefusedCredential] = {}
        self._cleared: set[str] = set()
        self._own: dict[uuid.UUID, RefusedOwn | None] = {}

    def mark(self, provider: str, label: str, reason: str) -> None:
        """Notes that a provider refuses the operator's credential."""
        self._cleared.discard(provider)
        self._fresh[provider] = RefusedCredential(provider, label, reason[:_REASON_LENGTH])
        self.providers |= {provider}

    def clear(self, provider: str) -> None:
        """Notes that a provider accepts the operator's credential again."""
        if provider in self.providers:
            self._fresh.pop(provider, None)
            self._cleared.add(provider)
            self.providers -= {provider}

    def mark_own(self, credential_id: uuid.UUID, label: str, status: int) -> None:
        """Notes that a provider refuses an own credential."""
        self._own[credential_id] = RefusedOwn(credential_id, label, status)

    def clear_own(self, credential_id: uuid.UUID) -> None:
        """Notes that a provider accepts an own credential again."""
        self._own[credential_id] = None

    def outgoing_own(self) -> dict[uuid.UUID, RefusedOwn | None]:
        """Returns the own credentials to mark, or to clear where there is no refusal."""
        return dict(self._own)

    def note_written(self, sent: dict[uuid.UUID, RefusedOwn | None]) -> None:
        """Forgets what was written of own credentials, unless it has changed meanwhile."""
        for key, refusal in sent.items():
            if self._own.get(key) is refusal:
                self._own.pop(key, None)

    def outgoing(self) -> tuple[list[RefusedCredential], list[str]]:
        """Returns the marks to write and the providers whose mark to remove.

        What was returned before and never merged is returned again: it was not written.
        """
        return list(self._fresh.values()), sorted(self._cleared)

    def merge(
        self, sent: tuple[Sequence[RefusedCredential], Sequence[str]], rows: Iterable[Sequence[str]]
    ) -> None:
        """Replaces the known marks by those of the table, after ``sent`` was written."""
        marks, cleared = sent
        for mark in marks:
            if self._fresh.get(mark.provider) is mark:
                del self._fresh[mark.provider]
        self._cleared -= set(cleared)
        known = {row[0] for row in rows} | self._fresh.keys()
        self.providers = frozenset(known - self._cleared)
