"""Train the bundled tokenizer: byte-level BPE (Sennrich et al., 2016; bytes as in GPT-2), 4,096 tokens.

    python -m common.checkpoints.tokenizer          # writes common/checkpoints/{target,draft}/tokenizer*

Bytes are the alphabet, so any text can be encoded and no token is "unknown". A character outside the corpus takes
several tokens, which the detokenizer (common/detokenizer.py) joins. Each digit is a token: a small model copies and
adds numbers far better when 317 is always "3" "1" "7".
"""

from itertools import chain
from pathlib import Path
from random import Random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .corpus import document, facts

FOLDER = Path(__file__).parent
VOCAB_SIZE = 4096
DOCUMENTS = 20_000
FACTS = 20_000  # on top, so that the names of countries, capitals and the like become single tokens
CONTEXT_LENGTH = 4096

END_OF_TEXT, MESSAGE_START, MESSAGE_END, PADDING = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"

# A word with its leading space, one digit, punctuation, or white space: tokens never cross these boundaries.
WORDS = Regex(r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def train() -> PreTrainedTokenizerFast:
    """Learn the merges from the corpus, and return the tokenizer; the same corpus always gives the same one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(WORDS, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT, MESSAGE_START, MESSAGE_END, PADDING],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    rng = Random("tokenizer")
    documents = (document(index, "tokenizer") for index in range(DOCUMENTS))
    tokenizer.train_from_iterator(chain(documents, (facts.raw(rng) for _ in range(FACTS))), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=MESSAGE_END,
        pad_token=PADDING,
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
    )


if __name__ == "__main__":
    trained = train()
    for name in ("target", "draft"):
        trained.save_pretrained(FOLDER / name)
    print(f"{len(trained)} tokens -> {FOLDER / 'target'}, {FOLDER / 'draft'}")
