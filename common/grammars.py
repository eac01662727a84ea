"""Grammars: a JSON schema, a regular expression, a list of choices or tool calls as llguidance takes them.

Nothing here needs a model or PyTorch, so that `grammar_trial` starts a process for a form in a tenth of a second.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .errors import InvalidInput, shortened

MAX_CHARACTERS, MAX_DEPTH = 100_000, 64  # of a schema; a library that recurses deeper may overflow its stack
TOO_DEEP = f"the JSON schema is nested deeper than {MAX_DEPTH} levels: make it flatter"
# Between two parts of JSON. Endless blanks are valid JSON too, and a model that samples may write them without end.
WHITESPACE = "[ ]?"
TAG, END = "<tool_call>", "</tool_call>"  # around a call, as Qwen's templates teach it


def json_grammar(schema: Mapping[str, Any], lenient: bool = False) -> str:
    """Return the grammar of JSON that a schema allows. lenient: ignore keywords that cannot be enforced.

    Raise InvalidInput for a schema too long or too deep.
    """
    matcher = library().LLMatcher
    if not isinstance(schema, Mapping):
        raise InvalidInput(f"a JSON schema must be an object, not {shortened(schema)}")
    check_depth(schema)
    if len(json.dumps(schema)) > MAX_CHARACTERS:
        raise InvalidInput(f"the JSON schema has more than {MAX_CHARACTERS:,} characters: make it shorter")
    options = {"whitespace_pattern": WHITESPACE, "lenient": lenient, "coerce_one_of": lenient}
    try:
        return matcher.grammar_from_json_schema(dict(schema), overrides=options)
    except ValueError as error:  # numbers of hundreds of digits, or half a surrogate pair
        raise InvalidInput(f"the JSON schema cannot be read: {shortened(error)}") from error


def check_depth(value: Any) -> None:
    """Raise InvalidInput for JSON nested deeper than MAX_DEPTH: recursion may crash the process."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for one in level
            if isinstance(one, (Mapping, list))
            for inner in (one.values() if isinstance(one, Mapping) else one)
        ]
        if not level:
            return
    raise InvalidInput(TOO_DEEP)


def regex_grammar(pattern: str) -> str:
    """Return the grammar of texts that the whole pattern matches."""
    return library().LLMatcher.grammar_from_regex(_short(pattern, "regex"))


def choice_grammar(choices: Sequence[str]) -> str:
    """Return the grammar of these texts."""
    if not choices or not all(isinstance(one, str) and one for one in choices):
        raise InvalidInput("choice must be a list of texts, each with at least one character")
    return lark_grammar("start: " + " | ".join(map(json.dumps, choices)))


def lark_grammar(text: str) -> str:
    """Return a grammar given in Lark's notation, or in the EBNF of llama.cpp."""
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return library().LLMatcher.grammar_from_lark(any_to_lark(_short(text, "grammar")))
    except InvalidInput:
        raise
    except Exception as error:  # The converter raises plain exceptions, also RecursionError.
        raise InvalidInput(f"the grammar cannot be read: {shortened(error)}") from error


def tool_grammar(
    functions: Iterable[tuple[str, Mapping[str, Any], bool]],
    tags: Sequence[str],
    several: bool,
    optional: bool,
    answer: Callable[[], str] | None,
) -> str:
    """Return the grammar of answers that call functions.

    functions: name, schema of the arguments, and whether it is strict, of each. tags: what stands before and after a
    call in Lark's notation, a text or the id of a token. several: whether there may be more than one call.
    optional: whether there may be none. answer: makes the grammar of an answer without calls; None: any text, which
    may also stand before and after calls.
    """
    bodies = []
    for name, schema, strict in functions:
        [grammar] = json.loads(json_grammar(schema, lenient=not strict))["grammars"]
        begin = json.dumps(f'{{"name": "{name}", "arguments": ')
        bodies.append(f'{begin} %json {json.dumps(grammar["json_schema"])} "}}"')
    tag, end = tags
    text = f'body: {" | ".join(bodies)}\nrest: "\\n" body "\\n" {end}\n'
    if optional and answer is None:
        # A lazy terminal ends with its first tag. Any text may stand before a tag; a tag of one token is never text.
        other = "" if tag == json.dumps(TAG) else f" | TEXT {tag}"
        start = "(tag rest)* TEXT" if several else "tag rest | TEXT"
        text += f"start: {start}\ntag: spelled{other}\n"
        text += f'spelled[lazy]: TEXT "{TAG}"\nTEXT: /(.|\\n)*/\n'
    else:
        more = ' ("\\n" call)*' if several else ""
        text += f"start: call{more}{' | @answer' * optional}\ncall: {tag} rest\n"
    grammar = library().LLMatcher.grammar_from_lark(text)
    if not optional or answer is None:
        return grammar
    form = answer()  # JSON for some kinds, for others the text in Lark's notation
    [inner] = json.loads(form)["grammars"] if form.startswith("{") else [{"lark_grammar": form}]
    return json.dumps({"grammars": [{"lark_grammar": grammar}, inner | {"name": "answer"}]})


def _short(text: str, name: str) -> str:
    if len(text) > MAX_CHARACTERS:
        raise InvalidInput(f"{name} has more than {MAX_CHARACTERS:,} characters: make it shorter")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidInput(f"{name} has half a surrogate pair, which no text may contain: leave it out")
    return text


def library():
    """Return llguidance, which only a server with such requests needs."""
    try:
        import llguidance
    except ModuleNotFoundError as error:
        raise InvalidInput(f"structured output needs llguidance, and {error}: pip install llguidance") from error
    return llguidance


def compile_grammar(grammar: str, tokens: Any) -> Any:
    """Return a matcher that has read nothing. tokens: an LLTokenizer. Raise InvalidInput if the library refuses it.

    The first mask is computed as well, since some grammars fail only there: nothing fits them.
    """
    limits = library().LLParserLimits(verbose_errors=False)
    matcher = library().LLMatcher(tokens, grammar, log_level=0, limits=limits)
    first = matcher.deep_copy()
    first.compute_bitmask()
    _check(first)
    return matcher


def try_out(matcher: Any) -> None:
    """Raise InvalidInput if the text with which all answers begin exceeds a limit of the library.

    That text may be long: this may take seconds, in which no other thread of the process runs Python.
    """
    trial = matcher.deep_copy()
    trial.try_consume_tokens(trial.compute_ff_tokens())
    trial.compute_bitmask()
    _check(trial)


def _check(matcher: Any) -> None:
    if matcher.is_error():
        raise InvalidInput(f"the answer's form cannot be enforced: {shortened(ValueError(matcher.get_error()))}")
