"""OpenAI's own client against the server: texts and shapes of answers, whole and streamed."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import openai
import pytest

from common.serving.openai_api.routes import Service
from tests.common.test_detokenizer import sentencepiece_tokenizer
from tests.helpers.scripted import scripted_server
from tests.helpers.serving_openai import ENDLESS, STAGES, openai_server
from tests.helpers.serving_stage_03 import wait_until

pytestmark = pytest.mark.usefixtures("apart")

PROMPT = "The capital of France is"
QUESTION = [{"role": "user", "content": "Count from 1 to 5."}]
GREEDY = {"temperature": 0.0}


@pytest.fixture(scope="module", params=STAGES)
def service(request, loaded):
    with openai_server(request.param, loaded) as service:
        yield service
        wait_until(service.idle)


def chat_ids(loaded, messages) -> list[int]:
    return loaded.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]


def complete(service, prompt=PROMPT, **options):
    return service.client.completions.create(model=service.name, prompt=prompt, **GREEDY | options)


def chat(service, messages=QUESTION, **options):
    return service.client.chat.completions.create(model=service.name, messages=messages, **GREEDY | options)


# ---- Completions ----


def test_the_model_is_listed(service):
    [model] = service.client.models.list().data
    assert model.id == service.name == "bundled" and model.root == "bundled"
    assert service.client.models.retrieve("bundled") == model
    with pytest.raises(openai.NotFoundError, match="'other/model' does not exist"):
        service.client.models.retrieve("other/model")


def test_several_prompts_and_choices(service, expect, prompts):
    for several in ([prompts[1], prompts[-3]], ["Once upon a time", PROMPT], PROMPT):
        expected = [expect(prompt, max_tokens=20) for prompt in ([several] if several == PROMPT else several)]
        answer = complete(service, several, max_tokens=20, n=2)
        said = [
            (index, one.text, one.finish_reason) for index, one in enumerate(one for one in expected for _ in range(2))
        ]
        assert [(choice.index, choice.text, choice.finish_reason) for choice in answer.choices] == said
        assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
        tokens = sum(len(one.prompt_token_ids) for one in expected), 2 * sum(len(one.token_ids) for one in expected)
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == tokens, "a prompt counts once"
        assert answer.usage.total_tokens == sum(tokens)


def test_a_seed_repeats_the_choices_of_a_call_and_they_differ(service):
    options = {"temperature": 1.0, "seed": 5, "n": 3, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
    first, second = ([choice.text for choice in complete(service, **options).choices] for _ in range(2))
    assert first == second and len(set(first)) == 3
    assert complete(service, **options | {"seed": -5}).choices


def test_streamed_text_is_the_unstreamed_text(service, prompts):
    for options in ({"max_tokens": 20}, {"max_tokens": 20, "n": 2}, {"max_tokens": 30, "stop": ["e"]}):
        whole = complete(service, prompts[3], **options)
        chunks = list(complete(service, prompts[3], stream=True, **options))
        assert {(chunk.object, chunk.id, chunk.usage) for chunk in chunks} == {("text_completion", chunks[0].id, None)}
        for choice in whole.choices:
            parts = [part for chunk in chunks for part in chunk.choices if part.index == choice.index]
            assert "".join(part.text for part in parts) == choice.text
            reasons = [part.finish_reason for part in parts]
            assert reasons == [None] * (len(parts) - 1) + [choice.finish_reason], "one, in the last chunk"


def test_a_stream_has_a_chunk_for_every_so_many_tokens(loaded, expect):
    """The first as soon as it has a text. A token that completes none waits for the next, whatever their number."""
    with openai_server("06", loaded, "--stream-interval", "4") as service:
        for params in ({"max_tokens": 24}, {"max_tokens": 40, "temperature": 1.5, "seed": 7}, {"max_tokens": 1}):
            params |= {"prompt": "Once upon a time", "ignore_eos": True}
            expected, events = expect(**params), service.stream(**params)
            assert "".join(event["text"] for event in events) == expected.text
            assert [token for event in events for token in event["token_ids"]] == expected.token_ids
            first, *others = [len(event["token_ids"]) for event in events]
            if "seed" not in params:  # only whole characters
                assert first == 1 and set(others[:-1]) <= {4}
            assert others[:-1] == [count for count in others[:-1] if count >= 4] and sum(others[-1:]) <= 4
        service.hang_up_after(ENDLESS)
        wait_until(service.idle)
        assert not service.thread.engine._told, "what has ended is forgotten"


def test_usage_comes_last_if_requested(service):
    """And after each chunk with continuous_usage_stats. 16 tokens are the default of OpenAI's API."""
    for each in (False, True):
        asked = {"include_usage": True, "continuous_usage_stats": each}
        *chunks, last = complete(service, stream=True, stream_options=asked, extra_body={"ignore_eos": True})
        assert last.choices == [] and last.usage.completion_tokens == 16 and all(chunk.choices for chunk in chunks)
        assert "usage" in chunks[0].model_fields_set, "null, and not left out"
        counts = [chunk.usage and chunk.usage.completion_tokens for chunk in chunks]
        if each:
            assert counts == sorted(counts) and counts[0] < counts[-1] == 16
        else:
            assert counts == [None] * len(chunks)


