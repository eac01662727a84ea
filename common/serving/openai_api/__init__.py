"""The endpoints of OpenAI's API over an engine thread, and those that vLLM adds to them.

| endpoint | file |
|---|---|
| `POST /v1/completions`, `POST /v1/chat/completions`, `GET /v1/models` | routes.py |
| `POST /tokenize`, `POST /detokenize`, `GET /tokenizer_info`, `GET /version` | tokenizer_routes.py |

bodies.py defines what a body may contain and turns it into prompts and `SamplingParams`; answers.py writes the JSON of
answers, whole or in chunks; calls.py joins the streams of one call, slices.py writes large answers in slices; errors.py
gives every error the shape that clients of the API expect.
"""
