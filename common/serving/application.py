"""Add to the application of stage 03 what a public server needs: OpenAI's API, metrics, an API key, limits."""

import argparse

from fastapi import FastAPI
from fastapi.responses import Response

from common.errors import InvalidInput

from ..policies import read_keys, scheduling_of
from . import adapters_api
from .limits import BodyLimit, HeaderCheck, Origins
from .metrics import Measured
from .openai_api import responses, routes
from .openai_api.templates import set_template
from .promises import Promises
from .stream_interval import Intervals


def complete_application(app: FastAPI, engine_thread, args: argparse.Namespace) -> None:
    """Complete an application that has `POST /generate` and `GET /health`."""
    engine = engine_thread.engine
    engine.hooks.append(measured := Measured(engine, args.served_model_name or engine.name))
    defaults = engine.sampling_defaults if args.generation_config else {}
    if engine_thread.tokenizer is not None:
        set_template(engine_thread.tokenizer, args.chat_template)
    if args.ttft_objective or args.tpot_objective:
        engine.hooks.append(Promises(engine, args.ttft_objective, args.tpot_objective, scheduling_of(args)))
    if measured.model_name in engine.adapters:
        raise InvalidInput(f"{measured.model_name!r} is the model's own name: give the adapter another one")
    if args.stream_interval > 1:
        engine.hooks.append(Intervals(args.stream_interval))
    service = routes.Service(engine_thread, measured.model_name, defaults, args.scheduling)
    app.include_router(routes.router(service))
    app.include_router(responses.router(service))
    app.include_router(adapters_api.router(service, args.api_key))

    @app.get("/metrics")
    async def metrics():
        return Response(measured.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    # The last middleware added runs first: with CORS outermost, a web page can read that its key was refused.
    app.add_middleware(BodyLimit, most=args.max_body)
    tenants = {one.key: one.name for one in read_keys(args.api_keys)} if args.api_keys else {}
    app.add_middleware(HeaderCheck, keys=({args.api_key: ""} if args.api_key else {}) | tenants)
    app.add_middleware(
        Origins,
        allow_origins=args.allow_origin,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=["Retry-After"],
    )
