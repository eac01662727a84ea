"""The command line that every stage shares: `--demo`, `--prompt TEXT` or `--serve`.

A stage's main.py passes its folder, which holds engine.py and demo.py, and up to stage 03 a server.py (later stages
share common/serving/server.py). An option that main.py adds goes to the stage's Engine if the Engine has a parameter of
that name.
"""

import argparse
import importlib
import inspect
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import ModuleType

from .acceleration.accelerate import make_engine
from .engine import BaseEngine
from .errors import InvalidInput, expect_writable
from .kv_tiers import TierOptions
from .loader import BITS, Loaded, chat_prompt, check_quantization, load_model
from .loader.device import choose_device
from .packages import packaged_model
from .policies import scheduling_of
from .process import freeze_loaded_objects, run_on_temporary_thread
from .sampling import SamplingParams
from .stages import load_engine, load_stage_module
from .terminal import add_table, run_to_end

# Gauges that are back at zero, or say nothing new, once the one request of --prompt has ended.
GAUGES = {"unfinished", "running", "waiting", "generated_tokens"}
GROUPS = (
    "model", "on a GPU", "adapters, from stage 04 on", "pages beside the device's memory, from stage 05 on",
    "sampling, with --prompt", "server, with --serve",
)  # fmt: skip


def build_parser(description: str, verb: str = "") -> argparse.ArgumentParser:
    """Build the options that all stages have. verb: of course.py, which sets the mode and prints the usage itself."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if verb:
        parser.prog, parser.usage = f"course.py {verb}", argparse.SUPPRESS
    mode = parser.add_mutually_exclusive_group(required=True)
    add_table(mode, "mode")
    for action in mode._group_actions if verb else ():
        action.help = argparse.SUPPRESS
    add_table(parser, "trace")
    for table in GROUPS:
        add_options(parser, table)
    return parser


def add_options(parser: argparse.ArgumentParser, *tables: str) -> None:
    """Add the options of these tables of options.toml as one group, named after the first table."""
    group = parser.add_argument_group(tables[0])
    for table in tables:
        add_table(group, table)


def run_stage(
    stage: Path, description: str, more_arguments: Callable[[argparse.ArgumentParser], None] | None = None
) -> None:
    """Run the command line of the stage in this folder, and exit as `run_to_end` does."""
    verb = next((verb for verb in ("demo", "serve") if f"--{verb}" in sys.argv), "")
    parser = build_parser(description, verb)
    if more_arguments is not None:
        more_arguments(parser)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # An exit also ends child processes.
    run_to_end(partial(run, stage, args))


def run(stage: Path, args: argparse.Namespace) -> None:
    has_ranks = False
    try:
        if args.serve:
            args.host = check_address(args.host, args.port)
        with running_engine(stage, args) as (engine, loaded):
            has_ranks = loaded.shard.ranks > 1
            if args.demo:
                load_stage_module(stage, "demo").demo(engine, loaded)
            elif args.serve and vars(args).get("api_process"):  # a stage without streams has no such option
                from .serving.api_process import serve_apart

                serve_apart(engine, args, partial(server_module, stage))
            elif args.serve:
                server_module(stage).serve(engine, args)
            else:
                complete_prompt(engine, args)
    except KeyboardInterrupt:
        if not has_ranks:
            raise
        # A collective may have been interrupted. The threads that torch has for it live on after `engine.close`,
        # and rarely (3 of 40 times on a busy machine) abort the process while the interpreter ends.
        with suppress(OSError):  # The reader of the output may have ended, too.
            sys.stdout.flush()
        os._exit(130)


@contextmanager
def running_engine(stage: Path, args: argparse.Namespace) -> Iterator[tuple[BaseEngine, Loaded]]:
    """Yield the stage's engine, after saying what it runs on; afterwards write its trace, and end its processes."""
    engine_class = load_engine(stage)
    if args.trace:
        expect_writable(args.trace)
    print(choose_device(args.device, args.dtype)[2], file=sys.stderr)
    packaged_model(args.model or "")  # Here, since signals do not reach the other thread: it would leave half a file.
    loaded, engine = run_on_temporary_thread(build_engine, stage, engine_class, args)
    freeze_loaded_objects()
    if engine.startup_notes:
        print(engine.startup_notes, file=sys.stderr)
    try:
        yield engine, loaded
    finally:
        engine.close()  # its processes must end before the interpreter does
        if args.trace:
            engine.trace.write_chrome_trace(args.trace)


