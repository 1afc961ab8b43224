"""The tokenizer loses nothing and cuts the model's own text where the model cut it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ckpt.inference import tokens
from gym_ckpt.inference.tokens import decode, encode

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
WORDY = st.lists(st.sampled_from(["kadu", "kade", " ", "  ", "bimo", "kad", "ä", "\n", "Kade", "\x00"])).map("".join)
GENERATED = st.lists(st.integers(0, tokens.WORDS - 1), min_size=1, max_size=50)


@given(ANY_TEXT | WORDY)
def test_decode_undoes_encode(text: str) -> None:
    ids = encode(text)
    assert decode(ids) == text
    assert all(0 <= token < tokens.TOOLS for token in ids), "no text may encode to a special token"


@given(GENERATED)
def test_generated_text_reencodes_to_its_ids(words: list[int]) -> None:
    ids = (tokens.FIRST_BARE + words[0], *(tokens.FIRST_SPACED + word for word in words[1:]))
    assert encode(decode(ids)) == ids


@given(GENERATED, st.integers(0, 50))
def test_no_cut_splits_a_character_of_generated_text(words: list[int], cut: int) -> None:
    ids = [tokens.FIRST_SPACED + word for word in words]
    assert decode(ids[:cut]) + decode(ids[cut:]) == decode(ids)


def test_markers_cannot_be_forged() -> None:
    assert decode([tokens.END]) == "<|end|>"
    assert tokens.END not in encode("<|end|>")


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_surrogates_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="surrogates"):
        encode(text)


@pytest.mark.parametrize("ids", [[-1], [tokens.VOCABULARY], [0, 10**9]])
def test_ids_outside_the_vocabulary_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="token ids"):
        decode(ids)


def test_a_cut_character_is_refused() -> None:
    with pytest.raises(ValueError, match="utf-8"):
        decode(encode("é")[:1])


def test_every_piece_is_distinct() -> None:
    assert len(set(tokens.PIECES)) == tokens.VOCABULARY
