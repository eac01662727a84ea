"""Make a drafter for a model: the model writes conversations, and a model of two layers learns to guess its tokens.

    python -m common.checkpoints.drafter --model smollm2 --out my/drafter    # two hours on two CPU cores
    python -m common.checkpoints.drafter ... --texts 160 --steps 500         # some five minutes on an H200
    python 07_speculative/main.py --model smollm2 --draft my/drafter --prompt "What is a drafter?" --chat

The conversations (conversations.py) go to the folder as they end, the drafter's state every 200 steps and on Ctrl-C:
the same command resumes from there.

Nearly all of such a small model is its embedding, and nearly all of its work are the scores of the whole vocabulary.
So it begins as what is nearest to the target's own output layer in that width. And a step computes the scores
of the tokens that the target finds likely somewhere in the batch, and of a few others, which stand for all the rest.
On a GPU it computes all scores, and takes as many tokens as there are in eight steps of a CPU.
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from common.errors import InvalidInput, expect_writable
from common.loader import Loaded, load_model
from common.loader.config import read_config
from common.loader.device import choose_device
from common.terminal import StatusLine, note, parser_of, run_to_end

from .conversations import hidden_states, shard_file, write_conversations
from .recipes import Phase
from .train import THREADS, Training

WIDTH, LAYERS, HEADS = 176, 2, 3  # 49,152 tokens in bfloat16 are then 17 MB, the layers 2 MB
OTHERS = 2048  # tokens: on a CPU a step computes the scores of these beside the likely ones
TOKENS_PER_STEP = {"cpu": 2048, "cuda": 16384}
HELD_OUT = 0  # Training never sees the conversations of this file.
MEASURED = 16  # conversations from which the target's hidden states are measured


class Text(NamedTuple):
    """The n tokens of one conversation, and the target's k likeliest next tokens after each, with probabilities."""

    token_ids: Tensor  # [n] int64
    likeliest: Tensor  # [n, k] int64
    probabilities: Tensor  # [n, k] float32


def read_texts(file: Path) -> list[Text]:
    tensors = load_file(file)
    lengths = tensors["lengths"].tolist()
    parts = (tensors[name].split(lengths) for name in ("token_ids", "likeliest", "probabilities"))
    return [Text(ids, likeliest, p) for ids, likeliest, p in zip(*parts, strict=True)]


