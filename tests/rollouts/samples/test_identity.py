"""Ids of samples and keys of prompts."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutdeck.protocol import compute_prompt_key
from rollouts.samples.identity import SampleIdGenerator

SCOPE = ("run", "a1", "train", "global_step", 3, "")
text = st.text(st.characters(codec=None), max_size=8)


def compute_sample_id(*parts: str | int) -> str:
    """The id as it is specified, one sample at a time."""
    texts = [str(part).encode("utf-8", "surrogatepass") for part in parts]
    digest = hashlib.sha256(b"".join(b"%d:%b" % (len(part), part) for part in texts)).digest()
    return base64.b32encode(digest)[:52].decode().lower()


def test_a_samples_id_never_changes() -> None:
    known = "cnd4dwheovf65fflavgkb5cgbfyq66v565ibzilavpeylhoa2xxq"
    assert SampleIdGenerator(*SCOPE).generate_ids([("2+2?", "4")]) == [known]


@given(pairs=st.lists(st.tuples(text, text), max_size=12))
def test_many_samples_get_the_same_ids_as_single_samples(pairs: list[tuple[str, str]]) -> None:
    single_ids = [compute_sample_id(*SCOPE, *pair, pairs[:position].count(pair)) for position, pair in enumerate(pairs)]
    generator = SampleIdGenerator(*SCOPE)
    assert generator.generate_ids(pairs[:5]) + generator.generate_ids(pairs[5:]) == single_ids
    assert len(set(single_ids)) == len(pairs)


@given(pairs=st.lists(st.tuples(text, text), max_size=12), earlier=st.integers(0, 12))
def test_a_part_of_the_samples_gets_the_same_ids_as_in_the_whole(pairs: list[tuple[str, str]], earlier: int) -> None:
    expected = SampleIdGenerator(*SCOPE).generate_ids(pairs)
    generator = SampleIdGenerator(*SCOPE)
    generator.skip_ids(expected[:earlier])
    assert sorted(generator.generate_ids(pairs[earlier:])) == sorted(expected[earlier:])


@pytest.mark.parametrize("position", range(9))
def test_every_part_of_the_identity_changes_the_id(position: int) -> None:
    def generate(parts: list[Any]) -> str:
        return SampleIdGenerator(*parts[:6]).generate_ids([(parts[6], parts[7])] * (parts[8] + 1))[-1]

    parts = [*SCOPE, "2+2?", "4", 0]
    other = list(parts)
    other[position] = 1 if isinstance(parts[position], int) else str(parts[position]) + "x"
    assert generate(parts) != generate(other)


def test_text_that_moves_from_prompt_to_response_is_another_sample() -> None:
    assert len(set(SampleIdGenerator(*SCOPE).generate_ids([("ab", "c"), ("a", "bc")]))) == 2


@pytest.mark.parametrize(
    "same",
    [
        "What is  2+2?\n",
        "user\nWhat is 2+2?\nassistant\n",
        "system\nYou are a helpful assistant.\nuser\nWhat is 2+2?\nassistant\n",
        "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n",
    ],
)
def test_prompts_with_the_same_content_share_their_key(same: str) -> None:
    assert compute_prompt_key(same) == compute_prompt_key("What is 2+2?")
    assert len(compute_prompt_key(same)) == 26


@pytest.mark.parametrize(
    "other",
    [
        "What is 2+3?",
        "system\nAnswer in Latin.\nuser\nWhat is 2+2?\nassistant\n",
        "user\nWhat is 2+2?\nassistant\n4\nuser\nSure?\nassistant\n",
        "assistant",
        "",
    ],
)
def test_different_prompts_have_different_keys(other: str) -> None:
    assert compute_prompt_key(other) != compute_prompt_key("What is 2+2?")


def test_composed_and_decomposed_letters_have_the_same_key() -> None:
    assert compute_prompt_key("caf\u00e9") == compute_prompt_key("cafe\u0301")
