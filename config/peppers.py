"""Peppers: the secrets under which API keys, end users, backup codes and requests are digested.

The list is ``KEY_PEPPERS``, then ``SECRET_KEY`` and its fallbacks. The first pepper writes, all of
them read: so a pepper is rotated by a new one in front, and ``KEY_PEPPERS`` is introduced without
losing a key. A text gives the same pepper wherever it stands, so ``KEY_PEPPERS`` may list an
earlier ``SECRET_KEY``.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from config.live_settings import settings

API_KEY: Final = b"causeway.api-key"
END_USER: Final = b"causeway.end-user"
PROMPT_CACHE: Final = b"causeway.prompt-cache"
BACKUP_CODE: Final = b"causeway.backup-code"
# Digests of requests: a reader of the database cannot try out what was asked.
REQUEST: Final = b"causeway.request"


@dataclass(frozen=True, slots=True)
class Pepper:
    """One key of digests; ``name`` says where it is set, ``id`` is stored beside its digests."""

    name: str
    id: str
    key: bytes = field(repr=False)
    # A digest that has read the key already: copying it costs half of beginning again.
    _begun: hmac.HMAC = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_begun", hmac.new(self.key, digestmod="sha256"))

    def digest(self, text: str) -> str:
        digest = self._begun.copy()
        digest.update(text.encode())
        return digest.hexdigest()


def list_peppers(purpose: bytes = API_KEY) -> tuple[Pepper, ...]:
    """Returns the peppers of a purpose; the first one writes."""
    return _derive(
        purpose,
        tuple(settings.KEY_PEPPERS),
        settings.SECRET_KEY,
        tuple(settings.SECRET_KEY_FALLBACKS),
    )


def oldest_pepper(purpose: bytes) -> Pepper:
    """Returns the pepper that stays the same for as long as the operator keeps it in its list.

    That is the last of ``KEY_PEPPERS``; without that list, the oldest secret key.
    """
    peppers = list_peppers(purpose)
    listed = len(dict.fromkeys(settings.KEY_PEPPERS))
    return peppers[listed - 1]


@lru_cache(maxsize=16)
def _derive(
    purpose: bytes, listed: Sequence[str], secret_key: str, fallbacks: Sequence[str]
) -> tuple[Pepper, ...]:
    secrets: dict[str, str] = {}
    for number, text in enumerate(listed, 1):
        secrets.setdefault(text, f"KEY_PEPPERS, number {number}")
    secrets.setdefault(secret_key, "SECRET_KEY")
    for number, text in enumerate(fallbacks, 1):
        secrets.setdefault(text, f"SECRET_KEY_FALLBACKS, number {number}")
    keys = ((name, hmac.digest(text.encode(), purpose, "sha256")) for text, name in secrets.items())
    return tuple(
        Pepper(name, hashlib.sha256(b"causeway.pepper" + key).hexdigest()[:16], key)
        for name, key in keys
    )
