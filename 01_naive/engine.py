"""Stage 01: the naive engine. To get one more token, run the whole sequence again.

A language model is a function from a sequence to scores for its next token. So the simplest server there can be
samples a token, appends it, and calls the function again with the longer sequence. Nothing is remembered between
calls: not the keys and values of the prompt, not those of the tokens generated a moment ago.

It is correct, and it is the definition that the seven later stages are held against: whatever they keep, share,
draft or move, their greedy tokens must be these. Its cost is that generating n tokens after a prompt of p runs
p + (p + 1) + ... + (p + n - 1) tokens through the model to produce n.

What production engines do instead is the rest of the course. None of them has this loop, except in their tests.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from common.engine import BaseEngine
from common.request import Request
from common.sampling import SamplerOutput
from common.trace import StepRecord


class Engine(BaseEngine):
    """One request at a time, in order of arrival, with nothing kept between steps."""

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """Give the oldest request one more token, by running its whole sequence again."""
        if not self.requests:
            return []
        with self.trace.step() as record:
            request = self.schedule()
            drawn = self.run(request, record)
            return self.commit(request, drawn)

    def schedule(self) -> Request:
        """Choose the oldest request: the others wait until it has ended."""
        return next(iter(self.requests.values()))

    def run(self, request: Request, record: StepRecord) -> SamplerOutput:
        """Run the whole sequence through the model and draw its next token."""
        token_ids = torch.tensor(request.all_token_ids, device=self.device)  # [S]
        positions = torch.arange(len(token_ids), device=self.device)
        record.work(request.request_id, "recompute", len(token_ids))
        hidden = self.model(token_ids, positions, causal_attention)  # [S, hidden_size]
        # Each row predicts the token after it. Only the token after the last row is not known yet.
        return self.draw([request], self.model.logits(hidden[-1:]))

    def commit(self, request: Request, drawn: SamplerOutput) -> list[Request]:
        """Append the token to the request, and retire the request if that ends it."""
        requests = self.append_tokens([request], [[token] for token in drawn.tokens()])
        self.retire_finished(requests)
        return requests


def causal_attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend over one whole sequence, as the model's `attend`: each token sees itself and those before it.

    q is [S, H, D], k and v are [S, H_kv, D]; returns [S, H, D]. `layer` does not matter: no layer keeps anything.
    """
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))  # [1, heads, S, D]
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return attended[0].transpose(0, 1)
