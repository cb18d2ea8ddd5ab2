"""``lmlang serve``: one model over HTTP, until a signal ends it."""

from __future__ import annotations

import argparse
import importlib.util
import os

from lmlang.cli.command import DONE, Command
from lmlang.errors import ProgramError

DESCRIPTION = """\
Serve one model over HTTP: to programs of lmlang (lm.connect), to clients of OpenAI's interface
(/v1/chat/completions, /v1/completions) and to SGLang's own frontend (/generate).

  lmlang serve                                  # the embedded model, for this machine alone
  lmlang serve --model ./model.gguf --port 8000
  lmlang serve --host 0.0.0.0 --api-key-file keys.txt

Without keys, only this machine can ask. Keys are read from files (one key a line, chmod 600) or
from the variables LMLANG_API_KEYS and LMLANG_ADMIN_KEYS, never from the command line, which other
users of a machine can see. Each key has a cache of its own; only an administrator's key opens
/metrics, /flush_cache, /abort_request and /server_info. SIGTERM and Ctrl-C let what is under way
end; a second one ends at once. The log is one line of JSON for each request, without prompts.
"""
MODEL = ("model", "implementation", "revision", "offline", "dtype", "quantize", "device")
TEMPLATE = ("chat_template",)
ENGINE = ("kv_tokens", "kv_dtype", "memory_fraction", "host_kv_gb", "max_batch_tokens")
ENGINE_WORDS = ("max_running", "policy", "speculative", "deterministic", "heartbeat", "lora")
LIMITS = ("max_requests", "max_body", "max_samples", "max_batch")
PROGRAMS = ("max_program_nodes", "max_program_states", "max_program_depth", "max_program_tokens")
TIMES = ("request_timeout", "header_timeout", "body_timeout", "send_timeout", "drain_timeout")


def _add(parser: argparse.ArgumentParser) -> None:
    """The options of ``lmlang serve``; what is not given keeps the default of its own place."""
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model",
        metavar="MODEL",
        help="a .gguf file, a folder, or a name on the Hugging Face hub; the embedded "
        "SmolLM2-135M-Instruct without it",
    )
    model.add_argument("--name", metavar="NAME", help="what clients call the model")
    model.add_argument(
        "--implementation", metavar="CODE", help="native or transformers; native where it can"
    )
    model.add_argument("--revision", metavar="REVISION", help="of a model on the hub")
    model.add_argument("--offline", action="store_true", default=None, help="use the cache alone")
    model.add_argument("--dtype", metavar="TYPE", help="float32, bfloat16 or float16")
    model.add_argument("--quantize", metavar="KIND", help="auto, none, blocks, blocks8 or int8")
    model.add_argument("--device", metavar="DEVICE", help="cpu, cuda, or cuda:1 for the second GPU")
    model.add_argument(
        "--chat-template", metavar="TEMPLATE", help="a name such as chatml, or a file in Jinja"
    )

    address = parser.add_argument_group("address and keys")
    address.add_argument("--host", metavar="ADDRESS", help="to listen on; 127.0.0.1 without it")
    address.add_argument(
        "--port", type=int, metavar="PORT", help="30000 without it; 0 for any that is free"
    )
    address.add_argument("--api-key-file", metavar="FILE", help="keys of users")
    address.add_argument("--admin-key-file", metavar="FILE", help="keys of administrators")
    address.add_argument(
        "--insecure",
        action="store_true",
        help="let everyone in who reaches the address, without any key",
    )
    address.add_argument(
        "--cors",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="a web page's origin that may ask, as https://example.org; may be repeated",
    )

    engine = parser.add_argument_group("engine")
    engine.add_argument("--kv-tokens", type=int, metavar="N", help="slots of the KV pool")
    engine.add_argument("--kv-dtype", metavar="TYPE", help="int8: keys and values as bytes")
    engine.add_argument(
        "--memory-fraction", type=float, metavar="F", help="of the free memory, for the KV pool"
    )
    engine.add_argument(
        "--host-kv-gb", type=float, metavar="GIB", help="of main memory for evicted prefixes"
    )
    engine.add_argument(
        "--max-batch-tokens", type=int, metavar="N", help="tokens that one step computes at most"
    )
    engine.add_argument("--max-running", type=int, metavar="N", help="sequences that run at a time")
    engine.add_argument(
        "--policy", metavar="POLICY", help="program, fcfs, lpm, dfs, priority or mlq"
    )
    engine.add_argument("--speculative", metavar="KIND", help="ngram")
    engine.add_argument(
        "--lora",
        action="append",
        metavar="NAME=FOLDER",
        help="an adapter that requests may name; may be repeated",
    )
    engine.add_argument(
        "--deterministic", action="store_true", default=None, help="the same bits in any batch"
    )
    engine.add_argument(
        "--heartbeat", type=float, metavar="S", help="seconds that one step may take"
    )

    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--max-requests",
        type=int,
        metavar="N",
        help="generations under way at a time, waiting ones included; 1024 without it",
    )
    limits.add_argument(
        "--max-body", type=int, metavar="BYTES", help="bytes of one request's body; 4194304"
    )
    limits.add_argument(
        "--max-samples", type=int, metavar="N", help="samples (n) of one prompt; 16"
    )
    limits.add_argument("--max-batch", type=int, metavar="N", help="prompts of one request; 64")
    for name, text in (
        ("nodes", "nodes of one program that a client ships; 20000"),
        ("states", "states that its forks make; 2048"),
        ("depth", "forks of it in one another; 256"),
        ("tokens", "tokens that its generations may take together; 4194304"),
    ):
        limits.add_argument(f"--max-program-{name}", type=int, metavar="N", help=text)
    for name, text in (
        ("request", "for one request, from its body to its answer; 600"),
        ("header", "for a request's line and headers to arrive; 20"),
        ("body", "for its body to arrive; 30"),
        ("send", "for a client to go on with an answer that it leaves unread; 60"),
        ("drain", "for what is under way when the server is told to end; 30"),
    ):
        limits.add_argument(f"--{name}-timeout", type=float, metavar="S", help=f"seconds {text}")


