"""What a server is made with: its address, its keys, its limits; checked, and safe by default."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lmlang import limits
from lmlang.errors import ProgramError, quote
from lmlang.grammar.spec import Choice, Ebnf, Either, Hole, JsonSchema, Regex, Spec
from lmlang.protocol import Request, ScoreRequest

KEYS_VARIABLE = "LMLANG_API_KEYS"
ADMIN_KEYS_VARIABLE = "LMLANG_ADMIN_KEYS"
"""Variables of the environment that hold keys, with commas between them."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Checked parameters of a server.

    Args:
        host: The address that it listens on.
        port: The port; 0 for any that is free.
        keys: Keys of users: each opens all routes but those of administrators, and has caches of
            its own.
        admin_keys: Keys of administrators, which open every route.
        insecure: Let everyone in who reaches an address that other machines reach.
        cors: Origins of web pages that may ask, as in "https://example.org"; none by default.
        name: What the model is called; None: as the backend calls it.
        max_body: Bytes of a request's body.
        max_depth: Levels of its JSON.
        max_samples: Samples of one prompt.
        max_batch: Prompts of one request.
        max_top_logprobs: Likeliest tokens reported beside each token.
        max_stops: Stop strings of one generation.
        max_stop_bytes: Bytes of one of them, in UTF-8.
        max_choices: Choices that one request scores.
        max_constraint: Characters of one constraint.
        max_program_nodes: Nodes of one program.
        max_program_states: States that its forks make.
        max_program_depth: Forks in one another.
        max_program_tokens: Generated tokens that its generations may take together.
        max_requests: Generations and scores under way at a time, waiting ones included; whoever
            comes then is told to come later.
        request_timeout: Seconds for one request.
        header_timeout: Seconds for its line and headers to arrive.
        body_timeout: Seconds for its body to arrive.
        send_timeout: Seconds for a client to read on where it leaves an answer unread.
        drain_timeout: Seconds for requests under way to end before the server does.

    Raises:
        ProgramError: A value is out of range, or the address is open to others without a key.
    """

    host: str = "127.0.0.1"
    port: int = 30000
    keys: tuple[str, ...] = field(default=(), repr=False)
    admin_keys: tuple[str, ...] = field(default=(), repr=False)
    insecure: bool = False
    cors: tuple[str, ...] = ()
    name: str | None = None
    max_body: int = 4 << 20
    max_depth: int = 64
    max_samples: int = 16
    max_batch: int = 64
    max_top_logprobs: int = 20
    max_stops: int = 16
    max_stop_bytes: int = 256
    max_choices: int = 1_024
    max_constraint: int = 65_536
    max_program_nodes: int = 20_000
    max_program_states: int = 2_048
    max_program_depth: int = 256
    max_program_tokens: int = 1 << 22
    max_requests: int = 1_024
    request_timeout: float = 600.0
    header_timeout: float = 20.0
    body_timeout: float = 30.0
    send_timeout: float = 60.0
    drain_timeout: float = 30.0

    def __post_init__(self) -> None:
        limits.integer("port", self.port, 0, 65_535)
        for name in ("max_body", "max_depth", "max_samples", "max_batch", "max_requests"):
            limits.integer(name, getattr(self, name), 1, 1 << 30)
        for name in ("nodes", "states", "depth"):
            limits.integer(f"max_program_{name}", getattr(self, f"max_program_{name}"), 1, 1 << 20)
        limits.integer("max_program_tokens", self.max_program_tokens, 0, 1 << 40)
        for name in ("max_top_logprobs", "max_stops", "max_stop_bytes", "max_choices"):
            limits.integer(name, getattr(self, name), 0, 1 << 30)
        limits.integer("max_constraint", self.max_constraint, 0, 1 << 30)
        for name in ("request_timeout", "header_timeout", "body_timeout", "send_timeout"):
            limits.number(name, getattr(self, name), 0.0, 1e6, above=True)
        limits.number("drain_timeout", self.drain_timeout, 0.0, 1e6)
        for key in (*self.keys, *self.admin_keys):
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                raise ProgramError(
                    "a key is empty, or has characters that no HTTP header carries: make keys of "
                    "printable ASCII characters without spaces."
                )
        if set(self.keys) & set(self.admin_keys):
            raise ProgramError(
                "a key of a user is a key of an administrator too: make one of its own for each."
            )
        for origin in self.cors:
            if origin == "*" or "://" not in origin or origin.endswith("/"):
                raise ProgramError(
                    f"cors={quote(origin)} is no origin: list each as https://example.org, "
                    "without a path."
                )
        if not (self.keys or self.admin_keys or self.insecure or is_loopback(self.host)):
            raise ProgramError(
                f"host={quote(self.host)} is reached by other machines, and there is no key: give "
                f"one by --api-key-file or {KEYS_VARIABLE}, listen on 127.0.0.1, or say "
                "--insecure to let everyone in."
            )

    @property
    def is_open(self) -> bool:
        """Whether no key is asked for."""
        return not self.keys and not self.admin_keys

    def check(self, request: Request, own_stops: int = 0) -> None:
        """Refuse a generation beyond the server's limits.

        Args:
            request: The generation.
            own_stops: Stop strings that the server itself has added.

        Raises:
            ProgramError: The message names the parameter and both numbers.
        """
        limits.integer("top_logprobs", request.top_logprobs, 0, self.max_top_logprobs)
        for name in ("stop", "stop_regex"):
            stops = getattr(request.params, name)
            count = len(stops) - own_stops
            if count > self.max_stops:
                raise ProgramError(
                    f"{name} has {count:,} strings: this server allows {self.max_stops:,}."
                )
            for stop in stops:
                if len(stop.encode("utf-8", "replace")) > self.max_stop_bytes:
                    raise ProgramError(
                        f"{name} has a string of {len(stop):,} characters: this server allows "
                        f"{self.max_stop_bytes:,} bytes."
                    )
        if request.constraint is not None:
            self.check_constraint(request.constraint)

    def check_constraint(self, spec: Spec) -> None:
        """Refuse a constraint that is larger than the server allows."""
        size = _size(spec)
        if size > self.max_constraint:
            raise ProgramError(
                f"the constraint has {size:,} characters: this server allows "
                f"{self.max_constraint:,}."
            )

    def check_scores(self, request: ScoreRequest) -> None:
        """Refuse more choices than the server allows."""
        if len(request.choices) > self.max_choices:
            raise ProgramError(
                f"choices has {len(request.choices):,} texts: this server allows "
                f"{self.max_choices:,}."
            )

    def check_counts(self, prompts: int, samples: int = 1) -> None:
        """Refuse more prompts, or more samples of each, than the server allows in one request."""
        if prompts > self.max_batch:
            raise ProgramError(
                f"the request has {prompts:,} prompts: this server allows {self.max_batch:,}."
            )
        limits.integer("n", samples, 1, self.max_samples)


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def keys_of_file(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The keys of a file, one a line; lines that begin with # are none.

    Raises:
        ProgramError: It cannot be read, has none, or others may read it too.
    """
    try:
        with Path(path).open(encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise ProgramError(
            f"the keys of {quote(os.fspath(path))} cannot be read ({type(error).__name__}): give a "
            "text file with one key a line."
        ) from None
    if os.name == "posix" and mode & 0o077:
        raise ProgramError(
            f"others may read {quote(os.fspath(path))}, which holds keys: chmod 600 it."
        )
    keys = _distinct(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ProgramError(f"{quote(os.fspath(path))} holds no key: write one a line.")
    return keys


def keys_of_environment(variable: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The keys of a variable of the environment, with commas between them; none where unset."""
    return _distinct(
        filter(None, (key.strip() for key in environment.get(variable, "").split(",")))
    )


def _distinct(keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(keys))


def _size(spec: Spec) -> int:
    """Characters of a constraint."""
    if isinstance(spec, Either):
        return sum(map(_size, spec.specs))
    if isinstance(spec, Choice):
        return sum(map(len, spec.texts))
    if isinstance(spec, Regex):
        return len(spec.pattern)
    if isinstance(spec, Hole):
        around = len(spec.before) + len(spec.lead) + len(spec.after or "")
        return _size(spec.schema) + around
    assert isinstance(spec, (JsonSchema, Ebnf))
    return len(spec.text)
