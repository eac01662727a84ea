"""The detokenizer emits text as soon as it is final, and never takes any back."""

import itertools
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from common.detokenizer import MAX_INCOMPLETE_TOKENS, REPLACEMENT, IncrementalDetokenizer, StopSearch
from common.loader import CHECKPOINTS, load_tokenizer
from common.request import Request
from common.sampling import SamplingParams

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = list("▁etaoinshr.,")
MERGES = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("i", "n"), ("▁", "a"), ("▁", "▁")]
repeatable = settings(max_examples=150, deadline=None, derandomize=True)


def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """As Llama 2 and TinyLlama have it: "▁" for a space, unknown characters as byte tokens, and a decoder that drops
    the space in front of whatever it decodes first."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *LETTERS, *("".join(pair) for pair in MERGES)]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, MERGES, unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


BYTE_LEVEL = load_tokenizer(CHECKPOINTS / "target")
SENTENCEPIECE = sentencepiece_tokenizer()
BYTE_ID = {byte: SENTENCEPIECE.convert_tokens_to_ids(token) for byte, token in enumerate(BYTES)}
both_kinds = pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte-level", "sentencepiece"])


def decode(tokenizer, token_ids: list[int]) -> str:
    return tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def said(tokenizer, prompt: list[int], output: list[int]) -> list[str]:
    """Return the pieces of `append` for each token, and of `flush` at the end."""
    detokenizer = IncrementalDetokenizer(tokenizer, prompt)
    return [*map(detokenizer.append, output), detokenizer.flush()]


def continuation(tokenizer, prompt: list[int], output: list[int]) -> str:
    return decode(tokenizer, prompt + output)[len(decode(tokenizer, prompt)) :]


# ---- Text: emoji, joined emoji, combining marks, CJK, and spaces wherever they can be ----

PARTS = "🐢 👩‍🚀 🏳️‍🌈 e\u0301 ñ Łódź 日本語 \u0928\u093f the . ¡".split() + [" ", "  ", "\n", " tin"]
texts = st.lists(st.sampled_from(PARTS), max_size=12).map("".join) | st.text(max_size=12)


@both_kinds
@repeatable
@given(before=texts, after=texts)
def test_each_character_comes_with_the_token_that_completes_it(tokenizer, before, after):
    prompt = tokenizer(before)["input_ids"]
    output = tokenizer(after, add_special_tokens=False)["input_ids"]
    pieces = said(tokenizer, prompt, output)
    assert "".join(pieces) == continuation(tokenizer, prompt, output)
    known = 0
    for i in range(len(output) + 1):
        so_far = continuation(tokenizer, prompt, output[:i])
        if REPLACEMENT not in before + after:
            # A SentencePiece decoder takes a complete character back while the next one is incomplete: hence max.
            known = max(known, len(so_far.rstrip(REPLACEMENT)))
            assert len("".join(pieces[:i])) == known, "a character came before or after the token that completes it"
            assert REPLACEMENT not in "".join(pieces)


# ---- Any tokens, as a model with random weights writes them ----

byte_level_ids = st.integers(0, len(BYTE_LEVEL) - 1)
broken_ids = st.sampled_from([i for i in range(len(BYTE_LEVEL)) if REPLACEMENT in BYTE_LEVEL.decode([i])])
special_id = st.just(BYTE_LEVEL.convert_tokens_to_ids("<|im_end|>"))  # also within a character
outside_ids = st.integers(len(BYTE_LEVEL), len(BYTE_LEVEL) + 50)  # a vocabulary may be padded beyond the tokenizer's


@repeatable
@given(
    prompt=st.lists(byte_level_ids | broken_ids, min_size=1, max_size=12),
    output=st.lists(byte_level_ids | broken_ids | special_id | outside_ids, max_size=40),
)
def test_any_tokens_of_a_byte_level_tokenizer(prompt, output):
    """Prompts may end, and be cut, in the middle of a character."""
    assert "".join(said(BYTE_LEVEL, prompt, output)) == continuation(BYTE_LEVEL, prompt, output)


def byte_ids(data: bytes) -> list[int]:
    return [BYTE_ID[byte] for byte in data]


# At invalid bytes, a SentencePiece decoder takes back the complete characters before them. Text that has been sent
# cannot be taken back: so broken bytes follow other tokens here, and their first byte begins no character.
word_ids = st.integers(len(BYTES) + 3, len(SENTENCEPIECE) - 1).map(lambda token_id: [token_id])
special_ids = st.sampled_from([[1], [2], [len(SENTENCEPIECE) + 7]])
character_ids = st.text(min_size=1, max_size=3).map(lambda text: byte_ids(text.encode()))
broken_byte_ids = st.binary(max_size=5).map(lambda data: byte_ids(b"\x80" + data))


@repeatable
@given(
    prompt=st.lists(word_ids | special_ids, min_size=1, max_size=9),
    output=st.lists(st.tuples(word_ids, st.just([]) | special_ids | character_ids | broken_byte_ids), max_size=20),
)
def test_any_tokens_of_a_sentencepiece_tokenizer(prompt, output):
    prompt, output = sum(prompt, []), sum((first + second for first, second in output), [])
    assert "".join(said(SENTENCEPIECE, prompt, output)) == continuation(SENTENCEPIECE, prompt, output)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_character_begun_in_the_prompt_costs_no_later_text(cut):
    """Nor does the one before it, of which the first tokens are too far back."""
    word, turtle = SENTENCEPIECE("the")["input_ids"], byte_ids("🐢".encode())
    assert "".join(said(SENTENCEPIECE, word + turtle + turtle[:cut], turtle[cut:] + word + turtle)) == " the🐢"


class Counted(IncrementalDetokenizer):
    """It counts the tokens that it decodes."""

    decoded = 0

    def _decode(self, token_ids):
        self.decoded += len(token_ids)
        return super()._decode(token_ids)

    def _step(self, token_id):
        self.decoded += 2
        return super()._step(token_id)


@both_kinds
@pytest.mark.parametrize("kind", ["text", "special", "broken"])
def test_the_cost_of_a_token_does_not_grow(tokenizer, kind):
    """A stream is dropped with the first token of which it has no text."""
    broken = BYTE_ID[0xA2] if tokenizer is SENTENCEPIECE else tokenizer.convert_tokens_to_ids("¢")
    text = tokenizer("the tin 🐢 a", add_special_tokens=False)["input_ids"]
    repeated = {"text": text, "special": [tokenizer.eos_token_id], "broken": [broken]}[kind]
    detokenizer, count = Counted(tokenizer, tokenizer("the")["input_ids"]), 2000
    for token_id in (repeated * count)[:count]:
        detokenizer.append(token_id)
    assert detokenizer.decoded < 2 * MAX_INCOMPLETE_TOKENS * count, "to decode all text again takes 1,000 a token"


# ---- Stop strings ----

ABBA = ["".join(letters) for length in (1, 2, 3) for letters in itertools.product("ab", repeat=length)]
WORDS = Tokenizer(models.WordLevel({word: token_id for token_id, word in enumerate(ABBA)}, unk_token="a"))
WORDS.decoder = decoders.Fuse()  # the text of tokens is that of each, one after another
WORDS = PreTrainedTokenizerFast(tokenizer_object=WORDS)
stops = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)


@settings(repeatable, max_examples=400)
@given(st.lists(st.sampled_from(ABBA), min_size=1, max_size=8), stops, st.integers(0, 6), st.booleans())
@example(["aab", "a"], ["aa"], 2, False)  # "aa" came too early, and does not come again.
@example(["aba", "b"], ["ab"], 2, False)  # the second one begins in the token that was too early
@example(["aa", "a"], ["aa"], 2, False)  # the second one overlaps the first
@example(["abb"], ["abb", "b"], 0, False)  # "b" ends first, as if each character were a token.
def test_the_earliest_stop_string_is_found_and_no_shown_text_is_taken_back(pieces, stop, min_tokens, keep):
    """By definition: each token that brings the answer to min_tokens or more ends it if a stop string ends in its text,
    also one that begins before. Of several the first to end counts, and of those the first to begin."""
    params = SamplingParams(stop=stop, min_tokens=min_tokens, include_stop_str_in_output=keep)
    request = Request("one", [0], params, WORDS, frozenset(), max_tokens=len(pieces) + 1)
    text, shown = "", ""
    for count, piece in enumerate(pieces, start=1):
        text += piece
        ends = range(len(text) - len(piece) + 1, len(text) + 1) if count >= min_tokens else ()
        found = [(end, end - len(one), one) for end in ends for one in stop if text[:end].endswith(one)]
        request.append(ABBA.index(piece))
        assert request.finished == bool(found)
        if found:
            end, start, string = min(found)
            assert (request.text, request.stop_reason) == (text[: end if keep else start], string)
            assert request.text.startswith(shown), "text that was shown is taken back"
            return
        rest = [(text[start:], start) for start in range(len(text))]
        begun = [start for end, start in rest if any(one.startswith(end) and one != end for one in stop)]
        assert request.text == text
        assert request.stable_text_length == min(begun, default=len(text)), "as much as possible is shown, and no more"
        shown = text[: request.stable_text_length]


def test_the_cost_of_stop_strings_does_not_grow_with_their_length():
    """Each text is the worst case for its strings: everything matches but their last character."""
    search, began = StopSearch([f"{'a' * 255}{i:x}" for i in range(1, 10)]), time.process_time()
    for _ in range(100_000):
        assert search.find("a") is None
    assert search.held == 255
    assert time.process_time() - began < 20, "looking at all of them again takes minutes"
