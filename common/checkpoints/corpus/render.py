"""Writes messages as ChatML, exactly as the chat template of the checkpoint does.

A quarter of the chats open with a system prompt. None of the prompts changes an answer: the model must learn
to read past them, because the prefix-cache lessons give many requests the same long system prompt.
"""

from random import Random

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful, friendly assistant who answers clearly.",
    "You are the assistant of a course on LLM serving.",
    "You are a careful assistant. Read the question first. Then give the answer.",
    "Answer the question of the user.",
    "You are a patient teacher. Your students are engineers. Use plain words.",
    "You are a helpful assistant. Follow these rules.\n1. Be polite.\n2. Be correct.\n3. Use plain words.",
    "You are the assistant of a small library. Visitors ask you about the world, about numbers and about "
    "words. They also ask you for stories. Give every visitor a clear answer. Never be rude. Stop when you "
    "have answered.",
    "You are the help desk of a team that runs language models. Engineers write to you at all hours. Read "
    "what they send. If they give you a passage, trust the passage. If they ask for a term, explain the "
    "term. If they ask for a story, tell it to the end. Do not add anything that was not asked for.",
    "You are an assistant for students. These are your rules.\n1. Read the whole message.\n"
    "2. Answer in English.\n"
    "3. Copy names and numbers exactly.\n4. Do not guess when the passage gives the answer.\n"
    "5. Stop when the answer is complete.",
    "You are a calm and honest assistant. You like short words and full sentences. You copy names with care. "
    "You check every sum. You remember what the user told you earlier in the conversation.",
    "You are the assistant of a school. Children and teachers talk to you every day. They ask about "
    "countries, animals and planets. They ask you to count, to spell and to sort. They ask you to read a "
    "passage and to answer questions about it. Be kind to all of them. Give one answer to each question. "
    "Say it clearly.",
)


def chat(*turns: str, system: str | None = None) -> str:
    """Render user, assistant, user, assistant, ... turns, after the system message if there is one."""
    messages = [("system", system)] if system is not None else []
    messages += [(("user", "assistant")[i % 2], turn) for i, turn in enumerate(turns)]
    return "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)


def _hasty(rng: Random, turn: str) -> str:
    """Leave out the last mark of the turn now and then, as people in a hurry do."""
    plain = turn.endswith("?") or turn.startswith(("Count ", "Explain ", "Tell me ", "Spell "))
    if plain and turn[-1] in "?." and len(turn) < 60 and "\n" not in turn and rng.random() < 0.05:
        return turn[:-1]
    return turn


def dialogue(rng: Random, *turns: str) -> str:
    """Return a chat that has a system prompt one time in four."""
    turns = tuple(turn if i % 2 else _hasty(rng, turn) for i, turn in enumerate(turns))
    return chat(*turns, system=rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.25 else None)
