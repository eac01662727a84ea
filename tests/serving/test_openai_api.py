"""OpenAI's own client against the server: texts and shapes of answers, whole and streamed."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import openai
import pytest

from common.serving.openai_api.routes import Service
from tests.common.test_detokenizer import sentencepiece_tokenizer
from tests.helpers.scripted import scripted_server
from tests.helpers.serving_openai import ENDLESS, openai_server
from tests.helpers.serving_stage_03 import wait_until

PROMPT = "The capital of France is"
QUESTION = [{"role": "user", "content": "Count from 1 to 5."}]


@pytest.fixture(scope="module", params=[["03"], ["06", "--api-process"], ["08"]], ids=" ".join)
def service(request, loaded):
    """The stage that builds a server, a later one in two processes, and a router with workers."""
    stage, *options = request.param
    with openai_server(stage, loaded, *options) as service:
        yield service
        wait_until(service.idle)


def chat_ids(loaded, messages=QUESTION, **ending) -> list[int]:
    ending = ending or {"add_generation_prompt": True}
    return loaded.tokenizer.apply_chat_template(messages, return_dict=True, **ending)["input_ids"]


def complete(service, prompt=PROMPT, **body):
    return answered(service.client.completions, model=service.name, prompt=prompt, **body)


def chat(service, messages=QUESTION, **body):
    return answered(service.client.chat.completions, model=service.name, messages=messages, **body)


def answered(endpoint, **body):
    """Return an answer, which is the same whole and streamed; greedy, unless the body says otherwise."""
    body = {"temperature": 0.0} | body
    whole, chunks = endpoint.create(**body), list(endpoint.create(**body, stream=True))
    [(kind, _, usage)] = {(chunk.object, chunk.id, chunk.usage) for chunk in chunks}
    assert kind in (whole.object, f"{whole.object}.chunk") and usage is None
    for choice in whole.choices:
        parts = [part for chunk in chunks for part in chunk.choices if part.index == choice.index]
        reasons = [part.finish_reason for part in parts]
        assert reasons == [None] * (len(parts) - 1) + [choice.finish_reason], "one, in the last chunk"
        assert parts[-1].stop_reason == choice.stop_reason
        if hasattr(parts[0], "delta"):
            assert [part.delta.role for part in parts] == ["assistant"] + [None] * (len(parts) - 1)
            assert parts[0].delta.content, "no chunk before the first token is there"
        (streamed, values), (wanted, right) = said(parts), said([choice])
        assert streamed == wanted and values == pytest.approx(right, abs=1e-4)
    return whole


def said(parts) -> tuple[list, list]:
    """Return the text of a choice with all tokens listed and their places in it, and the log-probabilities of these."""
    text, tokens, values = "", [], []
    for part in parts:
        message = getattr(part, "message", None) or getattr(part, "delta", None)
        text += message.content if message else part.text
        if part.logprobs and message:
            tokens += [(one.token, one.bytes) for one in part.logprobs.content]
            values += [one.logprob for one in part.logprobs.content]
        elif part.logprobs:
            tokens += zip(part.logprobs.tokens, part.logprobs.text_offset, strict=True)
            values += part.logprobs.token_logprobs
    return [text, *tokens], values


# ---- Completions ----


def test_the_model_is_listed(service):
    [model] = service.client.models.list().data
    assert model.id == model.root == service.name == "bundled"
    assert service.client.models.retrieve("bundled") == model
    with pytest.raises(openai.NotFoundError):
        service.client.models.retrieve("other/model")


def test_a_seed_repeats_the_choices_of_a_call_and_they_differ(service):
    options = {"temperature": 1.0, "seed": 5, "n": 3, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
    first, second = ([choice.text for choice in complete(service, **options).choices] for _ in range(2))
    assert first == second and len(set(first)) == 3
    assert complete(service, **options | {"seed": -5}).choices


def test_streamed_text_is_the_unstreamed_text(service, loaded, expect, prompts):
    """And the engine's, for each choice of each prompt, however it ends; with `echo` behind the prompt itself."""
    start, ids = expect(PROMPT, max_tokens=20), prompts[2][:9]
    text, token_id = start.text[3:6], start.token_ids[1]
    for several, n, options in (
        (["Once upon a time", PROMPT], 2, {"max_tokens": 20}),
        ([ids, prompts[-3]], 2, {}),  # 16 tokens are the default of OpenAI's API
        ([PROMPT], 1, {"stop": [text, "never"], "include_stop_str_in_output": True}),
        ([PROMPT], 1, {"stop_token_ids": [token_id]}),
    ):
        several = [prompt for prompt in several for _ in range(n)]
        each = [expect(prompt, **{"max_tokens": 16} | options) for prompt in several]
        for echo in (False, True):
            answer = complete(service, several[::n], echo=echo, n=n, extra_body=options)
            for number, (choice, prompt, expected) in enumerate(zip(answer.choices, several, each, strict=True)):
                before = prompt if isinstance(prompt, str) else loaded.tokenizer.decode(prompt)
                assert (choice.index, choice.text) == (number, before * echo + expected.text)
                assert (choice.finish_reason, choice.stop_reason) == (expected.finish_reason, expected.stop_reason)
            tokens = sum(len(one.prompt_token_ids) for one in each[::n]), sum(len(one.token_ids) for one in each)
            assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == tokens, "a prompt counts once"
            assert answer.usage.total_tokens == sum(tokens) and answer.id.startswith("cmpl-")
    alone = complete(service, ids, max_tokens=0, echo=True, n=2)
    assert [choice.text for choice in alone.choices] == [loaded.tokenizer.decode(ids)] * 2