class Distillation(Training):
    """Training on what the target says, in place of the corpus."""

    def __init__(self, target: Loaded, folder: Path, shards: Sequence[int], phase: Phase):
        self.name, self.number, self.folder, self.phase = "drafter", 1, folder, phase
        self.snapshot_file, self.teacher, self.target = folder / "snapshot.pt", None, target
        self.device = target.device
        self.config = read_config(folder)
        self.texts = [text for shard in shards if shard != HELD_OUT for text in read_texts(shard_file(folder, shard))]
        self.held_out = read_texts(shard_file(folder, HELD_OUT))
        self.begin()

    @torch.no_grad()
    def start_weights(self) -> None:
        """Begin with the output layer of the target, as far as the drafter's width holds it, and idle blocks.

        With a tied embedding and idle blocks, each token would predict itself, and to unlearn that takes longer than
        all the rest. Small numbers weaken this, and alternating signs in the last norm reduce it to chance.
        """
        for path, parameter in self.model.named_parameters():
            if path == "embedding.weight":
                parameter.copy_(0.2 * self.narrow_output())
            elif path == "norm.weight":
                parameter[::2] = -1
            elif path.endswith(("output.weight", "down.weight")):
                parameter.zero_()
            elif parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=0.02)

    def narrow_output(self) -> Tensor:
        """Return the `[V, hidden_size]` whose products with vectors come closest to the target's scores, W h.

        Closest over the hidden states h that the target has in texts, where an error at a token counts as much as the
        target finds that token likely. A constant in all scores says nothing. (For SmolLM2 in a width of 176, the
        likeliest token is then still the same in 64 cases of 100; in the directions of W's own energy it is in 3.)
        """
        model, config = self.target.model, self.target.config
        texts = [text.token_ids for text in self.texts[:MEASURED]]
        hidden = hidden_states(model, texts, self.device).float()  # [N, target's hidden]
        eye = torch.eye(config.hidden_size, dtype=self.target.dtype, device=self.device)
        output = model.logits(eye).float().T  # W, whatever its layout
        often = torch.full((config.vocab_size,), 1e-6)
        for text in self.texts:
            often.index_add_(0, text.likeliest.flatten(), text.probabilities.flatten() / len(hidden))
        often = often.to(self.device)
        output = output - often @ output / often.sum()
        sizes, axes = torch.linalg.eigh(hidden.T @ hidden / len(hidden))
        root = axes * sizes.clamp(min=0).sqrt() @ axes.T
        _, directions = torch.linalg.eigh(root @ (output.T * often) @ output @ root)  # the largest last
        return output @ root @ directions[:, -self.config.hidden_size :]

    def batches(self) -> Iterator[tuple[list[Text], int]]:
        """Yield batches of texts; the random choice depends on `next_document` alone."""
        while True:
            batch, tokens = [], 0
            while tokens < self.phase.tokens_per_step:
                batch.append(Random(self.next_document).choice(self.texts))
                tokens += len(batch[-1].token_ids)
                self.next_document += 1
            yield batch, tokens

    def loss(self, batch: list[Text], teacher: None = None) -> Tensor:
        """Return the mean cross-entropy in nats under the target's distribution, as far as it is known.

        The sum over the vocabulary is exact for the tokens that are likely somewhere in the batch, and estimated for
        the rest, from OTHERS that depend on the step alone.
        """
        token_ids, likeliest, probabilities = (torch.cat(part).to(self.device) for part in zip(*batch, strict=True))
        known, places = likeliest.unique(return_inverse=True)
        some = torch.arange(self.config.vocab_size, device=self.device)
        if self.device.type == "cpu":
            some = torch.randint(len(some), (OTHERS,), generator=torch.Generator().manual_seed(self.step))
        others = some[~torch.isin(some, known)]
        weight = torch.zeros(len(known) + len(others), device=self.device)
        weight[len(known) :] = math.log((self.config.vocab_size - len(known)) / max(1, len(others)))
        with torch.autocast(self.device.type, torch.bfloat16):
            scores = F.linear(self.hidden(batch), self.model.embedding.weight[torch.cat([known, others])])
        scores = scores.float() + weight
        distances = scores.logsumexp(-1, keepdim=True) - scores.gather(-1, places)
        return (probabilities * distances).sum() / len(token_ids)

    def hidden(self, batch: list[Text]) -> Tensor:
        """Run the drafter over whole texts: `[N, hidden_size]`."""
        return hidden_states(self.model, [text.token_ids for text in batch], self.device)

    def export(self) -> None:
        """Write weights and record, with what the drafter learned from and how often it agrees with its target."""
        super().export()
        file, texts = self.folder / "training.json", [text.token_ids for text in self.texts]
        record = json.loads(file.read_text()) | {"target": self.target.name, "conversations": len(texts)}
        record |= {"text_tokens": sum(map(len, texts)), "agreement": round(self.agreement, 4)}
        file.write_text(json.dumps(record, indent=1) + "\n")

    @torch.no_grad()
    def held_out_loss(self, tokens: int) -> float:
        """Return the loss over the whole vocabulary on conversations that training never sees. `tokens` is ignored."""
        total, agreed, count = 0.0, 0, 0
        for text in self.held_out:
            with torch.autocast(self.device.type, torch.bfloat16):
                scores = self.model.logits(self.hidden([text]))
            likeliest = text.likeliest.to(self.device)
            likely = scores.log_softmax(-1).gather(-1, likeliest)
            total -= (text.probabilities.to(self.device) * likely).sum().item()
            agreed += (scores.argmax(-1) == likeliest[:, 0]).sum().item()
            count += len(text.token_ids)
        self.agreement = agreed / count
        note(f"the drafter's likeliest token is the target's for {self.agreement:.1%} of tokens never seen")
        return total / count


def write_config(target: Loaded, folder: Path) -> None:
    """Write the drafter's config.json: the target's vocabulary and positions, and few small layers."""
    width = min(WIDTH, target.config.hidden_size)
    config = {
        "model_type": "llama",
        "vocab_size": target.config.vocab_size,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "max_position_embeddings": target.config.context_length,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": 1e-5,
        "rope_parameters": target.config.rope,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def make_drafter(model: str | None, folder: Path, shards: int, steps: int, device: str = "auto") -> int:
    """Do what is not done yet; return the exit status.

    Raise InvalidInput or FileNotFoundError if the model cannot be had, or cannot write conversations.
    """
    expect_writable(folder / "model.safetensors")
    where = choose_device(device)[0]
    target = load_model(model, device=where, dtype="bfloat16" if where.type == "cpu" and has_bfloat16() else "auto")
    if target.tokenizer is None:
        raise InvalidInput(f"{target.name} has no tokenizer, and cannot write conversations: give another model")
    folder.mkdir(parents=True, exist_ok=True)
    with StatusLine() as status:
        write_conversations(target, folder, range(shards), status)
    write_config(target, folder)
    phase = Phase(steps, TOKENS_PER_STEP[where.type], mix="conversations", peak_rate=0.012)
    return Distillation(target, folder, range(shards), phase).run()


def has_bfloat16() -> bool:
    """Return whether the processor multiplies matrices in bfloat16 faster than in float32."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported() and torch.cpu._is_avx512_bf16_supported()


def main() -> int:
    parser = parser_of("python -m common.checkpoints.drafter", __doc__)
    args = parser.parse_args()
    if args.texts < 2 or args.steps < 1:
        parser.error("--texts must be 2 or more, since one is held out, and --steps 1 or more")
    torch.set_num_threads(THREADS)
    return make_drafter(args.model, args.out, args.texts, args.steps, args.device)


if __name__ == "__main__":
    run_to_end(main)
