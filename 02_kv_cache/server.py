"""The smallest server: Flask, one request at a time, the whole answer at once."""

import argparse
import threading

from flask import Flask, jsonify, request
from werkzeug.exceptions import HTTPException

from common.engine import BaseEngine
from common.errors import InvalidInput
from common.serving.generate_api import completion_json, parse_generate_body


def create_app(engine: BaseEngine) -> Flask:
    """Build the application: `POST /generate` and `GET /health`. Errors are {"error": one sentence}."""
    app = Flask(__name__)
    # Flask answers every client on a thread of its own, but an engine belongs to one thread at a time.
    engine_lock = threading.Lock()

    @app.post("/generate")
    def generate():
        body = parse_generate_body(request.get_data())
        if body.stream:
            raise InvalidInput("this stage cannot stream: stage 03 can")
        with engine_lock:
            [completion] = engine.generate([body.prompt], body.params)
        return jsonify(completion_json(completion))

    @app.get("/health")
    def health():
        # No lock here: a health check must not wait for an answer, and `stats` changes nothing.
        return jsonify(status="ok", **engine.stats())

    @app.errorhandler(InvalidInput)
    def bad_request(error: InvalidInput):
        return jsonify(error=str(error)), 400

    @app.errorhandler(HTTPException)
    def http_error(error: HTTPException):
        return jsonify(error=error.description), error.code

    return app


def serve(engine: BaseEngine, args: argparse.Namespace) -> None:
    """Serve until Ctrl-C."""
    create_app(engine).run(host=args.host, port=args.port, threaded=True)
