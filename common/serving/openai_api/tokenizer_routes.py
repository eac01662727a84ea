"""vLLM's endpoints for evaluation tools: `POST /tokenize` and `/detokenize`, `GET /tokenizer_info` and `/version`."""

import importlib.metadata
import json
from functools import partial
from typing import Any

from fastapi import APIRouter

from common.request import check_characters, check_prompt_length

from .bodies import DetokenizeBody, TokenizeBody
from .errors import BadRequest, Json, OpenAIRoute
from .routes import Service

VERSION = "1.0.0"


def router(service: Service) -> APIRouter:
    routes = APIRouter(route_class=OpenAIRoute)

    def tokenizer():
        if service.tokenizer is None:
            raise BadRequest(f"the model {service.name!r} has no tokenizer: send prompts as token ids")
        return service.tokenizer

    @routes.post("/tokenize")
    async def tokenize(body: TokenizeBody):
        service.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise BadRequest("give either a prompt or messages", "prompt")
        if body.messages is not None:
            for message in body.messages:
                message.check()
            tokens = await service.thread.beside(service.chat_tokens, body.messages, body.add_generation_prompt)
        else:
            check_characters(body.prompt)
            check_prompt_length(len(body.prompt), tokenizer(), service.engine.config)
            encode = partial(tokenizer().__call__, add_special_tokens=body.add_special_tokens)
            tokens = (await service.thread.beside(encode, body.prompt))["input_ids"]
        return Json(
            {
                "count": len(tokens),
                "max_model_len": service.engine.max_model_len,
                "tokens": tokens,
                "token_strs": tokenizer().convert_ids_to_tokens(tokens) if body.return_token_strs else None,
            }
        )

    @routes.post("/detokenize")
    async def detokenize(body: DetokenizeBody):
        service.check_model(body.model)
        size = service.engine.config.vocab_size
        if outside := [token_id for token_id in body.tokens if token_id >= size]:
            raise BadRequest(f"token id {outside[0]} is outside the vocabulary of {size} tokens", "tokens")
        return Json({"prompt": await service.thread.beside(tokenizer().decode, body.tokens)})

    @routes.get("/tokenizer_info")
    async def tokenizer_info():
        """Return what a client needs to build the same prompts itself: special tokens and chat template."""
        settings = {name: plain(value) for name, value in tokenizer().init_kwargs.items()}
        special = {name: str(value) for name, value in tokenizer().special_tokens_map.items()}
        own = {"tokenizer_class": type(tokenizer()).__name__, "chat_template": tokenizer().chat_template}
        return Json(settings | special | own)

    @routes.get("/version")
    async def version():
        return Json({"version": VERSION, "torch": importlib.metadata.version("torch")})

    return routes


def plain(value: Any) -> Any:
    """Return the value as JSON can write it: types that JSON lacks become strings."""
    return json.loads(json.dumps(value, default=str))
