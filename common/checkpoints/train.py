"""Trains a bundled checkpoint on the corpus, from random weights, and writes it in Hugging Face format.

    python -m common.checkpoints.train target        # about an hour on two CPU cores
    python -m common.checkpoints.train draft         # about ten minutes

It trains the very model file that the servers run: `attend` is causal attention over rows of equal length, and
nothing else differs. Rows are packed with whole documents and always begin with one, as a prompt does. Matrices are
trained with Muon (Jordan et al., 2024), the embedding and the norms with AdamW.

Every `--snapshot-every` steps the state goes to `work/`, and the same command resumes from there, with the same
result: a document is a pure function of its index, so the position in the corpus is one integer.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoTokenizer, LlamaConfig

from common.model import ModelConfig, Transformer

from .corpus import document
from .tokenizer import CONTEXT_LENGTH, END_OF_TEXT, FOLDER, MESSAGE_END, PADDING, VOCAB_SIZE

WORK = FOLDER / "work"
HELD_OUT_TOKENS = 200_000
REPORT_EVERY = 100  # steps


@dataclass(frozen=True)
class Recipe:
    """How one checkpoint is trained.

    Rows grow with the steps: short ones first, since attention over them is cheaper and since they leave out the long
    stories, so that copying is learned early. Batches are small, since on such regular text many steps teach more than
    large ones.
    """

    model: ModelConfig
    steps: int
    tokens_per_step: int = 2048  # or one row, if that is longer
    # (up to which share of the steps, tokens in a row)
    row_lengths: tuple[tuple[float, int], ...] = ((0.25, 256), (0.6, 512), (0.96, 1024), (1.0, CONTEXT_LENGTH))
    # Without a norm on Q and K, larger steps saturate attention: softmax becomes one-hot and stops learning.
    muon_lr: float = 0.002
    adam_lr: float = 0.002
    warmup: int = 50
    seed: int = 0


def bundled_config(layers: int, hidden: int, heads: int, kv_heads: int, mlp: int) -> ModelConfig:
    return ModelConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=64,
        context_length=CONTEXT_LENGTH,
        rms_norm_eps=1e-5,
        tie_embeddings=True,
    )


RECIPES = {
    "target": Recipe(bundled_config(layers=8, hidden=256, heads=4, kv_heads=2, mlp=688), steps=6400),
    "draft": Recipe(bundled_config(layers=2, hidden=128, heads=2, kv_heads=1, mlp=344), steps=4000),
}


def packed_rows(tokenizer, seed: str, length: int, start: int) -> Iterator[tuple[list[int], int]]:
    """Rows of `length + 1` token ids, each with the index of the first document it does not hold.

    A row begins with a whole document and is filled with more, each closed by END_OF_TEXT; the last is cut off.
    Documents longer than a row are left out, since their beginning alone would teach questions without answers.
    """
    end = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    index, row = start, []
    while True:
        batch = [document(index + i, seed) for i in range(64)]
        for ids in tokenizer(batch, add_special_tokens=False)["input_ids"]:
            index += 1
            if len(ids) < length:
                row += [*ids, end]
            if len(row) > length:
                yield row[: length + 1], index
                row = []


def causal_attention(rows: int):
    """`attend` for training: `rows` independent sequences of equal length, laid end to end."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        groups = q.shape[1] // k.shape[1]
        q, k, v = (x.unflatten(0, (rows, -1)).transpose(1, 2) for x in (q, k, v))  # [rows, heads, S, D]
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(0, 1)

    return attend


def loss_on(model: Transformer, rows: Tensor) -> Tensor:
    """Mean next-token cross-entropy in nats over `rows[R, S + 1]`; matrix products in bfloat16."""
    inputs, targets = rows[:, :-1], rows[:, 1:]
    positions = torch.arange(inputs.shape[1]).repeat(len(rows))
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model(inputs.flatten(), positions, causal_attention(len(rows)))
        return F.cross_entropy(model.logits(hidden), targets.flatten())


def learning_rate(step: int, recipe: Recipe) -> float:
    """Linear warm-up, then a cosine down to 2 % of the peak."""
    progress = step / recipe.steps
    return min(1.0, (step + 1) / recipe.warmup) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))