def test_a_stream_has_a_chunk_for_every_so_many_tokens(loaded, expect):
    """The first as soon as it has a text. A token that completes none waits for the next, whatever their number."""
    with openai_server("06", loaded, "--stream-interval", "4") as service:
        for params in ({"max_tokens": 24}, {"max_tokens": 40, "temperature": 1.5, "seed": 7}):
            params |= {"prompt": "Once upon a time", "ignore_eos": True}
            expected, events = expect(**params), service.stream(**params)
            assert "".join(event["text"] for event in events) == expected.text
            assert [token for event in events for token in event["token_ids"]] == expected.token_ids
            first, *others, last = [len(event["token_ids"]) for event in events]
            assert all(count >= 4 for count in others) and last <= 4
            assert "seed" in params or (first == 1 and max(others) == 4), "greedy text has only whole characters"
        service.hang_up_after(ENDLESS)
        wait_until(service.idle)
        assert not service.thread.engine.hooks[-1]._told, "what has ended is forgotten"


def test_usage_comes_last_if_requested(service):
    """And after each chunk with continuous_usage_stats."""
    for endpoint, body, each in (
        (service.client.completions, {"prompt": PROMPT}, False),
        (service.client.chat.completions, {"messages": QUESTION}, True),
    ):
        asked = {"include_usage": True, "continuous_usage_stats": each}
        body = body | {"model": service.name, "max_tokens": 16, "extra_body": {"ignore_eos": True}}
        *chunks, last = endpoint.create(**body, stream=True, stream_options=asked)
        assert last.choices == [] and last.usage.completion_tokens == 16 and all(chunk.choices for chunk in chunks)
        assert "usage" in chunks[0].model_fields_set, "null, and not left out"
        counts = [chunk.usage and chunk.usage.completion_tokens for chunk in chunks]
        assert counts == (sorted(counts) if each else [None] * len(chunks))
        assert not each or counts[0] < counts[-1] == 16


# ---- Chat ----


def test_chat_messages_go_through_the_chat_template(service, loaded, expect):
    system, begun = {"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "1, 2,"}
    for messages, ending in (
        (QUESTION, {"add_generation_prompt": True}),
        ([system, *QUESTION, begun, *QUESTION], {"add_generation_prompt": True}),
        ([*QUESTION, begun], {"continue_final_message": True}),
        (QUESTION, {"add_generation_prompt": False}),
    ):
        expected = expect(chat_ids(loaded, messages, **ending), max_tokens=60)
        answer = chat(service, messages, max_completion_tokens=60, extra_body=ending)
        message, reason = answer.choices[0].message, answer.choices[0].finish_reason
        assert (message.role, message.content, reason) == ("assistant", expected.text, expected.finish_reason)
        assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)


# ---- Log-probabilities ----


def test_logprobs_are_the_engines(service, loaded, expect):
    for most, listed_for_each in ((3, 3), (0, 1)):  # With 0, the sampled token itself is listed.
        expected = expect(PROMPT, max_tokens=6, logprobs=most)
        listed = complete(service, max_tokens=6, logprobs=most).choices[0].logprobs
        assert listed.token_logprobs == pytest.approx([entry.logprob for entry in expected.logprobs], abs=1e-4)
        assert [max(top.values()) for top in listed.top_logprobs] == listed.token_logprobs, "greedy takes the likeliest"
        assert {len(top) for top in listed.top_logprobs} == {listed_for_each}
    for most in (2, None):
        expected = expect(chat_ids(loaded), max_tokens=5, logprobs=most or 0).logprobs
        entries = chat(service, max_tokens=5, logprobs=True, top_logprobs=most).choices[0].logprobs.content
        assert [one.logprob for one in entries] == pytest.approx([one.logprob for one in expected], abs=1e-4)
        assert all(len(one.top_logprobs) == (most or 0) for one in entries)


