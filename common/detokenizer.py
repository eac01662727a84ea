"""Incremental detokenization: token ids to text, one token at a time.

A token is a piece of bytes, not of text. A character outside the tokenizer's vocabulary takes several tokens, and
SentencePiece decoders add or drop a leading space depending on the token before. So the text of a list of tokens is not
the concatenation of the texts of its tokens, and decoding the whole list for every new token takes quadratic time.

The solution (as in Hugging Face's text-generation-inference) is a window of a few tokens: some whose text has been
emitted, and the new ones. Each new token decodes the window again, and the text beyond what was emitted is new. If the
window ends in replacement characters, its last character is incomplete and waits for the next token. `DecodeStream` of
the tokenizers package does the same for tokens that are whole characters; vLLM leaves all of them to it.
"""

from collections.abc import Sequence

from tokenizers.decoders import DecodeStream

REPLACEMENT = "\ufffd"  # decoders write it for bytes that are not valid UTF-8
PROMPT_TAIL = 6  # tokens of the prompt that the first output token is decoded with
MAX_CHARACTER_BYTES = 4  # in UTF-8
MAX_INCOMPLETE_TOKENS = 32  # with no complete character for this many tokens, the text is broken and goes out as it is


class IncrementalDetokenizer:
    """Turn the output tokens of one request into text, in order.

    The pieces that `append` and `flush` return add up to the text that continues the prompt. Each character is in the
    piece of the token that completes it; a character that the prompt began belongs to the prompt.
    """

    def __init__(self, tokenizer, prompt_token_ids: Sequence[int], skip_special_tokens: bool = True):
        self._backend = tokenizer.backend_tokenizer  # of the tokenizers package, without what transformers adds
        self._skip_special_tokens = skip_special_tokens
        for tail in range(PROMPT_TAIL, PROMPT_TAIL + MAX_CHARACTER_BYTES):
            self._window = list(prompt_token_ids[-tail:])
            text = self._decode(self._window)
            if not text.startswith(REPLACEMENT):  # the window must not begin inside a character
                break
        self.begins = not text  # whether no text comes before the output: some decoders then drop a blank
        self._emit_all(text)

    def append(self, token_id: int) -> str:
        """Return the characters that this token completes, "" if it completes none."""
        if self._stream is not None:
            if piece := self._step(token_id):
                self._window, self._context = [token_id], 1
                return piece
            self._stream = None
            self._emitted = len(self._decode(self._window))
        self._window.append(token_id)
        text = self._decode(self._window)
        complete = len(text.rstrip(REPLACEMENT))
        if complete < len(text) and len(self._window) - self._context < MAX_INCOMPLETE_TOKENS:
            piece = text[self._emitted : complete]
            self._emitted = max(self._emitted, complete)
            return piece
        if len(text) <= self._emitted:
            self._emitted = len(text)  # shorter if this token completed a character of the prompt
            if text and not self._decode(self._window[self._context :]):
                del self._window[self._context :]  # tokens without text, such as special ones, are no context
            return ""
        return self._advance(text)

    def flush(self) -> str:
        """Return the text held back, when no token follows: an incomplete character stays a replacement character."""
        return "" if self._stream is not None else self._advance(self._decode(self._window))

    def _step(self, token_id: int) -> str | None:
        """Return the text of the next token, None if it has none, is incomplete, or changes what stands before it."""
        try:
            return self._stream.step(self._backend, token_id)
        except Exception:  # the package has no other class for a prefix that has changed
            return None

    def _advance(self, text: str) -> str:
        new = text[self._emitted :]
        # The tokens just emitted become the context of the next ones; the context before them can go.
        self._window = self._window[self._context :]
        self._emit_all(self._decode(self._window))
        return new

    def _emit_all(self, text: str) -> None:
        """Make the window, whose text this is, the context of the tokens to come."""
        self._context = len(self._window)  # tokens at the front of the window whose text has been emitted
        self._emitted = len(text)  # characters of the window's text that have been emitted
        # For tokens that are whole characters, which most are, the package does all this in a tenth of the time. While
        # there is a stream, the window is its context and nothing is held back.
        whole = not text.endswith(REPLACEMENT)
        self._stream = DecodeStream(ids=self._window, skip_special_tokens=self._skip_special_tokens) if whole else None

    def _decode(self, token_ids: list[int]) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=self._skip_special_tokens)


class StopSearch:
    """Search a growing text for stop strings, in time linear in its length (Knuth, Morris and Pratt, 1977).

    For each string, keep the length of the longest prefix that the text ends with. If the next character does not
    extend that prefix, a shorter one may still match. `prefix_function` tells which, so no character is read twice.
    """

    def __init__(self, stop: Sequence[str]):
        self._strings = [(string, prefix_function(string)) for string in stop]
        self._matched = [0] * len(stop)  # for each string: characters of its longest prefix that the text ends with
        self._length = 0

    @property
    def held(self) -> int:
        """Return how many characters at the end of the text may begin a stop string."""
        return max(self._matched, default=0)

    def find(self, piece: str) -> tuple[int, str] | None:
        """Add a piece to the text. Return (start, string) of the first stop string that it completes, or None.

        Of several that end at the same character, return the longest. The search may continue after a match; later
        matches may overlap it.
        """
        found: tuple[int, int, str] | None = None  # end, start, string
        for number, (string, shorter) in enumerate(self._strings):
            matched = self._matched[number]
            for end, character in enumerate(piece, self._length + 1):
                while matched and character != string[matched]:
                    matched = shorter[matched - 1]
                matched += character == string[matched]
                if matched == len(string):
                    match = end, end - matched, string
                    found = match if found is None else min(found, match)
                    matched = shorter[-1]
            self._matched[number] = matched
        self._length += len(piece)
        return found and found[1:]


def prefix_function(string: str) -> list[int]:
    """Return, for each prefix of the string, the length of the longest shorter prefix that it ends with."""
    lengths = [0] * len(string)
    for place in range(1, len(string)):
        length = lengths[place - 1]
        while length and string[place] != string[length]:
            length = lengths[length - 1]
        lengths[place] = length + (string[place] == string[length])
    return lengths
