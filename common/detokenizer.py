"""Token ids to text, a little at a time.

A token is a piece of bytes, not a piece of text: a character outside the tokenizer's vocabulary is spread over
several tokens, and decoders of the SentencePiece kind add or drop a leading space depending on what stands before.
So the text of a list of tokens is not the sum of the texts of its tokens, and decoding the whole list again for
every token costs time quadratic in its length.

The way out (as in Hugging Face's text-generation-inference) is a window of a few tokens: some whose text has been said,
and the new one. The window is decoded with every token, and what it has beyond the part that was said is new. Where it
ends in replacement characters, the last character is not yet complete and has to wait. (vLLM now leaves that to the
tokenizers package and its `DecodeStream`, for tokenizers of that kind.)
"""

from collections.abc import Sequence

REPLACEMENT = "\ufffd"  # what decoders put where bytes are no valid UTF-8
PROMPT_TAIL = 6  # tokens of the prompt that the first output token is decoded with
MOST_BYTES = 4  # of one character in UTF-8
HOPELESS = 32  # tokens since the last complete character: from here on they are broken text, and not waited for


class IncrementalDetokenizer:
    """Text of the output tokens of one request, in the order they come.

    The pieces returned by `append` and `flush` add up to the text by which the output continues the prompt. Each
    character is in the piece of the token that completes it; a character that the prompt began belongs to the prompt.
    """

    def __init__(self, tokenizer, prompt_token_ids: Sequence[int]):
        self._tokenizer = tokenizer
        for tail in range(PROMPT_TAIL, PROMPT_TAIL + MOST_BYTES):
            self._window = list(prompt_token_ids[-tail:])
            text = self._decode(self._window)
            if not text.startswith(REPLACEMENT):  # it must not begin inside a character
                break
        self._context = len(self._window)  # tokens of the window that nothing is left to say of
        self._said = len(text)  # characters of the window's text that need not be said any more

    def append(self, token_id: int) -> str:
        """The characters that this token completes; empty if there are none."""
        self._window.append(token_id)
        text = self._decode(self._window)
        complete = len(text.rstrip(REPLACEMENT))
        if complete < len(text) and len(self._window) - self._context < HOPELESS:
            piece = text[self._said : complete]
            self._said = max(self._said, complete)
            return piece
        if len(text) <= self._said:
            self._said = len(text)  # shorter if this token ended a character of the prompt
            if text and not self._decode(self._window[self._context :]):
                del self._window[self._context :]  # special tokens, for example, are no context for what follows
            return ""
        return self._advance(text)

    def flush(self) -> str:
        """What was held back, when no token will follow: a broken character stays broken."""
        return self._advance(self._decode(self._window))

    def _advance(self, text: str) -> str:
        new = text[self._said :]
        # The tokens just said become the context of the next ones; what stood before them is not needed any more.
        self._window = self._window[self._context :]
        self._context = len(self._window)
        self._said = len(self._decode(self._window))
        return new

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


class StopSearch:
    """Looks for stop strings in a text that grows, piece by piece, in time linear in its length.

    For each string it knows how much of it the text ends with. Where the next character does not go on with that, a
    shorter beginning may still fit, and which one is known beforehand (Knuth, Morris and Pratt, 1977), so that no
    character of the text is looked at again.
    """

    def __init__(self, stop: Sequence[str]):
        self._strings = [(string, shorter_beginnings(string)) for string in stop]
        self._matched = [0] * len(stop)  # characters at the end of the text with which each string begins
        self._length = 0

    @property
    def held(self) -> int:
        """Characters at the end of the text that may turn out to begin a stop string."""
        return max(self._matched, default=0)

    def find(self, piece: str) -> tuple[int, str] | None:
        """Add a piece to the text. Where the earliest stop string begins that it completes, and which; or None."""
        found = None
        for number, (string, shorter) in enumerate(self._strings):
            matched = self._matched[number]
            for place, character in enumerate(piece, self._length + 1):
                while matched and character != string[matched]:
                    matched = shorter[matched - 1]
                matched += character == string[matched]
                if matched == len(string):
                    if found is None or place - matched < found[0]:
                        found = place - matched, string
                    matched = shorter[-1]
                    break
            self._matched[number] = matched
        self._length += len(piece)
        return found


def shorter_beginnings(string: str) -> list[int]:
    """For each beginning of a string, the length of the longest shorter beginning that it ends with."""
    lengths = [0] * len(string)
    for place in range(1, len(string)):
        length = lengths[place - 1]
        while length and string[place] != string[length]:
            length = lengths[length - 1]
        lengths[place] = length + (string[place] == string[length])
    return lengths
