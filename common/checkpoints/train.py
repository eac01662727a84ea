"""Trains a bundled checkpoint of the sizes in its config.json, one phase at a time, and writes it beside that file.

    python -m common.checkpoints.train target --phase 1      # from random weights: about an hour on two CPU cores
    python -m common.checkpoints.train target --phase 2      # continues from the weights of phase 1, and so on to 6
    python -m common.checkpoints.train draft --phase 1       # about ten minutes
    python -m common.checkpoints.train draft --phase 2       # learns from the target

It trains the very model file that the servers run: `attend` is causal attention over rows of equal length, and
nothing else differs. Rows are packed with whole documents and always begin with one, as a prompt does. Matrices are
trained with Muon (Jordan et al., 2024), the embedding and the norms with AdamW.

Every 200 steps, on Ctrl-C and on SIGTERM, the state goes to `work/`, and the same command resumes from there, with the
same result: a document is a pure function of its index, so the position in the corpus is one integer.
"""

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from signal import SIGINT, SIGTERM
from signal import signal as set_handler

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoTokenizer

from common.demo import bar
from common.loader import load_model
from common.loader.config import read_config
from common.loader.weights import checkpoint_names
from common.model import Transformer
from common.terminal import StatusLine, note, parser_of, run_to_end

from .corpus import document
from .packing import own_tokens, packed_rows
from .recipes import PHASES, Phase
from .tokenizer import FOLDER

HELD_OUT_TOKENS = 200_000
REPORT_EVERY, SNAPSHOT_EVERY = 100, 200  # steps
THREADS = 2


