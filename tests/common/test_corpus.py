"""The training text is the one that the models learnt from, to the last letter."""

import hashlib
from random import Random

import pytest

from common.checkpoints.corpus import MIXES, document
from common.checkpoints.evaluate import TOPICS

# What the bundled models were trained on and are measured with: without the same text, neither can be repeated.
HASHES = {
    "known": "0013ae2121a43b46cc7105039f675bfce84dbfb5dbd9754f503cc482c7c8ef1e",
    "broad": "138dd0d0612d4393e38be4fc43c72de584345b9be366efb33689c0ba0a167583",
    "long": "73e69f5083ef2836a4afedbc4270e562e3aedf1cb265a8bcfdae8c131054c5ba",
    "easy": "86401c6558703c0a0d2fc4bc4c13884d452212b7cc27b7dfb885c4fdd10cf027",
    "evaluation": "34c2cc868b42842eeead8cb76e33ebdcd3755cf13b7a5b6ac4b29bcb9e60d9c5",
}


@pytest.mark.parametrize("name", HASHES)
def test_the_text_is_the_one_that_the_models_were_trained_on(name):
    if name in MIXES:
        texts = (document(i, seed, name) for seed in ("train", "held-out") for i in range(1500))
    else:
        texts = (text for topic, ask in TOPICS.items() for i in range(100) for text in ask(Random(f"{topic}/{i}")))
    assert hashlib.sha256("\0".join(texts).encode()).hexdigest() == HASHES[name]
