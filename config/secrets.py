"""API keys and stored secrets: generation, digests, encryption.

API keys have 256 random bits, so a keyed digest (HMAC-SHA256) is enough to store and find them;
``config.peppers`` has the keys of the digests.
Secrets that must be read again (provider credentials) are encrypted with AES-256-GCM: each row has
a random data key, which the first of ``CREDENTIAL_KEYS`` encrypts. The row's identity is associated
data, so a ciphertext copied to another row cannot be decrypted. A short random key (an operator's
second factor) is encrypted like a data key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets as random
import zlib
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, overload

from django.conf import settings
from django.db import models, transaction

from config.credentials import Secret
from config.peppers import (
    API_KEY,
    BACKUP_CODE,
    END_USER,
    PROMPT_CACHE,
    list_peppers,
    oldest_pepper,
)

INFERENCE_PREFIX: Final = "sk-cw-"
MANAGEMENT_PREFIX: Final = "mk-cw-"
_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BODY_LENGTH: Final = 43  # 256 bits in base 62
_CHECKSUM_LENGTH: Final = 6  # 32 bits in base 62
_KEY: Final = re.compile(r"(?:sk|mk)-cw-[0-9A-Za-z]{49}")
# Visible characters but the comma, by which servers join two headers.
_IMPORTED: Final = re.compile(r"[!-+\--~]{20,512}")
_VERSION: Final = b"\x01"
_KEY_ID_LENGTH: Final = 8
_DATA_KEY_LENGTH: Final = 32
_NONCE_LENGTH: Final = 12
_WRAPPED_LENGTH: Final = _DATA_KEY_LENGTH + 16
_HEAD_LENGTH: Final = 1 + _KEY_ID_LENGTH + _NONCE_LENGTH + _WRAPPED_LENGTH


class DecryptionFailed(Exception):
    """The secret cannot be decrypted: its key is missing, or it was altered or copied."""


def generate_api_key(*, is_management: bool) -> Secret:
    """Generates a key: a prefix for its type, 256 random bits in base 62, and a checksum."""
    prefix = MANAGEMENT_PREFIX if is_management else INFERENCE_PREFIX
    body = prefix + _base62(random.randbits(256), _BODY_LENGTH)
    return Secret(body + _checksum(body))


def is_well_formed(key: str) -> bool:
    """Returns whether a key has a correct checksum; a typo costs no query."""
    return _KEY.fullmatch(key) is not None and hmac.compare_digest(
        _checksum(key[:-_CHECKSUM_LENGTH]), key[-_CHECKSUM_LENGTH:]
    )


def may_be_key(key: str) -> bool:
    """Returns whether a key may exist: an own one needs its checksum, an imported one a length.

    An own key in capitals or quotation marks is a typo of a caller and no imported one.
    """
    if key.lower().lstrip("\"'").startswith((INFERENCE_PREFIX, MANAGEMENT_PREFIX)):
        return is_well_formed(key)
    return _IMPORTED.fullmatch(key) is not None


def digest_api_key(key: str) -> str:
    """Returns the digest of a key by the first pepper.

    A new key has it as its public ``hash``, which stays the same when peppers rotate.
    """
    return list_peppers(API_KEY)[0].digest(key)


class KeyDigests(Sequence[str]):
    """The digests of a presented API key, one for each pepper; the first pepper's comes first.

    Those after the first are computed when they are asked for: most keys are found by the first.
    """

    __slots__ = ("_computed", "_key", "_peppers", "first")

    def __init__(self, key: str) -> None:
        self._key = key
        self._peppers = list_peppers(API_KEY)
        self.first = self._peppers[0].digest(key)
        self._computed = [self.first]

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        computed = self._computed
        if isinstance(index, slice) or index < 0:
            return [*self][index]
        while len(computed) <= index:
            # Raises IndexError after the last pepper, as a sequence must.
            computed.append(self._peppers[len(computed)].digest(self._key))
        return computed[index]

    def __len__(self) -> int:
        return len(self._peppers)

    def __repr__(self) -> str:
        return f"<{len(self)} digests>"

    @property
    def pepper_ids(self) -> Sequence[str]:
        """The ids of the peppers, in the order of their digests."""
        return [pepper.id for pepper in self._peppers]


def label_api_key(key: Secret) -> str:
    """Returns the label of a key in lists: all before its random part, and three characters of it.

    The last three characters follow.
    """
    value = key.reveal()
    start = value.rindex("-") + 1 if _KEY.fullmatch(value) else 0
    return f"{value[: start + 3]}…{value[-3:]}"


def hash_end_user(organization_id: str, user: str) -> str:
    """Returns the pseudonym of an end user that upstreams receive instead of the raw id.

    It is keyed by the oldest pepper, so that a new pepper changes no pseudonym.
    """
    return oldest_pepper(END_USER).digest(f"{organization_id}\0{user}")[:32]


def hash_cache_key(organization_id: str, key: str) -> str:
    """Returns what upstreams receive instead of a key of their cache: 64 characters.

    No other organization's key becomes the same, and a new pepper changes none.
    """
    return oldest_pepper(PROMPT_CACHE).digest(f"{organization_id}\0{key}")


def digest_backup_code(user_id: int, code: str) -> Sequence[str]:
    """Returns the digests of an operator's backup code, 16 hexadecimal characters each.

    There is one for each pepper; the first is to be stored.
    """
    return [pepper.digest(f"{user_id}\0{code}")[:16] for pepper in list_peppers(BACKUP_CODE)]


def _base62(number: int, length: int) -> str:
    characters = []
    for _ in range(length):
        number, remainder = divmod(number, 62)
        characters.append(_ALPHABET[remainder])
    return "".join(reversed(characters))


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), _CHECKSUM_LENGTH)


def seal(value: Secret, *, associated: str) -> bytes:
    """Encrypts a secret with a new data key, which the first credential key encrypts.

    Layout: version (1), key id (8), nonce (12), wrapped data key (48), nonce (12), ciphertext.
    """
    return seal_bytes(value.reveal().encode(), associated=associated)


def seal_bytes(data: bytes, *, associated: str) -> bytes:
    """Encrypts bytes as :func:`seal` encrypts a secret."""
    data_key = os.urandom(_DATA_KEY_LENGTH)
    return _wrap(data_key, associated) + _encrypt(data_key, data, associated)


def unseal(blob: bytes, *, associated: str) -> Secret:
    """Decrypts a secret; raises :class:`DecryptionFailed` for every kind of failure."""
    try:
        return Secret(unseal_bytes(blob, associated=associated).decode())
    except ValueError:
        raise DecryptionFailed from None


def unseal_bytes(blob: bytes, *, associated: str) -> bytes:
    """Decrypts bytes; raises :class:`DecryptionFailed` for every kind of failure."""
    # The ciphertext may be long, and a slice of bytes is a copy.
    view = memoryview(blob)
    data_key, _ = _unwrap(bytes(view[:_HEAD_LENGTH]), associated)
    return _decrypt(data_key, view[_HEAD_LENGTH:], associated)


def rewrap(blob: bytes, *, associated: str) -> bytes:
    """Encrypts the data key with the first credential key; the ciphertext stays the same."""
    data_key, rest = _unwrap(bytes(blob), associated)
    return _wrap(data_key, associated) + rest


def rewrap_row(row: models.Model, *columns: str, associated: str) -> bool:
    """Rewraps sealed columns that need it, and returns whether any did.

    Raises :class:`DecryptionFailed` when no configured key decrypts one.
    """
    with transaction.atomic():
        row.refresh_from_db(from_queryset=type(row)._base_manager.select_for_update(no_key=True))
        blobs = {name: bytes(getattr(row, name) or b"") for name in columns}
        stale = [name for name, blob in blobs.items() if blob and not is_current(blob)]
        for name in stale:
            setattr(row, name, rewrap(blobs[name], associated=associated))
        if stale:
            row.save(update_fields=stale)
    return bool(stale)


def seal_key(key: bytes, *, associated: str) -> str:
    """Encrypts a random key with the first credential key; 20 bytes become 76 characters."""
    return base64.b64encode(_wrap(key, associated)).decode()


def unseal_key(text: str, *, associated: str) -> bytes:
    """Decrypts a key from :func:`seal_key`; raises :class:`DecryptionFailed`."""
    blob = _decode(text)
    key, _ = _unwrap(blob, associated, wrapped_length=len(blob))
    return key


def rewrap_key(text: str, *, associated: str) -> str | None:
    """Encrypts a key from :func:`seal_key` with the first credential key.

    Returns ``None`` if it is so encrypted already; raises :class:`DecryptionFailed`.
    """
    if is_current_key(text):
        return None
    return seal_key(unseal_key(text, associated=associated), associated=associated)


def seal_with(key: bytes, data: bytes, *, associated: str) -> bytes:
    """Encrypts bytes with a key that is used for many rows, each with its own ``associated``.

    Each row has a key of its own, which is derived from both: no nonce can meet another one.
    Layout: version (1), nonce (12), ciphertext.
    """
    return _VERSION + _encrypt(_derive(key, associated), data, associated)


def unseal_with(key: bytes, blob: bytes, *, associated: str) -> bytes:
    """Decrypts bytes from :func:`seal_with`; raises :class:`DecryptionFailed`."""
    if blob[:1] != _VERSION:
        raise DecryptionFailed
    return _decrypt(_derive(key, associated), blob[1:], associated)


def _derive(key: bytes, associated: str) -> bytes:
    return hmac.digest(key, associated.encode(), "sha256")


def is_current_key(text: str) -> bool:
    """Returns whether the first credential key encrypts this key."""
    return is_current(_decode(text))


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise DecryptionFailed from None


def is_current(blob: bytes) -> bool:
    """Returns whether the first credential key encrypts this secret."""
    return bytes(blob)[1 : 1 + _KEY_ID_LENGTH] == _key_id(settings.CREDENTIAL_KEYS[0])


def _wrap(data_key: bytes, associated: str) -> bytes:
    key = settings.CREDENTIAL_KEYS[0]
    return _VERSION + _key_id(key) + _encrypt(key, data_key, associated)


def _unwrap(
    blob: bytes, associated: str, *, wrapped_length: int = _WRAPPED_LENGTH
) -> tuple[bytes, bytes]:
    """Decrypts the wrapped key at the start of a blob; returns the key and the rest of the blob."""
    head, key_id = blob[:1], blob[1 : 1 + _KEY_ID_LENGTH]
    start = 1 + _KEY_ID_LENGTH
    end = start + _NONCE_LENGTH + wrapped_length
    key = next((key for key in settings.CREDENTIAL_KEYS if _key_id(key) == key_id), None)
    if head != _VERSION or key is None:
        raise DecryptionFailed
    return _decrypt(key, blob[start:end], associated), blob[end:]


def _encrypt(key: bytes, data: bytes, associated: str) -> bytes:
    """Returns a random nonce (12) and the ciphertext, which is 16 bytes longer than the data."""
    nonce = os.urandom(_NONCE_LENGTH)
    ciphertext: bytes = _cipher(key).encrypt(nonce, data, associated.encode())
    return nonce + ciphertext


def _decrypt(key: bytes, sealed: bytes | memoryview, associated: str) -> bytes:
    """Decrypts what :func:`_encrypt` returned; raises :class:`DecryptionFailed`."""
    nonce, ciphertext = sealed[:_NONCE_LENGTH], sealed[_NONCE_LENGTH:]
    try:
        data: bytes = _cipher(key).decrypt(nonce, ciphertext, associated.encode())
    except (import_module("cryptography.exceptions").InvalidTag, ValueError):
        raise DecryptionFailed from None
    return data


def _cipher(key: bytes) -> Any:
    """Returns AES-GCM with a key; imports it at the first use, because few commands encrypt."""
    return import_module("cryptography.hazmat.primitives.ciphers.aead").AESGCM(key)


def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"causeway.credential-key" + key).digest()[:_KEY_ID_LENGTH]