def test_stop_reasons(service, expect):
    text, token_id = expect(PROMPT, max_tokens=20).text, expect(PROMPT, max_tokens=2).token_ids[1]
    for name, stop, *texts in (
        ("stop", text[3:6], text[:3], text[:6]),
        ("stop_token_ids", token_id, *(expect(PROMPT, max_tokens=count).text for count in (1, 2))),
    ):
        for included, expected in enumerate(texts):
            body = {"max_tokens": 20, name: [stop], "include_stop_str_in_output": bool(included)}
            [choice] = complete(service, extra_body=body).choices
            assert (choice.text, choice.finish_reason, choice.stop_reason) == (expected, "stop", stop)
            [*_, last] = complete(service, extra_body=body, stream=True)
            assert last.choices[0].stop_reason == stop


# ---- Chat ----


def test_chat_messages_go_through_the_chat_template(service, loaded, expect):
    expected = expect(chat_ids(loaded, QUESTION), max_tokens=60)
    answer = chat(service, max_completion_tokens=60)
    message, reason = answer.choices[0].message, answer.choices[0].finish_reason
    assert (message.role, message.content, answer.object) == ("assistant", expected.text, "chat.completion")
    assert reason == "stop" == expected.finish_reason
    turns = [{"role": "system", "content": "Be brief."}, *QUESTION, {"role": "assistant", "content": "1"}, *QUESTION]
    assert chat(service, turns, max_tokens=9).usage.prompt_tokens == len(chat_ids(loaded, turns))


def test_a_final_message_can_be_continued(service, loaded, expect):
    turns = [*QUESTION, {"role": "assistant", "content": "1, 2,"}]
    ids = loaded.tokenizer.apply_chat_template(turns, continue_final_message=True, return_dict=True)["input_ids"]
    answer = chat(service, turns, max_tokens=5, extra_body={"continue_final_message": True})
    assert answer.choices[0].message.content == expect(ids, max_tokens=5).text
    assert answer.usage.prompt_tokens == len(ids) < len(chat_ids(loaded, turns))
    open_end = chat(service, max_tokens=1, extra_body={"add_generation_prompt": False})
    assert open_end.usage.prompt_tokens < len(chat_ids(loaded, QUESTION))


def test_streamed_chat(service):
    whole = chat(service, max_tokens=40)
    *chunks, last = chat(service, max_tokens=40, stream=True, stream_options={"include_usage": True})
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"} and last.usage == whole.usage
    parts = [(chunk.choices[0].delta, chunk.choices[0].finish_reason) for chunk in chunks]
    assert "".join(delta.content for delta, _ in parts) == whole.choices[0].message.content
    assert [delta.role for delta, _ in parts] == ["assistant"] + [None] * (len(parts) - 1)
    assert parts[0][0].content, "no chunk before the first token is there"
    assert [reason for _, reason in parts] == [None] * (len(parts) - 1) + [whole.choices[0].finish_reason]


# ---- Log-probabilities ----


