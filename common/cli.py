"""The command line that every stage shares: `--demo`, `--prompt TEXT` or `--serve`.

A stage's main.py hands over its folder, where engine.py and demo.py stand (and up to stage 03 a server.py of its own,
later ones share that of common.serving); what no stage does differently stands here. An argument that main.py adds and
that has the name of a parameter of the stage's Engine is given to it.
"""

import argparse
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from .engine import BaseEngine
from .errors import out_of_memory
from .gpu.accelerate import make_engine
from .loader import Loaded, load_model
from .loader.device import DTYPES, choose_device
from .process import freeze_loaded_objects, run_on_temporary_thread
from .sampling import SamplingParams
from .stages import load_stage_module


def build_parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--demo", action="store_true", help="show what this stage does, in under half a minute")
    mode.add_argument("--prompt", metavar="TEXT", help="complete one prompt and print the answer")
    mode.add_argument("--serve", action="store_true", help="answer over HTTP until Ctrl-C")

    parser.add_argument(
        "--trace", metavar="FILE", help="write the engine's steps as Chrome trace JSON, for ui.perfetto.dev"
    )

    model = parser.add_argument_group("model")
    model.add_argument(
        "--model", metavar="NAME", help="folder or Hugging Face Hub id (default: the bundled checkpoint)"
    )
    model.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 (default: auto)")
    model.add_argument("--dtype", default="auto", choices=["auto", *DTYPES], help="default: auto")
    model.add_argument(
        "--load-format",
        default="auto",
        choices=["auto", "dummy"],
        help="dummy: random weights from the config alone, to time a size that is not at hand",
    )
    model.add_argument(
        "--tensor-parallel",
        type=int,
        default=1,
        metavar="N",
        help="share every layer among N processes, each with a GPU of its own, or its part of the CPU's cores; memory "
        "for K and V counts for each (default: 1, this process alone)",
    )

    gpu = parser.add_argument_group("on a GPU")
    either = argparse.BooleanOptionalAction
    gpu.add_argument("--graphs", action=either, help="replay decode from CUDA graphs (default: from stage 05 on)")
    gpu.add_argument("--overlap", action=either, help="plan a step while another runs (default: in stages 04 to 06)")

    sampling = parser.add_argument_group("sampling, with --prompt")
    sampling.add_argument("--chat", action="store_true", help="put the prompt into the model's chat template")
    sampling.add_argument("--max-tokens", type=int, default=128, help="output tokens at most (default: 128)")
    sampling.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: 0)")
    sampling.add_argument("--top-k", type=int, default=0, help="sample from the k likeliest tokens (default: off)")
    sampling.add_argument("--top-p", type=float, default=1.0, help="sample from this share of the mass (default: 1)")
    sampling.add_argument("--min-p", type=float, default=0.0, help="drop tokens this far below the likeliest")
    sampling.add_argument("--seed", type=int, help="the same seed gives the same tokens")
    sampling.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end here; may be repeated")
    sampling.add_argument("--ignore-eos", action="store_true", help="go on after the end-of-sequence token")
    sampling.add_argument("--show-stats", action="store_true", help="print counts and times after the text")

    server = parser.add_argument_group("server, with --serve")
    server.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine only")
    server.add_argument("--port", type=int, default=8000, help="default: 8000")
    return parser


def run_stage(
    stage: Path, description: str, more_arguments: Callable[[argparse.ArgumentParser], None] | None = None
) -> None:
    """Runs the command line of the stage in that folder; exits with 1 and a sentence on error, 130 after Ctrl-C."""
    parser = build_parser(description)
    if more_arguments is not None:
        more_arguments(parser)
    args = parser.parse_args()
    try:
        engine_class = load_stage_module(stage, "engine").Engine
        print(choose_device(args.device, args.dtype)[2], file=sys.stderr)
        loaded, engine = run_on_temporary_thread(build_engine, stage, engine_class, args)
        freeze_loaded_objects()
        if engine.startup_notes:
            print(engine.startup_notes, file=sys.stderr)
        try:
            if args.demo:
                load_stage_module(stage, "demo").demo(engine, loaded)
            elif args.serve:
                server_module(stage).serve(engine, args)
            else:
                complete_prompt(engine, args)
        finally:
            if args.trace:
                engine.trace.write_chrome_trace(args.trace)
            if hasattr(engine, "close"):  # it has processes of its own; at the interpreter's end may be too late
                engine.close()
    except BrokenPipeError:  # the reader of stdout has ended, as `head` does once it has its lines
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more when it ends
        sys.exit(1)
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        said = out_of_memory(error)
        if said is None and not isinstance(error, (ValueError, OSError)):
            raise
        sys.exit(f"error: {said or error}")
    except KeyboardInterrupt:
        sys.exit(130)


def build_engine(stage: Path, engine_class: type[BaseEngine], args: argparse.Namespace) -> tuple[Loaded, BaseEngine]:
    """The stage's engine; with --tensor-parallel what stands before the engines of all ranks, and does the same."""
    model = {"device": args.device, "dtype": args.dtype, "load_format": args.load_format}
    options = {name: vars(args)[name] for name in inspect.signature(engine_class).parameters if name in args}
    options |= {"graphs": args.graphs, "overlap": args.overlap}
    of_workers = "tensor_parallel" in options  # each of its workers is shared by ranks, and this process is none
    if args.tensor_parallel == 1 or of_workers:
        loaded = load_model(args.model, **model)
        return loaded, make_engine(engine_class, loaded, **options)
    if args.demo:  # it builds engines of its own, of which the other ranks would not know
        raise ValueError("--demo shows one process: with --tensor-parallel give --prompt or --serve")
    from .parallel.engine import Ranks, TensorParallelEngine, check_deterministic

    check_deterministic(engine_class, options)  # before the ranks are started, which takes seconds
    ranks = Ranks(args.tensor_parallel, args.model, **model)
    return ranks.loaded, TensorParallelEngine(ranks, stage, **options)


def server_module(stage: Path) -> ModuleType:
    """The stage's own server where it has one, otherwise the one that all stages after the third share."""
    if (stage / "server.py").exists():
        return load_stage_module(stage, "server")
    return importlib.import_module("common.serving.server")


def complete_prompt(engine: BaseEngine, args: argparse.Namespace) -> None:
    """Prints the completion of `args.prompt` as it grows, and its figures if they are wanted."""
    params = SamplingParams(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        seed=args.seed,
        stop=args.stop,
        ignore_eos=args.ignore_eos,
    )
    request = engine.add(chat_prompt(engine.tokenizer, args.prompt) if args.chat else args.prompt, params)
    shown = 0
    while engine.has_unfinished:
        engine.step()
        print(request.text[shown : request.certain_length], end="", flush=True)
        shown = max(shown, request.certain_length)
    print()
    if args.show_stats:
        elapsed = request.timings.end_to_end_latency
        print(
            f"prompt_tokens={len(request.prompt_token_ids)} generated_tokens={len(request.token_ids)} "
            f"elapsed_seconds={elapsed:.3f} tokens_per_second={len(request.token_ids) / elapsed:.1f} "
            f"device={engine.device} dtype={str(engine.dtype).removeprefix('torch.')}"
        )


def chat_prompt(tokenizer, text: str) -> list[int]:
    """Token ids of one user message in the checkpoint's chat template, ready for the assistant's answer."""
    if tokenizer is None or tokenizer.chat_template is None:
        raise ValueError("this model has no chat template: give the prompt without --chat")
    messages = [{"role": "user", "content": text}]
    # Ids, not text: a template may write special tokens that the tokenizer would add to a text once more.
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
