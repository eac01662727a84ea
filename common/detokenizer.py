"""Token ids to text, a little at a time.

A token is a piece of bytes, not a piece of text: a character outside the tokenizer's vocabulary is spread over
several tokens, and decoders of the SentencePiece kind add or drop a leading space depending on what stands before.
So the text of a list of tokens is not the sum of the texts of its tokens, and decoding the whole list again for
every token costs time quadratic in its length.

The way out (as in Hugging Face's text-generation-inference, and vLLM after it) is a window of a few tokens: some whose
text has been said, and the new one. The window is decoded with every token, and what it has beyond the part that was
said is new. Where it ends in replacement characters, the last character is not yet complete and has to wait.
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


def find_stop(text: str, stop: Sequence[str], searched: int = 0) -> tuple[int, str] | None:
    """Where the earliest of the stop strings begins in `text`, and which it is; None if there is none.

    `searched` characters are known to hold no complete stop string, so only its tail is looked at again.
    """
    found = None
    for string in stop:
        start = text.find(string, max(0, searched - len(string) + 1))
        if start >= 0 and (found is None or start < found[0]):
            found = start, string
    return found


def certain_length(text: str, stop: Sequence[str]) -> int:
    """How many characters of `text` can be shown: the rest may still turn out to begin a stop string."""
    for start in range(max(0, len(text) - max(map(len, stop), default=0) + 1), len(text)):
        if any(string.startswith(text[start:]) for string in stop):
            return start
    return len(text)