def listed(chunks) -> tuple[str, list, list, list, list]:
    """Return the text of completions, and the lists of their log-probabilities, from all chunks together."""
    parts = [chunk.choices[0] for chunk in chunks]
    names = ("tokens", "token_logprobs", "text_offset", "top_logprobs")
    lists = ([one for part in parts for one in getattr(part.logprobs, name)] for name in names)
    return "".join(part.text for part in parts), *lists


def test_completion_logprobs(service, expect):
    expected = expect(PROMPT, max_tokens=6, logprobs=3)
    for stream in (False, True):
        answer = complete(service, max_tokens=6, logprobs=3, stream=stream)
        _, tokens, values, offsets, likeliest = listed(answer if stream else [answer])
        assert values == pytest.approx([entry.logprob for entry in expected.logprobs], abs=1e-4)
        assert "".join(tokens).startswith(expected.text)
        assert offsets == [len("".join(tokens[:i])) for i in range(len(tokens))]
        for top, value in zip(likeliest, values, strict=True):
            assert len(top) == 3 and max(top.values()) == pytest.approx(value), "greedy takes the likeliest"
    none = complete(service, max_tokens=2, logprobs=0).choices[0].logprobs
    assert [len(top) for top in none.top_logprobs] == [1, 1], "the sampled token itself"


