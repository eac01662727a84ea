"""Figures of lesson 01."""

from ..cost_model import block_parameters, head_parameters
from .passages import Claim, Given, Once, Passage, Quote
from .sources import STATED, Results, by, config, lines


def tokens_run(prompt: int, answer: int) -> int:
    """Return the tokens that stage 01 runs for an answer."""
    return sum(prompt + written for written in range(answer))


def declared() -> list[Passage]:
    results = Results("01_naive")
    sizes, predicted = results.sizes, results.figures
    ours, theirs = results.sides["01_naive"], results.sides["transformers"]
    token = [by(sizes.lengths, each.ms_per_token) for each in (ours, theirs)]
    token.append(by(sizes.lengths, predicted.predicted_ms_per_token))
    answer = [by(sizes.answers, each.seconds) for each in (ours, theirs)]
    answer.append(by(sizes.answers, predicted.predicted_seconds))
    growth = answer[0][512] / answer[0][256]
    naive, qwen = tokens_run(sizes.prompt, 256), config("configs/Qwen3-0.6B")
    output, layers = head_parameters(qwen), block_parameters(qwen)
    return [
        Quote("3 + 4 + 5 + 6 = {} tokens run to write 4", tokens_run(3, 4)),
        Quote(
            "With p = {} and n = 256, {:,} tokens run to write 256, or {:.1f} for each",
            sizes.prompt,
            naive,
            naive / 256,
        ),
        Quote("{:,.0f} million weights in the output layer and {:,.0f} million", output / 1e6, layers / 1e6),
        Claim("a third more", output / layers, 0.3, 0.37),
        Claim(f"Measured {STATED}", results.as_stated),
        Quote("the {:,.0f} billion operations a second measured at 512", predicted.calibrated_gflops_per_second),
        Quote("| one more token after 64 | {:.1f} ms | {:.1f} ms | {:.1f} ms |", *(each[64] for each in token)),
        Quote("| one more token after 512 | {:,.0f} ms | {:,.0f} ms | {:,.0f} ms |", *(each[512] for each in token)),
        Quote("| one more token after 2,048 | {:,.0f} ms | {:,.0f} ms | {:,.0f} ms |", *(each[2048] for each in token)),
        Quote("| an answer of 128 tokens | {:.2f} s | {:.2f} s | {:.2f} s |", *(each[128] for each in answer)),
        Quote("| an answer of 256 tokens | {:.2f} s | {:.2f} s | {:.2f} s |", *(each[256] for each in answer)),
        Quote("| an answer of 512 tokens | {:.1f} s | {:.1f} s | {:.1f} s |", *(each[512] for each in answer)),
        Quote("From 256 to 512 tokens the time grows by a factor of {:.1f}, on its way to 4", growth),
        Claim("on its way to 4", growth, 2.5, 3.9),
        Claim("Short sequences take longer than predicted", token[0][64] / token[2][64], 1.05),
        Quote("At 2,048 tokens the measured time is {:.2f} of the predicted one", token[0][2048] / token[2][2048]),
        Quote("library takes {:.1f} times as long for the same work", predicted.transformers_seconds_over_ours),
        Claim("not slow for what it does", predicted.transformers_seconds_over_ours, 0.9),
        Given("for the reader", "Time: about 15 minutes to read, 60 to do."),
        Claim("about 200 lines", lines("common/model.py"), 170, 230),
        Once("with the change that an exercise asks for", "changes for one of the contract suite's 16 prompts"),
        Given("counted in the answer's own formula", "4n - 1.5", "2.5n on average"),
    ]