class Training:
    def __init__(self, name: str, recipe: Recipe):
        self.name, self.recipe = name, recipe
        self.tokenizer = AutoTokenizer.from_pretrained(FOLDER / name)
        torch.manual_seed(recipe.seed)
        self.model = Transformer(recipe.model)
        depth_scale = (2 * recipe.model.num_layers) ** -0.5  # keeps the residual stream's variance near 1
        for path, parameter in self.model.named_parameters():
            if parameter.ndim == 2:
                scale = depth_scale if path.endswith(("output.weight", "down.weight")) else 1.0
                torch.nn.init.normal_(parameter, std=0.02 * scale)
        matrices = [p for path, p in self.model.named_parameters() if p.ndim == 2 and "embedding" not in path]
        others = [p for path, p in self.model.named_parameters() if p.ndim == 1 or "embedding" in path]
        self.optimizers = {
            "muon": torch.optim.Muon(matrices, lr=recipe.muon_lr, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
            "adam": torch.optim.AdamW(others, lr=recipe.adam_lr, betas=(0.9, 0.95), weight_decay=0.0),
        }
        self.step, self.tokens, self.next_document, self.seconds = 0, 0, 0, 0.0
        self.history: list[dict] = []  # {"step", "train_loss"} and now and then "held_out_loss"

    @property
    def snapshot_file(self) -> Path:
        return WORK / f"{self.name}.pt"

    def save_snapshot(self) -> None:
        WORK.mkdir(exist_ok=True)
        state = {
            "model": self.model.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "progress": (self.step, self.tokens, self.next_document, self.seconds, self.history),
        }
        temporary = self.snapshot_file.with_suffix(".tmp")
        torch.save(state, temporary)
        temporary.replace(self.snapshot_file)  # atomic: Ctrl-C while writing must not cost the snapshot before

    def resume(self) -> None:
        if self.snapshot_file.exists():
            state = torch.load(self.snapshot_file)
            self.model.load_state_dict(state["model"])
            for name, optimizer in self.optimizers.items():
                optimizer.load_state_dict(state["optimizers"][name])
            self.step, self.tokens, self.next_document, self.seconds, self.history = state["progress"]

    def row_length(self) -> int:
        return next(length for until, length in self.recipe.row_lengths if self.step < until * self.recipe.steps)

    def train(self, stop_at: int, snapshot_every: int) -> None:
        """Runs until step `stop_at`; prints the loss as it goes."""
        recipe, length, recent = self.recipe, None, []
        while self.step < stop_at:
            started = time.perf_counter()
            if self.row_length() != length:
                length = self.row_length()
                rows = packed_rows(self.tokenizer, "train", length, self.next_document)
            batch = []
            for _ in range(max(1, recipe.tokens_per_step // length)):
                row, self.next_document = next(rows)
                batch.append(row)
            loss = loss_on(self.model, torch.tensor(batch))
            loss.backward()
            rate = learning_rate(self.step, recipe)
            self.optimizers["muon"].param_groups[0]["lr"] = recipe.muon_lr * rate
            self.optimizers["adam"].param_groups[0]["lr"] = recipe.adam_lr * rate
            for optimizer in self.optimizers.values():
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            recent.append(loss.item())
            self.step += 1
            self.tokens += len(batch) * length
            self.seconds += time.perf_counter() - started
            if self.step % REPORT_EVERY == 0:
                record = {"step": self.step, "train_loss": round(sum(recent) / len(recent), 4)}
                if self.step % (5 * REPORT_EVERY) == 0:
                    record["held_out_loss"] = round(self.held_out_loss(20_000), 4)
                self.history.append(record)
                print(f"{self.name} {record} {self.tokens / 1e6:.1f} M tokens, {self.seconds / 60:.1f} min", flush=True)
                recent = []
            if self.step % snapshot_every == 0 or self.step == stop_at:
                self.save_snapshot()

    @torch.no_grad()
    def held_out_loss(self, tokens: int) -> float:
        """Mean loss in nats per token on documents that training never sees (another seed of the corpus)."""
        rows = packed_rows(self.tokenizer, "held-out", 1024, 0)
        losses = [
            loss_on(self.model, torch.tensor([next(rows)[0] for _ in range(4)])).item()
            for _ in range(tokens // (4 * 1024))
        ]
        return sum(losses) / len(losses)

    def export(self) -> None:
        """Writes weights (bfloat16), config and the training record beside the tokenizer."""
        from safetensors.torch import save_file

        from common.loader.weights import checkpoint_names

        config, folder = self.recipe.model, FOLDER / self.name
        parameters = dict(self.model.named_parameters())
        tensors = {
            hf_name: parameters[path][rows].detach().bfloat16().contiguous().clone()
            for path, hf_name, rows in checkpoint_names(config)
        }
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        end = [self.tokenizer.convert_tokens_to_ids(token) for token in (MESSAGE_END, END_OF_TEXT)]
        hf_config = LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.context_length,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters=config.rope,
            tie_word_embeddings=config.tie_embeddings,
            bos_token_id=None,
            eos_token_id=end,
            pad_token_id=self.tokenizer.convert_tokens_to_ids(PADDING),
            architectures=["LlamaForCausalLM"],
            dtype="bfloat16",
        )
        hf_config.save_pretrained(folder)
        generation = {"eos_token_id": end, "pad_token_id": hf_config.pad_token_id, "do_sample": False}
        (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
        recipe = asdict(self.recipe)
        record = {
            "recipe": {key: value for key, value in recipe.items() if key != "model"},
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "tokens": self.tokens,
            "minutes": round(self.seconds / 60, 1),
            "held_out_loss": round(self.held_out_loss(HELD_OUT_TOKENS), 4),
            "history": self.history,
        }
        (folder / "training.json").write_text(json.dumps(record, indent=1) + "\n")
        print(f"{self.name}: {record['parameters']:,} parameters, held-out loss {record['held_out_loss']} -> {folder}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=RECIPES)
    parser.add_argument("--snapshot-every", type=int, default=200, metavar="STEPS")
    parser.add_argument("--stop-at", type=int, metavar="STEP", help="stop early; the same command resumes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--export-only", action="store_true", help="write the checkpoint from the last snapshot")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    training = Training(args.name, RECIPES[args.name])
    training.resume()
    if not args.export_only:
        training.train(args.stop_at or training.recipe.steps, args.snapshot_every)
    if args.export_only or training.step == training.recipe.steps:
        training.export()


if __name__ == "__main__":
    main()
