"""The hash of Ethereum: Keccak-256, with the padding from before it became SHA-3; pure.

https://keccak.team/keccak_specs_summary.html describes it. Addresses are the only texts that are
hashed here, a few of them at a time, so the library that has it (16 MB) is not worth its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_RATE: Final = 136
_WORD: Final = (1 << 64) - 1


def _find_round_constants() -> Iterator[int]:
    """Yields the constants of the 24 rounds: bits of the shift register that defines them."""
    register = 1
    for _ in range(24):
        constant = 0
        for power in range(7):
            if register & 1:
                constant |= 1 << ((1 << power) - 1)
            register = (register << 1) ^ (0x171 if register & 0x80 else 0)
        yield constant


_ROUNDS: Final = tuple(_find_round_constants())


def keccak_256(data: bytes) -> bytes:
    """Returns the 32 bytes of the hash."""
    padded = bytearray(data) + bytes(_RATE - len(data) % _RATE)
    padded[len(data)] ^= 0x01
    padded[-1] ^= 0x80
    lanes = [[0] * 5 for _ in range(5)]
    for start in range(0, len(padded), _RATE):
        for index in range(_RATE // 8):
            word = padded[start + 8 * index : start + 8 * index + 8]
            lanes[index % 5][index // 5] ^= int.from_bytes(word, "little")
        lanes = _permute(lanes)
    return b"".join(lanes[index][0].to_bytes(8, "little") for index in range(4))


def _permute(lanes: list[list[int]]) -> list[list[int]]:
    """Returns the lanes after the 24 rounds: theta, rho and pi, chi, iota."""
    for constant in _ROUNDS:
        columns = [a ^ b ^ c ^ d ^ e for a, b, c, d, e in lanes]
        for x in range(5):
            change = columns[x - 1] ^ _rotate(columns[(x + 1) % 5], 1)
            lanes[x] = [lane ^ change for lane in lanes[x]]
        x, y, current = 1, 0, lanes[1][0]
        for step in range(24):
            x, y = y, (2 * x + 3 * y) % 5
            current, lanes[x][y] = lanes[x][y], _rotate(current, (step + 1) * (step + 2) // 2)
        for y in range(5):
            row = [lanes[x][y] for x in range(5)]
            for x in range(5):
                lanes[x][y] = row[x] ^ (~row[(x + 1) % 5] & row[(x + 2) % 5])
        lanes[0][0] ^= constant
    return lanes


def _rotate(word: int, places: int) -> int:
    places %= 64
    return ((word << places) | (word >> (64 - places))) & _WORD
