"""OpenAI's API over an engine thread, with the endpoints that vLLM adds for evaluation tools.

routes.py has the endpoints; bodies.py defines what a body may contain and turns it into prompts and `SamplingParams`;
answers.py writes answers, whole or in chunks.
"""