def _serve(options: argparse.Namespace) -> int:
    """Serve until a signal ends it."""
    missing = [
        name
        for name in ("fastapi", "uvicorn", "h11", "prometheus_client")
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise ProgramError(
            f"the server needs packages that are not installed ({', '.join(missing)}): "
            'pip install "lmlang[server]".'
        )
    from lmlang.server import logs
    from lmlang.server.app import make_app
    from lmlang.server.config import (
        ADMIN_KEYS_VARIABLE,
        KEYS_VARIABLE,
        ServerConfig,
        keys_of_environment,
        keys_of_file,
    )
    from lmlang.server.lifecycle import bind, serve

    given = vars(options)

    def chosen(*names: str) -> dict[str, object]:
        return {name: given[name] for name in names if given[name] is not None}

    def keys(file: str | None, variable: str) -> tuple[str, ...]:
        known = keys_of_environment(variable, os.environ)
        return tuple(dict.fromkeys((*known, *(keys_of_file(file) if file else ()))))

    config = ServerConfig(
        keys=keys(options.api_key_file, KEYS_VARIABLE),
        admin_keys=keys(options.admin_key_file, ADMIN_KEYS_VARIABLE),
        insecure=options.insecure,
        cors=tuple(options.cors),
        **chosen("host", "port", "name", *LIMITS, *PROGRAMS, *TIMES),  # type: ignore[arg-type]
    )
    logs.set_up()
    from lmlang.runtime.local import Runtime

    with bind(config) as listener:
        parameters = chosen(*MODEL, *TEMPLATE, *ENGINE, *ENGINE_WORDS)
        with Runtime(**parameters, max_queued=config.max_requests) as runtime:  # type: ignore[arg-type]
            logs.told("loaded", model=runtime.info().model)
            serve(make_app(runtime, config), listener)
    return DONE


SERVE = Command("serve", "serve a model over HTTP", DESCRIPTION, _add, _serve)