def test_the_bytes_of_tokens_are_those_of_the_text(service, loaded):
    text, content = "é 🙂", []
    for token_id in loaded.tokenizer(text)["input_ids"]:
        answer = chat(service, max_tokens=1, logprobs=True, logit_bias={str(token_id): 100})
        content += answer.choices[0].logprobs.content[0].bytes
    assert bytes(content).decode() == text
    tokenizer = SimpleNamespace(convert_ids_to_tokens=["<0xF0>", "▁\ufffd"].__getitem__)  # of SentencePiece
    other = SimpleNamespace(tokenizer=tokenizer, token_text=lambda token_id, first: "\ufffd")
    assert [Service.token_bytes(other, token_id, False) for token_id in range(2)] == [[0xF0], None]


def test_tokens_have_the_texts_of_their_places(loaded):
    """A decoder of SentencePiece drops the blank of what stands first. Tokens that look alike are several."""
    mine = replace(loaded, tokenizer=sentencepiece_tokenizer())
    ids = mine.tokenizer("the tin ñ")["input_ids"]
    with scripted_server(mine) as service:
        for prompt, first, echo in (("a", " the", False), ([1, 1], "the", False), ("the tin ñ", "the", True)):
            service.engine.model.write([] if echo else ids)
            [choice] = complete(service, prompt, logprobs=20, max_tokens=0 if echo else 6, echo=echo).choices
            listed = choice.logprobs
            assert choice.text == f"{first} tin ñ" and listed.tokens[:4] == [first, " t", "in", " "]
            assert listed.text_offset == [0, *(len(first) + further for further in (0, 2, 4, 5, 5))]
            assert all(len(likeliest) in (20, 21) for likeliest in listed.top_logprobs[1:]), "none is swallowed"


def test_prompt_logprobs_as_evaluation_harnesses_request_them(service, expect, prompts):
    """They are those that the engine gives for the same tokens as output, which a bias forces it to draw."""
    prompt = prompts[4][:20]  # more than a slice of the answer
    entries = [
        expect(prompt[:place], max_tokens=1, logprobs=1, logit_bias={prompt[place]: 100}).logprobs[0]
        for place in range(1, len(prompt))
    ]
    for max_tokens in (0, 1):
        answer = complete(service, [prompt, prompt[:7]], max_tokens=max_tokens, echo=True, logprobs=1, seed=1)
        for choice, count in zip(answer.choices, (20, 7), strict=True):
            listed = choice.logprobs
            assert len(listed.tokens) == count + max_tokens
            assert listed.token_logprobs[0] is None and listed.top_logprobs[0] is None
            right = entries[: count - 1]
            assert listed.token_logprobs[1:count] == pytest.approx([one.logprob for one in right], abs=1e-3)
            likeliest = [max(top.values()) for top in listed.top_logprobs[1:count]]
            assert likeliest == pytest.approx([one.top[0][1] for one in right], abs=1e-3)
        assert answer.usage.completion_tokens == 2 * max_tokens


# ---- What vLLM adds ----

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
READS_ALL = (
    "<tool_call> {{ tools }} {{ mood }} {{ reasoning_effort }}"
    "{% for m in messages %}{{ m.role }}: {{ m.reasoning_content }}|{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def test_tokenize_counts_what_a_chat_would_send(loaded):
    """All that a template reads: tools, its own variables, an assistant's reasoning, how the prompt ends."""
    reading = copy.deepcopy(loaded.tokenizer)
    reading.chat_template = READS_ALL
    turns = [*QUESTION, {"role": "assistant", "content": "One.", "reasoning_content": "It begins so."}]
    fields = {"messages": turns, "tools": TOOLS, "chat_template_kwargs": {"mood": "glad"}, "reasoning_effort": "low"}
    with openai_server("06", replace(loaded, tokenizer=reading)) as service:
        for ending in ({}, {"add_generation_prompt": False}, {"continue_final_message": True}):
            asked = fields | ending
            usage = service.post("/v1/chat/completions", max_tokens=1, tool_choice="none", **asked).json()["usage"]
            counted = service.post("/tokenize", **asked).json()
            assert counted["count"] == usage["prompt_tokens"]
            prompt = service.post("/detokenize", tokens=counted["tokens"]).json()["prompt"]
            assert all(part in prompt for part in ("It begins so.", "'weather'", "glad", "low"))


def test_tokenize_and_back(service, loaded):
    text = "Łódź has a café 🐢."
    answer = service.post("/tokenize", prompt=text, tools=None, continue_final_message=False).json()
    assert answer["tokens"] == loaded.tokenizer(text)["input_ids"] and answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == loaded.config.context_length
    assert service.post("/detokenize", tokens=answer["tokens"]).json() == {"prompt": text}
    answer = service.post("/tokenize", messages=QUESTION, return_token_strs=True).json()
    assert answer["tokens"] == chat_ids(loaded) and len(answer["token_strs"]) == answer["count"]
    info = service.get("/tokenizer_info").json()
    assert info["chat_template"] == loaded.tokenizer.chat_template and info["eos_token"] == loaded.tokenizer.eos_token
    assert service.get("/version").json()["version"]
