"""Stage 03: a client sees its first token at once, and its last one no sooner."""

from common.bench.run import run_benchmark

from . import Question, benchmark_of, over_first

BEFORE, NOW = "02_kv_cache", "03_streaming"
BENCHMARK = benchmark_of(
    __file__,
    [BEFORE, NOW],
    seconds=36,
    quick={
        "answers": [256],
        "requests_per_answer": 3,
        "clients": [1, 4, 8, 16],
        "least_requests": 8,
        "most_tokens": 16,
    },
)
QUESTIONS = [
    Question(
        "first",
        "First text, one client",
        "An answer has {answers[0]} tokens. How many times sooner than in stage 02 does its client see the first text?",
        "Stage 02 shows all text at the end. A prefill of this prompt takes about as long as two decode steps.",
        "times",
        lambda found: (
            found.sides[NOW]["alone_whole_answer_seconds"][-1] / found.sides[NOW]["alone_first_text_seconds"][-1]
        ),
        lambda found: (
            found.sides[BEFORE]["alone_first_text_seconds"][-1] / found.sides[NOW]["alone_first_text_seconds"][-1]
        ),
        why_less="Sending every token slows down the rest of the answer, which stage 02's client waits for.",
    ),
    Question(
        "last",
        "Last text, one client",
        "How long does the same client wait for its last text, in percent of stage 02's time?",
        "Both stages run the same steps.",
        "percent",
        lambda found: 100.0,
        lambda found: (
            100
            * found.sides[NOW]["alone_whole_answer_seconds"][-1]
            / found.sides[BEFORE]["alone_whole_answer_seconds"][-1]
        ),
        why_more="Each token now costs a thread switch, a JSON object and a write to a socket.",
    ),
    Question(
        "wait",
        "Last text, many clients",
        "Several clients send their next request as soon as the last one has ended. How many times as long as a single "
        "client does each wait for its last text?",
        "The engine runs one request at a time, the oldest first. All answers are about equally long.",
        "times",
        lambda found: [float(clients) for clients in found.sizes["clients"][1:]],
        lambda found: over_first(found.sides[NOW]["e2el_p50_seconds"]),
        lambda sizes: sizes["clients"][1:],
        "clients at once",
        why_less="The first requests of the run wait for fewer others, and the answers differ in length.",
        why_more="The answers differ in length, and the queue takes the time of the mean answer, not the median.",
    ),
    Question(
        "throughput",
        "Tokens a second, many clients",
        "How many times as many tokens a second as one client do all clients get together?",
        "A step runs the token of one request, however many requests wait.",
        "times",
        lambda found: [1.0] * (len(found.sizes["clients"]) - 1),
        lambda found: over_first(found.sides[NOW]["output_tokens_per_second"]),
        lambda sizes: sizes["clients"][1:],
        "clients at once",
        why_less="Clients and server share the cores of this machine, and more clients take more of them.",
        why_more="With a queue, the engine need not wait for a client to send its next request.",
    ),
]

if __name__ == "__main__":
    run_benchmark(BENCHMARK)
