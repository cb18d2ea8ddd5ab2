"""What a chat template writes around the contents of turns, found by rendering it.

    [opening 0] content 0 [closing 0][opening 1] content 1 [closing 1]
     ^ heads[0]            ^ heads[1]: one text            ^ heads[2]

A user's content never enters the template, so no content can change what the template does.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lmlang.errors import ModelError, ProgramError, quote

PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{{ message['role'] | capitalize }}:\n{{ message['content'] }}\n\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:\n{% endif %}"
)
"""For models without a template: ``User:`` and the content on lines of their own, an empty line
behind. It has no end-of-turn token; give a stop string such as ``"\\n\\n"``."""

MAX_TEMPLATE_CHARACTERS = 200_000
MAX_OUTPUT_CHARACTERS = 2_000_000
MAX_WORK = 1_000_000
"""Loop passes and calls of one rendering."""
REMEMBERED = 1_024
"""Sequences of roles whose rendering is kept."""


class _Refused(Exception):
    """``raise_exception`` of a template, with its words."""


@dataclass(frozen=True, slots=True)
class TurnPieces:
    """Template text around each turn: ``openings[i]`` content ``closings[i]``.

    An open last turn has a closing too: the text that closing it would write.
    """

    openings: tuple[str, ...]
    closings: tuple[str, ...]


class ChatTemplate:
    """A Jinja chat template, run in a sandbox as transformers runs it. Thread-safe.

    Contents stand in the prompt as the program wrote them, also where a template would trim
    white space around them.

    Args:
        source: The template; None for `PLAIN_TEMPLATE`.
        bos_token: Spelling that the template may use.
        eos_token: Likewise.

    Raises:
        ModelError: The template is no valid Jinja.
    """

    def __init__(self, source: str | None, bos_token: str = "", eos_token: str = "") -> None:
        self.source = PLAIN_TEMPLATE if source is None else source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        if len(self.source) > MAX_TEMPLATE_CHARACTERS:
            raise ModelError(
                f"the chat template has {len(self.source):,} characters, at most "
                f"{MAX_TEMPLATE_CHARACTERS:,} are allowed: the file is damaged."
            )
        try:
            self._code = _Sandbox.compiled(self.source)
        except (jinja2.TemplateError, RecursionError, SyntaxError, ValueError) as error:
            self._fail(f"is no valid Jinja ({type(error).__name__}: {error})", error)
        self._heads = lru_cache(REMEMBERED)(self._find_heads)
        self._pieces = lru_cache(REMEMBERED)(self._find_pieces)

    def heads(self, roles: tuple[str, ...]) -> tuple[str, ...]:
        """Template text before each turn's content, and last the text behind the final one.

        Args:
            roles: Of all turns, the first one first; all are closed.

        Returns:
            ``len(roles) + 1`` texts; ``("",)`` where there is no turn.

        Raises:
            ProgramError: The template refuses these roles.
            ModelError: The template fails, or drops, repeats or changes contents.
        """
        return self._heads(roles)

    def _find_heads(self, roles: tuple[str, ...]) -> tuple[str, ...]:
        if not roles:
            return ("",)
        mark = secrets.token_hex(8)
        # unlike in case and script, and unsafe in HTML and JSON, to notice filters
        contents = [f"<«{mark}&Aé{index}»>" for index in range(len(roles))]
        rendered = self._render(roles, contents, generation_prompt=False)
        found: list[str] = []
        for index, content in enumerate(contents):
            before, separator, rendered = rendered.partition(content)
            if not separator or mark in before:
                self._fail(
                    f"drops, moves or changes the content of turn {index + 1} of the roles "
                    f"{_shown(roles)}"
                )
            found.append(before)
        if mark in rendered:
            self._fail(f"repeats the content of a turn of the roles {_shown(roles)}")
        return (*found, rendered)

    def pieces(self, roles: tuple[str, ...], is_open: bool) -> TurnPieces:
        """The template text around each turn.

        Between two contents the template writes one text; the part of it that is also written
        behind the first of them while it is the last closes its turn, the rest opens the next.
        So what a closed turn rendered stays a beginning of later renderings wherever the
        template allows it.

        Args:
            roles: Of all turns.
            is_open: Whether the last turn is open. An open assistant turn behind others begins
                with the template's generation prompt.

        Raises:
            ProgramError: The template refuses these roles.
            ModelError: The template fails, or drops, repeats or changes contents.
        """
        return self._pieces(roles, is_open)

    def _find_pieces(self, roles: tuple[str, ...], is_open: bool) -> TurnPieces:
        heads = self.heads(roles)
        openings, closings = [heads[0]], []
        for turn in range(1, len(roles)):
            closing = _common_prefix(self._tail(roles[:turn]), heads[turn])
            closings.append(closing)
            openings.append(heads[turn][len(closing) :])
        closings.append(heads[-1])
        if is_open and len(roles) > 1 and roles[-1] == "assistant":
            prompted = self._prompted(roles[:-1])
            if prompted is not None:
                closings[-2], openings[-1] = self._tail(roles[:-1]), prompted
        return TurnPieces(tuple(openings[: len(roles)]), tuple(closings[: len(roles)]))

    def _tail(self, roles: tuple[str, ...]) -> str:
        """What stands behind the last of these turns; "" where the template refuses to end here."""
        try:
            return self.heads(roles)[-1]
        except (ProgramError, ModelError):
            return ""

    def _prompted(self, roles: tuple[str, ...]) -> str | None:
        """What ``add_generation_prompt`` adds behind these turns; None where it fails."""
        mark = f"<«{secrets.token_hex(8)}»>"
        contents = [mark] * len(roles)
        try:
            closed = self._render(roles, contents, generation_prompt=False)
            opened = self._render(roles, contents, generation_prompt=True)
        except (ProgramError, ModelError):
            return None
        return opened[len(closed) :] if opened.startswith(closed) else None

    def _render(
        self, roles: tuple[str, ...], contents: list[str], *, generation_prompt: bool
    ) -> str:
        messages = [
            {"role": role, "content": content}
            for role, content in zip(roles, contents, strict=True)
        ]
        sandbox = _Sandbox()
        template = jinja2.Template.from_code(sandbox, self._code, sandbox.make_globals(None))
        parts: list[str] = []
        length = 0
        try:
            for part in template.generate(
                messages=messages,
                add_generation_prompt=generation_prompt,
                tools=None,
                documents=None,
                **self._tokens,
            ):
                parts.append(part)
                length += len(part)
                if length > MAX_OUTPUT_CHARACTERS:
                    self._fail(f"writes more than {MAX_OUTPUT_CHARACTERS:,} characters")
        except _Refused as refusal:
            raise ProgramError(
                f"the model's chat template refuses turns of the roles {_shown(roles)}: it says "
                f"{quote(str(refusal))}. Use roles, and an order of them, that this model knows."
            ) from None
        except ModelError:
            raise
        except Exception as error:  # a template is a foreign program: it may raise anything
            said = f"{type(error).__name__}: {quote(str(error))}"
            self._fail(f"fails for the roles {_shown(roles)} ({said})", error)
        return "".join(parts)

    def _fail(self, fault: str, cause: BaseException | None = None) -> NoReturn:
        raise ModelError(
            f"the model's chat template {fault}: it cannot be used; give another chat_template."
        ) from cause


def _common_prefix(one: str, other: str) -> str:
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return one[:length]


def _shown(roles: tuple[str, ...]) -> str:
    return quote(", ".join(roles))


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with the names that chat templates expect, and a bound on its work."""

    intercepted_binops = frozenset(("*", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
            cache_size=0,
        )
        self.work_left = MAX_WORK
        self.filters["tojson"] = _to_json
        self.filters["lmlang_bounded"] = self._bounded
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    @classmethod
    def compiled(cls, source: str) -> Any:
        """The template as code; every loop counts its passes."""
        sandbox = cls()
        tree = sandbox.parse(source)
        for loop in tree.find_all(jinja2.nodes.For):
            loop.iter = jinja2.nodes.Filter(loop.iter, "lmlang_bounded", [], [], None, None)
        return sandbox.compile(tree, "chat template", "<chat template>")

    def _spend(self, work: int) -> None:
        self.work_left -= work
        if self.work_left < 0:
            raise jinja2.TemplateRuntimeError(f"more than {MAX_WORK:,} loop passes and calls")

    def _bounded(self, values: Any) -> list[Any]:
        items = list(islice(values, self.work_left + 1))
        self._spend(len(items) + 1)
        return items

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self._spend(1)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        for value, other in ((left, right), (right, left)):
            size = len(value) if hasattr(value, "__len__") else abs(value) if value else 0
            if size > (64 if operator == "**" else 1 << 20 if hasattr(other, "__len__") else size):
                raise jinja2.TemplateRuntimeError(f"{operator} of too large values")
        return super().call_binop(context, operator, left, right)


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}``: marks text for training; no effect."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own protocol

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: object) -> NoReturn:
    raise _Refused(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    # Jinja's own escapes HTML, which no model was trained on
    options.setdefault("ensure_ascii", False)
    return json.dumps(value, indent=indent, **options)
