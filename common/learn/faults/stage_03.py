"""Faults that a learner meets in stage 03: streams, clients that leave, and text that is not certain yet."""

from .fault import Fault

STREAMING, TROUBLE = "tests/stages/test_03_streaming.py::{}", "tests/stages/test_03_streaming_trouble.py::{}"
DETOKENIZER = "tests/common/test_detokenizer.py::{}"

FAULTS = [
    Fault(
        number=7,
        stage="03",
        symptom='With stop="\\nUser:" streams end with "\\nUs" or "\\nUser". Unstreamed answers are right.',
        difficulty=1,
        hints=(
            "When is a character of the text certain, and may be sent?",
            "A stop string spans several tokens. What has been sent when its last character comes?",
        ),
        story="The stop string is found when its last character arrives, and the text is cut. By then a stream has "
        "sent the beginning. The end of the text has to wait for as long as it may be the beginning of a stop "
        "string. vLLM added such a buffer after this report; SGLang and others followed.",
        source="vllm-project/vllm#3574",
        file="03_streaming/engine_thread.py",
        old="request, certain = self.request, self.request.certain_length",
        new="request, certain = self.request, len(self.request.text)",
        caught_by=STREAMING.format("test_stop_strings_that_span_tokens"),
        reproduce="""
from serving_stage_03 import serving

[full] = Engine(loaded).generate([STORY], endless(max_tokens=24))
with serving(Engine(loaded)) as service:
    events = service.stream(prompt=STORY, max_tokens=24, ignore_eos=True, stop=full.text[9:16])
sent = "".join(event["text"] for event in events)
assert sent == full.text[:9], f"{sent!r} in place of {full.text[:9]!r}"
""",
    ),
    Fault(
        number=8,
        stage="03",
        symptom="Streams sometimes lack their last few characters. Only requests with stop strings are affected.",
        difficulty=2,
        hints=(
            "Which text is held back, and what lets it go?",
            "An answer that ends by its length ends while text is held back. Look at the property that counts it.",
        ),
        story="Text that may begin a stop string is held back. When the answer ends for another reason, no stop "
        "string can follow, and what is held is part of the answer. llama.cpp's server held it and forgot it at "
        "the end of the text: `UNO DUE TRE` came out as `UNO DUE`, because the stop string began with TRE.",
        source="ggml-org/llama.cpp#15007",
        file="common/request.py",
        old="return len(self.text) - (0 if self.finished else self._stops.held)",
        new="return len(self.text) - self._stops.held",
        caught_by=STREAMING.format("test_stop_strings_that_span_tokens"),
        reproduce="""
from serving_stage_03 import serving

[full] = Engine(loaded).generate([STORY], endless(max_tokens=24))
with serving(Engine(loaded)) as service:
    events = service.stream(prompt=STORY, max_tokens=24, ignore_eos=True, stop=full.text[-3:] + "but no")
sent = "".join(event["text"] for event in events)
assert sent == full.text, f"{full.text.removeprefix(sent)!r} was never sent"
""",
    ),
    Fault(
        number=9,
        stage="03",
        symptom="The machine stays busy after users have left. With `stream: true` it does not.",
        difficulty=2,
        hints=(
            "Which code notices that a client has disconnected, and for how long does it look?",
            "Follow `watch` through `generate` for an answer that is not streamed.",
        ),
        story="A web framework cancels a streamed response when its client leaves, because writing fails. A handler "
        "that only waits hears nothing, unless a task watches the connection meanwhile. Here the watch ends "
        "before the waiting begins: two lines in the wrong order. vLLM's users have reported such requests many "
        "times.",
        source="vllm-project/vllm#9428",
        file="03_streaming/server.py",
        old="        request = await stream.finished()\n        watch.cancel()\n",
        new="        watch.cancel()\n        request = await stream.finished()\n",
        caught_by=TROUBLE.format("test_the_answer_of_a_client_that_leaves_is_not_computed"),
        reproduce="""
from serving_stage_03 import SteppingEngine, serving, wait_until

engine = SteppingEngine(loaded)
with serving(engine) as service:
    client = service.ask(prompt=STORY, max_tokens=100, ignore_eos=True)
    engine.allow(4)
    wait_until(lambda: engine.trace.steps == 4)
    client.close()
    wait_until(lambda: service.thread.aborted, 5)
    engine.allow()
""",
    ),
    Fault(
        number=10,
        stage="03",
        symptom="When the engine fails, new requests get an error at once. Requests that were running wait for ever.",
        difficulty=1,
        hints=(
            "What does a stream wait for when no step will ever come again?",
            "List requests that wait when the engine's thread dies: those being accepted, and those being answered.",
        ),
        story="An exception ends the loop that would have produced the next token, and nothing tells the streams. In "
        "vLLM a LoRA adapter that could not be loaded ended the loop, and clients' sessions hung without an "
        "end. The code that notices a failure has to end all that depended on the part that failed.",
        source="vllm-project/vllm#3310",
        file="03_streaming/engine_thread.py",
        old='        self._deliver([(stream, Piece("", [], [], "error")) for stream in self._open])\n',
        new="",
        caught_by=TROUBLE.format("test_when_the_engine_fails_every_client_gets_an_error"),
        reproduce="""
from serving_stage_03 import SteppingEngine, serving

engine = SteppingEngine(loaded)
engine.failure = RuntimeError("out of memory, say (this traceback is expected)")
with serving(engine) as service:
    client = service.ask(prompt=STORY, max_tokens=5)
    client.settimeout(5)
    engine.allow()
    assert b" 503 " in client.recv(1000)  # TimeoutError: no answer
""",
    ),
    Fault(
        number=11,
        stage="03",
        symptom="After some hours every request is refused with 429, although /health shows an idle engine.",
        difficulty=2,
        hints=(
            "The queue is full of something. What leaves it, and when?",
            "Requests end in several ways. Which of them still count as open?",
        ),
        story="Requests that were cancelled stay in the count of open ones, one for each client that left, until no "
        "place is free. vllm-ascend's waiting queue filled up with cancelled requests in the same way. Nothing "
        "is wrong with any single request, so only a long test with clients that leave shows it.",
        source="vllm-project/vllm-ascend#2426",
        file="03_streaming/engine_thread.py",
        old="            if piece.finish_reason is not None:\n                self._open.discard(stream)",
        new='            if piece.finish_reason not in (None, "abort"):\n                self._open.discard(stream)',
        caught_by=TROUBLE.format("test_a_client_that_leaves_makes_room"),
        reproduce="""
from serving_stage_03 import SteppingEngine, serving, wait_until

engine = SteppingEngine(loaded)
with serving(engine, max_queue=1) as service:
    client = service.ask(prompt=STORY, max_tokens=100, ignore_eos=True)
    wait_until(lambda: engine.requests)
    client.close()
    wait_until(lambda: service.thread.aborted)
    engine.allow()
    wait_until(lambda: not engine.has_unfinished)
    answer = service.post(prompt=STORY, max_tokens=1)
    assert answer.status_code == 200, answer.text
""",
    ),
    Fault(
        number=12,
        stage="03",
        symptom="Emoji and Chinese characters arrive as ��� in streams, and in unstreamed answers too.",
        difficulty=1,
        hints=(
            "A character may take several tokens. What does the text look like after the first of them?",
            "Which characters at the end of the decoded window are not complete yet?",
        ),
        story="A token is a piece of bytes. Decode the first of the three tokens of an emoji, and the decoder writes "
        "a replacement character for bytes that are no character yet. Send it, and it cannot be taken back. "
        "vllm-mlx, exo and mlx-vlm each decoded token by token, and each sent broken characters.",
        source="waybarrios/vllm-mlx#109",
        file="common/detokenizer.py",
        old="complete = len(text.rstrip(REPLACEMENT))",
        new="complete = len(text)",
        caught_by=DETOKENIZER.format("test_each_character_comes_with_the_token_that_completes_it"),
        reproduce="""
from common.detokenizer import IncrementalDetokenizer

detokenizer = IncrementalDetokenizer(loaded.tokenizer, loaded.tokenizer("A turtle: ")["input_ids"])
pieces = [detokenizer.append(token) for token in loaded.tokenizer("🐢 日本")["input_ids"]]
assert "".join(pieces) == "🐢 日本", pieces
""",
    ),
    Fault(
        number=13,
        stage="03",
        symptom="Some stop strings are ignored and the answer runs on to max_tokens. Short ones always work.",
        difficulty=2,
        hints=(
            "Tokens do not respect the borders of a stop string. How is a match that began in an earlier token kept?",
            "Feed the search one character at a time, and then the same text at once.",
        ),
        story="The stop string is searched in each new piece of text by itself, and it spans two pieces. The short "
        "ones fit into one token, so a quick test passes. mlx-knife checked `any(s in token for s in stop)` and "
        "had the same. The search has to remember how much of each string the text ends with.",
        source="mzau/mlx-knife#68",
        file="common/detokenizer.py",
        old="            matched = self._matched[number]\n",
        new="            matched = 0\n",
        caught_by=DETOKENIZER.format("test_the_earliest_stop_string_is_found_and_no_shown_text_is_taken_back"),
        reproduce="""
[full] = Engine(loaded).generate([STORY], endless(max_tokens=24))
[cut] = Engine(loaded).generate([STORY], endless(max_tokens=24, stop=full.text[9:26]))
assert cut.text == full.text[:9], f"{cut.text!r} runs past {full.text[9:26]!r}"
""",
    ),
]
