"""What strangers type, for `evaluate` alone: the corpus uses no word, asks no question and has no sentence of these.

The corpus writes held-out questions of its own with another seed, which tells what the model remembers. Whether it
copies words, admits ignorance and notices other languages must be asked with material that it never read.
"""

from random import Random

from .corpus.words import ask, draw, material

_WORDS, QUESTIONS, SENTENCES = material("unseen").values()
WORDS = _WORDS.split()


def copies(rng: Random) -> tuple[str, str]:
    """5 to 60 words that the model never read, each length equally often; now and then a number among them."""
    pool = WORDS if rng.random() < 0.8 else rng.sample(WORDS, 20)  # one in five repeats its words
    picked = [draw(rng, "digits") if rng.random() < 0.1 else rng.choice(pool) for _ in range(rng.randint(5, 60))]
    return ask(rng, "copy plainly", text=" ".join(picked))


def strings(rng: Random) -> tuple[str, str]:
    """1 to 20 numbers, code-like strings or pairs."""
    kind = rng.choice(("digits", "figure", "string", "pair"))
    mark = rng.choice((" ", ", ", "\n"))
    made = (
        f"{rng.choice(WORDS)}: {draw(rng, 'digits')}" if kind == "pair" else draw(rng, kind)
        for _ in range(rng.randint(1, 20))
    )
    return ask(rng, "copy plainly", text=mark.join(made))
