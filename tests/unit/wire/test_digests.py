"""The cumulative hash, against its definition in words rather than its code."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ckpt.wire.digests import cumulative_hash

TOKENS = st.lists(st.integers(0, 2**64 - 1), max_size=40)


def by_definition(token_ids: list[int]) -> str:
    encoded = b"nemo-gym-staging-prefix-v2" + len(token_ids).to_bytes(8, "big")
    for token in token_ids:
        encoded += token.to_bytes(8, "big")
    return hashlib.sha256(encoded).hexdigest()


def test_vectors_computed_with_sha256sum() -> None:
    """`{ printf nemo-gym-staging-prefix-v2; printf <count and ids as hexadecimal> | xxd -r -p; } | sha256sum`."""
    assert cumulative_hash([]) == "17088fc6f8fd317bf02bd83e106f7ca2dfb7b9cfc63927c2387d4c87f29578ef"
    assert cumulative_hash([1, 2, 3]) == "4684ad7ad2412b902ad240cdfb11427345d0ff81f93cacabeb48914a4ea9e32e"
    assert cumulative_hash([2**64 - 1, 0]) == "cd9b709aaafa9f303de8b277dc3381157646b1908621f92046b080cd22baf4b9"


@given(TOKENS)
def test_equals_the_definition(token_ids: list[int]) -> None:
    assert cumulative_hash(token_ids) == cumulative_hash(tuple(token_ids)) == by_definition(token_ids)


@given(TOKENS, TOKENS)
def test_other_tokens_have_another_hash(left: list[int], right: list[int]) -> None:
    assert (cumulative_hash(left) == cumulative_hash(right)) == (left == right)


@pytest.mark.parametrize("token", [-1, 2**64, 1.5, "7", None])
def test_an_id_that_is_no_unsigned_64_bit_integer_is_refused(token: object) -> None:
    with pytest.raises(ValueError, match="token id"):
        cumulative_hash([token])  # type: ignore[list-item]
