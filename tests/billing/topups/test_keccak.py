"""The hash of Ethereum, against the library that hashes it elsewhere."""

from Crypto.Hash import keccak
from hypothesis import given
from hypothesis import strategies as st

from billing.topups.keccak import keccak_256


def test_the_hash_of_nothing_is_the_published_one() -> None:
    digest = "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"
    assert keccak_256(b"").hex() == digest


@given(st.binary(max_size=300))
def test_the_hash_agrees_with_the_library(data: bytes) -> None:
    assert keccak_256(data) == keccak.new(digest_bits=256, data=data).digest()


def test_every_length_around_a_block_is_padded_right() -> None:
    for length in (134, 135, 136, 137, 271, 272, 273):
        data = bytes(length)
        assert keccak_256(data) == keccak.new(digest_bits=256, data=data).digest()