def check_address(host: str, port: int) -> str:
    """Return the address to listen on. Raise InvalidInput, before the model loads, if no server can listen there.

    It is the host as given, except for a name that only IPv6 knows: servers look up names in IPv4.
    """
    try:
        found = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, (address, _, *scope) = min(found, key=lambda one: one[0] != socket.AF_INET)
        with socket.socket(family) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, os.name != "nt")
            one.bind((address, port, *scope))
    except (OSError, OverflowError, UnicodeError) as error:
        raise InvalidInput(f"cannot listen on {host}:{port} ({error}): give another --port or --host") from error
    return host if family == socket.AF_INET else address


def build_engine(stage: Path, engine_class: type[BaseEngine], args: argparse.Namespace) -> tuple[Loaded, BaseEngine]:
    """Load the model and build the stage's engine; with --tensor-parallel, one that drives the engines of all ranks."""
    model = {"device": args.device, "dtype": args.dtype, "load_format": args.load_format}
    model["kv_dtype"] = getattr(args, "kv_dtype", "auto")  # stages without pages do not have the option
    options = {name: vars(args)[name] for name in inspect.signature(engine_class).parameters if name in args}
    options |= {"graphs": args.graphs, "overlap": args.overlap}
    options["scheduling"] = scheduling_of(args)
    options["tiers"] = TierOptions(args.kv_host_memory, args.kv_disk, args.kv_disk_memory)
    if args.lora:
        options["loras"] = dict(args.lora)
        if len(options["loras"]) < len(args.lora):
            raise InvalidInput("two adapters have the same name: give each --lora another")
    check_quantization(args.quantization, *choose_device(args.device, args.dtype)[:2], args.tensor_parallel)
    if args.tensor_parallel == 1:
        if options.get("workers") == "ray":
            if args.model_impl != "auto":
                raise InvalidInput(
                    "workers in processes choose the model themselves: leave out --model-impl, or use stage 07"
                )
            if args.quantization in BITS:
                raise InvalidInput(
                    "workers in processes load weights as they are: leave out --quantization, or use stage 07"
                )
            on_gpu = choose_device(args.device, args.dtype)[0].type != "cpu"
            if not args.demo and (on_gpu or args.token_budget is not None):  # Measuring the budget needs the weights.
                model["load_format"] = "none"  # The workers need the memory.
        loaded = load_model(args.model, model_impl=args.model_impl, quantization=args.quantization, **model)
        return loaded, make_engine(engine_class, loaded, **options)
    from .parallel.engine import Ranks, TensorParallelEngine, check_deterministic

    check_deterministic(engine_class, options)  # Check before the ranks start: that takes seconds.
    if args.model_impl == "transformers":
        raise InvalidInput("--tensor-parallel splits common/model.py alone: leave it out, or --model-impl transformers")
    if args.demo:  # a demo builds more engines, and the other ranks would not know of them
        raise InvalidInput("--demo runs in one process: with --tensor-parallel use --prompt or --serve")
    ranks = Ranks(args.tensor_parallel, args.model, **model)
    return ranks.loaded, TensorParallelEngine(ranks, stage, **options)


def server_module(stage: Path) -> ModuleType:
    """Return the stage's own server.py, or common/serving/server.py, which all later stages share."""
    if (stage / "server.py").exists():
        return load_stage_module(stage, "server")
    return importlib.import_module("common.serving.server")


def complete_prompt(engine: BaseEngine, args: argparse.Namespace) -> None:
    """Print the completion of `args.prompt` as it grows, and with --show-stats two lines of figures."""
    params = SamplingParams(
        **{field.name: vars(args)[field.name] for field in fields(SamplingParams) if field.name in args}
    )
    request = engine.add(chat_prompt(engine.tokenizer, args.prompt) if args.chat else args.prompt, params)
    shown = 0
    while engine.has_unfinished:
        engine.step()
        print(request.text[shown : request.stable_text_length], end="", flush=True)
        shown = max(shown, request.stable_text_length)
    print()
    if args.show_stats:
        elapsed = request.timings.end_to_end_latency
        print(
            f"prompt_tokens={len(request.prompt_token_ids)} generated_tokens={len(request.token_ids)} "
            f"elapsed_seconds={elapsed:.3f} tokens_per_second={len(request.token_ids) / elapsed:.1f} "
            f"device={engine.device} dtype={str(engine.dtype).removeprefix('torch.')}"
        )
        stats = engine.stats().items()
        print(*(f"{name}={n:.6g}" for name, n in stats if name not in GAUGES and not name.startswith("kv_")))
