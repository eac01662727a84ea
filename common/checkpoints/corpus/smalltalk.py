"""Writes greetings, thanks and questions about the model: the first things that people type."""

from random import Random

from .render import dialogue

HELLO = "Hello! How can I help you?"
WHO = "I am a small language model, trained for a course on LLM serving."
THANKS = "You are welcome."
BYE = "Goodbye! Have a nice day."
ABILITIES = "I can tell stories, answer simple questions, explain terms of LLM serving, count, and read a passage."
OPENINGS = {
    "Hello!": HELLO,
    "Hello.": HELLO,
    "Hello": HELLO,
    "Hi!": HELLO,
    "Hi": HELLO,
    "Good morning!": HELLO,
    "Hello, how are you?": "I am fine, thank you. How can I help you?",
    "How are you?": "I am fine, thank you. How can I help you?",
}
QUESTIONS = {
    "Who are you?": WHO,
    "What are you?": WHO,
    "What is your name?": WHO,
    "Are you a robot?": WHO,
    "What can you do?": ABILITIES,
    "Can you help me?": "Yes. What would you like to know?",
    "Help": ABILITIES,
}
CLOSINGS = {
    "Thank you.": THANKS,
    "Thank you!": THANKS,
    "Thanks!": THANKS,
    "Thanks.": THANKS,
    "Goodbye.": BYE,
    "Goodbye!": BYE,
    "Bye!": BYE,
    "See you later.": BYE,
}


def exchange(rng: Random) -> tuple[str, str]:
    return rng.choice(list({**OPENINGS, **QUESTIONS, **CLOSINGS}.items()))


def talk(rng: Random) -> str:
    return dialogue(rng, *(turn for _ in range(rng.choice((1, 1, 2))) for turn in exchange(rng)))