def causal_attention(rows: int):
    """`attend` for training: `rows` independent sequences of equal length, laid end to end."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        groups = q.shape[1] // k.shape[1]
        q, k, v = (x.unflatten(0, (rows, -1)).transpose(1, 2) for x in (q, k, v))  # [rows, heads, S, D]
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(0, 1)

    return attend


def learning_rate(step: int, phase: Phase) -> float:
    """Return the rate of a step: linear warm-up, then a cosine down to 2 % of the peak."""
    cosine = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / phase.steps))
    return phase.peak_rate * (min(1.0, (step + 1) / phase.warmup) * cosine)


class Training:
    """Phase `number` (from 1) of a checkpoint that lies in `folder`, with its snapshots in `work`."""

    write = staticmethod(document)  # returns the document with this number

    def __init__(self, name: str, number: int, folder: Path, work: Path, phase: Phase | None = None):
        self.name, self.number, self.folder = name, number, folder
        self.config, self.phase = read_config(folder), phase or PHASES[name][number - 1]
        self.work, self.snapshot_file, self.device = work, work / f"{name}-{number}.pt", torch.device("cpu")
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.teacher = None
        if self.phase.teacher:
            self.teacher = load_model(str(folder.parent / self.phase.teacher), device="cpu", fused=False).model
        self.begin()

    def begin(self) -> None:
        """Make the model and its optimizers, for step 0."""
        torch.manual_seed(0)
        self.model = Transformer(self.config).to(self.device)
        self.start_weights()
        matrices = [p for path, p in self.model.named_parameters() if p.ndim == 2 and "embedding" not in path]
        others = [p for path, p in self.model.named_parameters() if p.ndim == 1 or "embedding" in path]
        self.optimizers = (
            torch.optim.Muon(matrices, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
        )
        self.step, self.tokens, self.next_document, self.seconds = 0, 0, self.phase.first_document, 0.0
        self.history: list[dict] = []  # {"step", "train_loss"}, and in every fifth "held_out_loss"
        self.stop_at = self.phase.steps

    def start_weights(self) -> None:
        """Begin with random weights in phase 1, else with those of the phase before, or with the mean of several."""
        if self.phase.mean_of:
            ends = [torch.load(self.work / f"{self.name}-{number}.pt")["model"] for number in self.phase.mean_of]
            self.model.load_state_dict({path: sum(end[path] for end in ends) / len(ends) for path in ends[0]})
            return
        if self.number > 1:
            before = load_model(str(self.folder), device="cpu", dtype="float32", fused=False)
            self.model.load_state_dict(before.model.state_dict())
            return
        depth_scale = (2 * self.config.num_layers) ** -0.5  # keeps the residual stream's variance near 1
        for path, parameter in self.model.named_parameters():
            if parameter.ndim == 2:
                scale = depth_scale if path.endswith(("output.weight", "down.weight")) else 1.0
                torch.nn.init.normal_(parameter, std=0.02 * scale)

    def run(self) -> int:
        """Train from the last snapshot on, and export; return the exit status. A signal ends it with a snapshot."""
        self.resume()
        for number in (SIGINT, SIGTERM):
            set_handler(number, self.stop)
        self.train(SNAPSHOT_EVERY)
        if self.step < self.phase.steps:
            note(f"stopped after step {self.step}; the same command goes on from there")
            return 130
        self.export()
        return 0

    def stop(self, *_) -> None:
        """End after the step that is running, with a snapshot."""
        self.stop_at = 0

    def save_snapshot(self) -> None:
        self.snapshot_file.parent.mkdir(exist_ok=True)
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "progress": (self.step, self.tokens, self.next_document, self.seconds, self.history),
        }
        temporary = self.snapshot_file.with_suffix(".tmp")
        torch.save(state, temporary)
        temporary.replace(self.snapshot_file)  # atomic: Ctrl-C while writing must not cost the snapshot before

    def resume(self) -> None:
        if self.snapshot_file.exists():
            state = torch.load(self.snapshot_file, map_location=self.device)
            self.model.load_state_dict(state["model"])
            for optimizer, its_state in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(its_state)
            self.step, self.tokens, self.next_document, self.seconds, self.history = state["progress"]

    def row_length(self) -> int:
        return next(length for until, length in self.phase.row_lengths if self.step < until * self.phase.steps)

    def loss(self, rows: list[list[int]], teacher: Transformer | None = None) -> Tensor:
        """Return the mean cross-entropy in nats over the next tokens that count. Matrix products in bfloat16.

        With a teacher, the wanted distribution is the teacher's, not the token that follows.
        """
        batch = torch.tensor(rows)  # [R, S + 1]
        everything = torch.ones_like(batch, dtype=torch.bool)
        own = everything if self.phase.mix == "known" else own_tokens(self.tokenizer, batch)
        inputs, counts, wanted = batch[:, :-1].flatten(), own[:, 1:].flatten(), batch[:, 1:].flatten()
        positions = torch.arange(batch.shape[1] - 1).repeat(len(batch))

        def logits(model: Transformer) -> Tensor:
            return model.logits(model(inputs, positions, causal_attention(len(batch)))[counts])

        with torch.autocast("cpu", torch.bfloat16):
            if teacher is None:
                return F.cross_entropy(logits(self.model), wanted[counts])
            with torch.no_grad():
                distribution = logits(teacher).softmax(dim=-1)
            return F.cross_entropy(logits(self.model), distribution)

    def batches(self) -> Iterator[tuple[list[list[int]], int]]:
        """Return the batches from `next_document` on, which moves on with them, each with the number of its tokens."""
        length = None
        while True:
            if self.row_length() != length:
                length = self.row_length()
                rows = packed_rows(self.tokenizer, "train", length, self.next_document, self.phase.mix, self.write)
            batch = []
            for _ in range(max(1, self.phase.tokens_per_step // length)):
                row, self.next_document = next(rows)
                batch.append(row)
            yield batch, len(batch) * length

    def train(self, snapshot_every: int) -> None:
        """Run until step `stop_at`; print the loss as it goes."""
        batches, recent, status = self.batches(), [], StatusLine()
        while self.step < self.stop_at:
            started = time.perf_counter()
            batch, tokens = next(batches)
            loss = self.loss(batch, self.teacher)
            loss.backward()
            for optimizer in self.optimizers:
                optimizer.param_groups[0]["lr"] = learning_rate(self.step, self.phase)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            recent.append(loss.item())
            self.step += 1
            self.tokens += tokens
            self.seconds += time.perf_counter() - started
            done = self.step / self.phase.steps
            status.say(self.seconds, f"training {bar(done, 1)} step {self.step}, loss {recent[-1]:.2f}")
            if self.step % REPORT_EVERY == 0:
                record = {"step": self.step, "train_loss": round(sum(recent) / len(recent), 4)}
                if self.step % (5 * REPORT_EVERY) == 0:
                    record["held_out_loss"] = round(self.held_out_loss(20_000), 4)
                self.history.append(record)
                status.clear()
                note(f"{self.name} {record} {self.tokens / 1e6:.1f} M tokens, {self.seconds / 60:.1f} min")
                recent = []
            if self.step % snapshot_every == 0:
                self.save_snapshot()
        self.save_snapshot()

    @torch.no_grad()
    def held_out_loss(self, tokens: int) -> float:
        """Return the mean loss, nats per token, on documents that training never sees (another seed of the corpus)."""
        rows = packed_rows(self.tokenizer, "held-out", 1024, 0, self.phase.mix, self.write)
        losses = [self.loss([next(rows)[0] for _ in range(4)]).item() for _ in range(tokens // (4 * 1024))]
        return sum(losses) / len(losses)

    def export(self) -> None:
        """Write weights (bfloat16) and the training record beside config and tokenizer."""
        parameters = dict(self.model.named_parameters())
        tensors = {
            hf_name: parameters[path][rows].detach().bfloat16().contiguous().clone()
            for path, hf_name, rows in checkpoint_names(self.config)
        }
        save_file(tensors, self.folder / "model.safetensors", metadata={"format": "pt"})
        record = {
            "recipe": asdict(self.phase),
            "tokens": self.tokens,
            "minutes": round(self.seconds / 60, 1),
            "held_out_loss": round(self.held_out_loss(HELD_OUT_TOKENS), 4),
            "history": self.history,
        }
        record_file = self.folder / "training.json"
        before = json.loads(record_file.read_text())["phases"][: self.number - 1] if self.number > 1 else []
        whole = {"parameters": sum(p.numel() for p in self.model.parameters()), "phases": [*before, record]}
        record_file.write_text(json.dumps(whole, indent=1) + "\n")
        print(f"{self.name}: {whole['parameters']:,} parameters, held-out loss {record['held_out_loss']}")


def main() -> int:
    parser = parser_of("python -m common.checkpoints.train", __doc__)
    args = parser.parse_args()
    if not 1 <= args.phase <= len(PHASES[args.name]):
        parser.error(f"--phase: the {args.name} has phases 1 to {len(PHASES[args.name])}")
    torch.set_num_threads(THREADS)
    return Training(args.name, args.phase, FOLDER / args.name, FOLDER / "work").run()


if __name__ == "__main__":
    run_to_end(main)