def test_chat_logprobs(service, loaded, expect):
    expected = [one.logprob for one in expect(chat_ids(loaded, QUESTION), max_tokens=5, logprobs=2).logprobs]
    for stream in (False, True):
        answer = chat(service, max_tokens=5, logprobs=True, top_logprobs=2, stream=stream)
        entries = [entry for chunk in (answer if stream else [answer]) for entry in chunk.choices[0].logprobs.content]
        assert [entry.logprob for entry in entries] == pytest.approx(expected, abs=1e-4)
        assert all(len(entry.top_logprobs) == 2 and bytes(entry.bytes).decode() == entry.token for entry in entries)
    assert chat(service, max_tokens=3, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def test_the_bytes_of_tokens_are_those_of_the_text(service, loaded):
    text, content = "é 🙂", []
    for token_id in loaded.tokenizer(text)["input_ids"]:
        answer = chat(service, max_tokens=1, logprobs=True, logit_bias={str(token_id): 100})
        content += answer.choices[0].logprobs.content[0].bytes
    assert bytes(content).decode() == text
    tokenizer = SimpleNamespace(convert_ids_to_tokens=["<0xF0>", "▁\ufffd"].__getitem__)  # of SentencePiece
    other = SimpleNamespace(tokenizer=tokenizer, token_text=lambda token_id, first: "\ufffd")
    assert [Service.token_bytes(other, token_id, False) for token_id in range(2)] == [[0xF0], None]


@pytest.mark.parametrize(("prompt", "first"), [("a", " the"), ([1, 1], "the"), ("the tin ñ", "the"), (None, "the")])
def test_tokens_have_the_texts_of_their_places(loaded, prompt, first):
    """A decoder of SentencePiece drops the blank of what stands first. Tokens that look alike are several."""
    mine = replace(loaded, tokenizer=sentencepiece_tokenizer())
    ids = mine.tokenizer("the tin ñ")["input_ids"]
    echo = prompt in ("the tin ñ", None)
    with scripted_server(mine) as service:
        service.engine.model.write([] if echo else ids)
        answer = complete(service, prompt or ids, logprobs=20, max_tokens=0 if echo else 6, echo=echo, stream=True)
        text, tokens, _, offsets, top = listed(answer)
    assert text == f"{first} tin ñ" and tokens[:4] == [first, " t", "in", " "]
    assert offsets == [0, *(len(first) + further for further in (0, 2, 4, 5, 5))]
    assert all(len(likeliest) in (20, 21) for likeliest in top[1:]), "none is swallowed"


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_prompt_logprobs_as_evaluation_harnesses_request_them(service, expect, prompts, max_tokens):
    """Those that the engine gives for the same tokens as output, to which a bias forces it."""
    prompt = prompts[4][:12]
    answer = complete(service, [prompt, prompt[:7]], max_tokens=max_tokens, echo=True, logprobs=1, seed=1)
    for choice, ids in zip(answer.choices, (prompt, prompt[:7]), strict=True):
        listed = choice.logprobs
        assert len(listed.tokens) == len(ids) + max_tokens
        assert listed.token_logprobs[0] is None and listed.top_logprobs[0] is None
        for place in range(1, len(ids)):
            [entry] = expect(ids[:place], max_tokens=1, logprobs=1, logit_bias={ids[place]: 100}).logprobs
            assert listed.token_logprobs[place] == pytest.approx(entry.logprob, abs=1e-3)
            assert max(listed.top_logprobs[place].values()) == pytest.approx(entry.top[0][1], abs=1e-3)
    assert answer.usage.completion_tokens == 2 * max_tokens


def test_echo(service, loaded, expect, prompts):
    ids = prompts[2][:9]
    for prompt, text in ((PROMPT, PROMPT), (ids, loaded.tokenizer.decode(ids))):
        for max_tokens in (0, 4):
            expected = text + (expect(prompt, max_tokens=4).text if max_tokens else "")
            whole = complete(service, prompt, max_tokens=max_tokens, echo=True, n=2)
            assert [choice.text for choice in whole.choices] == [expected] * 2
            texts = ["", ""]
            for chunk in complete(service, prompt, max_tokens=max_tokens, echo=True, stream=True, n=2):
                texts[chunk.choices[0].index] += chunk.choices[0].text
            assert texts == [expected] * 2


# ---- What vLLM adds ----

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
READS_ALL = (
    "{% for m in messages %}{{ m.role }}: {{ m.reasoning_content }}|{{ m.content }}\n{% endfor %}"
    "{{ tools }} {{ mood }} {{ reasoning_effort }} <tool_call>{% if add_generation_prompt %}assistant:{% endif %}"
)


def test_tokenize_counts_what_a_chat_would_send(loaded):
    """All that a template reads: tools, its own variables, an assistant's reasoning, how the prompt ends."""
    reading = copy.deepcopy(loaded.tokenizer)
    reading.chat_template = READS_ALL
    turns = [*QUESTION, {"role": "assistant", "content": "One.", "reasoning_content": "It begins so."}]
    prompts = set()
    with openai_server("06", replace(loaded, tokenizer=reading)) as service:
        for fields in (
            {"messages": turns},
            {"messages": turns, "tools": TOOLS, "tool_choice": "none"},
            {"messages": turns, "chat_template_kwargs": {"mood": "glad and gay"}},
            {"messages": turns, "reasoning_effort": "low"},
            {"messages": turns, "add_generation_prompt": False},
            {"messages": turns, "continue_final_message": True},
        ):
            usage = service.post("/v1/chat/completions", max_tokens=1, **fields).json()["usage"]
            fields.pop("tool_choice", None)
            counted = service.post("/tokenize", **fields).json()
            assert counted["count"] == usage["prompt_tokens"]
            prompt = service.post("/detokenize", tokens=counted["tokens"]).json()["prompt"]
            prompts.add(prompt)
            assert "It begins so." in prompt
    assert len(prompts) == 6


def test_tokenize_and_back(service, loaded):
    text = "Łódź has a café 🐢."
    answer = service.post("/tokenize", prompt=text).json()
    assert answer["tokens"] == loaded.tokenizer(text)["input_ids"] and answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == loaded.config.context_length
    assert service.post("/detokenize", tokens=answer["tokens"]).json() == {"prompt": text}
    answer = service.post("/tokenize", messages=QUESTION, return_token_strs=True).json()
    assert answer["tokens"] == chat_ids(loaded, QUESTION) and len(answer["token_strs"]) == answer["count"]
    for path, fields in (("/tokenize", {"prompt": text}), ("/detokenize", {"tokens": [5]})):
        assert service.post(path, **fields, nonsense=1).json()["error"]["param"] == "nonsense"
    assert service.post("/tokenize", prompt=text, tools=TOOLS).json()["error"]["param"] == "tools"
    assert service.post("/tokenize", prompt=text, tools=None, continue_final_message=False).status_code == 200
    info = service.get("/tokenizer_info").json()
    assert info["chat_template"] == loaded.tokenizer.chat_template and info["eos_token"] == loaded.tokenizer.eos_token
    assert service.get("/version").json()["version"]
