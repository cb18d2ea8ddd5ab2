r"""What a chat template writes for turns: its own text and where the contents stand in it.

    "<|user|>\n"    Piece(turn 0, 0:2)  "<|end|>\n<|assistant|>\n"  Piece(turn 1, 0:0)
    the template's  content 0           the template's              of the open turn

Contents pass through the template as text that remembers its turn (`chat_trace`), so that no
content is ever taken for template text; and where a template asked nothing of the contents, the
next rendering of the same roles is put together without running it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import jinja2

from lmlang.errors import ModelError, ProgramError, quote
from lmlang.runtime.chat_filters import Refused
from lmlang.runtime.chat_sandbox import NOT_COMPILED, sandbox
from lmlang.runtime.chat_templates import MAX_TEMPLATE_CHARACTERS, PLAIN_TEMPLATE
from lmlang.runtime.chat_trace import Condition, Part, Piece, Rewritten, Trace, parts_of

__all__ = ["PLAIN_TEMPLATE", "ChatTemplate", "Piece", "Rewritten"]

KEPT_PARTS = 100_000
"""Parts and conditions that one template remembers."""
KEPT_RECIPES = 4
"""Renderings that are kept for one sequence of roles, as the template asks things of contents."""


@dataclass(frozen=True, slots=True)
class _Recipe:
    """A rendering, and for which contents it holds."""

    parts: tuple[Part, ...]
    conditions: tuple[Condition, ...]
    clocks: tuple[tuple[str, str], ...]
    only: tuple[str, ...] | None

    def fits(self, contents: tuple[str, ...]) -> bool:
        if self.only is not None and contents != self.only:
            return False
        now = datetime.now()
        return all(condition.holds(contents) for condition in self.conditions) and all(
            now.strftime(form) == text for form, text in self.clocks
        )

    def filled(self, contents: tuple[str, ...]) -> tuple[Part, ...]:
        """The parts for these contents."""
        if self.only is not None:
            return self.parts
        return tuple([_placed(p, contents) if isinstance(p, Piece) else p for p in self.parts])

    @property
    def size(self) -> int:
        return 8 + len(self.parts) + len(self.conditions)


class ChatTemplate:
    """A Jinja chat template, run in a sandbox as transformers runs it. Thread-safe.

    Args:
        source: The template; None for `PLAIN_TEMPLATE`.
        bos_token: Spelling that the template may use; "" where there is none.
        eos_token: Likewise.
        variables: Other names that the template may use, as ``enable_thinking``.
        given: It is not the model's own, and an error in it not the model's.

    Raises:
        ModelError: The template is no valid Jinja; if it was given, a ProgramError.
    """

    def __init__(
        self,
        source: str | None,
        bos_token: str = "",
        eos_token: str = "",
        variables: Mapping[str, object] | None = None,
        given: bool = False,
    ) -> None:
        self._given = given
        self.source = PLAIN_TEMPLATE if source is None else source
        self.bos_token = bos_token
        tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._names = {name: text for name, text in tokens.items() if text} | dict(variables or {})
        if len(self.source) > MAX_TEMPLATE_CHARACTERS:
            raise ModelError(
                f"the chat template has {len(self.source):,} characters, at most "
                f"{MAX_TEMPLATE_CHARACTERS:,} are allowed: the file is damaged."
            )
        environment = sandbox()
        try:
            code = environment.compiled(self.source)
            self._template = jinja2.Template.from_code(
                environment, code, environment.make_globals(None)
            )
        except NOT_COMPILED as error:
            said = f"{type(error).__name__}: {quote(str(error))}"
            self._fail(f"is no valid Jinja ({said})", error)
        self._tools: list[Any] | None = None
        self._writes_bos: bool | None = None
        self._remember_nothing()

    def _remember_nothing(self) -> None:
        self._lock = threading.Lock()
        self._recipes: OrderedDict[tuple[tuple[str, ...], bool], list[_Recipe]] = OrderedDict()
        self._kept = 0
        self._texts: dict[str, str] = {}

    def with_tools(self, tools: list[Any]) -> ChatTemplate:
        """The same template, told of these tools: JSON values, as OpenAI's clients send them."""
        twin = copy(self)
        twin._remember_nothing()
        twin._tools = tools
        return twin

    def render(
        self,
        roles: tuple[str, ...],
        contents: tuple[str, ...],
        *,
        generation_prompt: bool = False,
    ) -> tuple[Part, ...]:
        """The template over closed turns; joined, what transformers' own rendering gives.

        Args:
            roles: Of all turns, the first one first.
            contents: Their texts.
            generation_prompt: Whether the heading of the answer is asked for.

        Returns:
            The template's texts, the stretches of contents, and what it made of contents
            otherwise. No two texts of the template stand side by side.

        Raises:
            ProgramError: The template refuses these turns.
            ModelError: The template fails, or takes too much time or memory.
        """
        key = (roles, generation_prompt)
        with self._lock:
            known = list(self._recipes.get(key, ()))
        for recipe in known:
            if recipe.fits(contents):
                return recipe.filled(contents)
        recipe = self._run(roles, contents, generation_prompt)
        self._keep(key, recipe)
        return recipe.filled(contents)

    def text(
        self,
        roles: tuple[str, ...],
        contents: tuple[str, ...],
        *,
        generation_prompt: bool = False,
    ) -> str:
        """`render`, joined."""
        trace = Trace(contents)
        parts = self.render(roles, contents, generation_prompt=generation_prompt)
        return "".join([trace.text(part) for part in parts])

    def turns(
        self, roles: tuple[str, ...], contents: tuple[str, ...], is_open: bool
    ) -> tuple[Part, ...]:
        """The template around turns of which the last may be open.

        An open assistant turn stands behind the template's generation prompt, another behind
        the heading of its turn. Its content is the last part, whole and unchanged; only it may
        change until the turn is closed, and nothing before it depends on it.

        Raises:
            ProgramError: The template refuses these turns.
            ModelError: The template fails.
        """
        if not is_open:
            return self.render(roles, contents) if roles else ()
        last = len(roles) - 1
        own = Piece(last, 0, len(contents[last]))
        before = roles[:-1], contents[:-1]
        if roles[-1] == "assistant":
            try:
                return (*self.render(*before, generation_prompt=True), own)
            except (ProgramError, ModelError):
                if before[0]:
                    raise
                # many templates look at a first message that is not there
        parts = self.render(roles, (*contents[:-1], "x"))
        for index, part in enumerate(parts):
            if isinstance(part, Piece) and part.turn == last:
                return (*parts[:index], own)
        return (*(self.render(*before) if before[0] else ()), own)  # it would write it elsewhere

    def closing(self, roles: tuple[str, ...], contents: tuple[str, ...]) -> str:
        """What the template writes behind the last turn's content when it is closed.

        Raises:
            ProgramError: The template refuses these turns.
            ModelError: The template fails.
        """
        parts = self.render(roles, contents)
        return str(parts[-1]) if parts and isinstance(parts[-1], str) else ""

    def border(
        self,
        parts: tuple[Part, ...],
        roles: tuple[str, ...],
        contents: tuple[str, ...],
        turn: int,
    ) -> tuple[int, int]:
        """Where a text between two turns stands among their parts.

        The template writes one text between two contents; what it also writes behind the first
        of them while it is the last closes its turn, the rest opens the next.

        Args:
            parts: What `turns` gave.
            roles: Of all turns.
            contents: Of all turns.
            turn: The turn that the text stands before, above 0.

        Returns:
            An index into ``parts``, and a number of characters of that part.
        """
        at = 0
        for index, part in enumerate(parts):
            if isinstance(part, Piece) and part.turn < turn:
                at = index + 1
        if at == len(parts) or not isinstance(parts[at], str):
            return at, 0
        try:
            closing = self.closing(roles[:turn], contents[:turn])
        except (ProgramError, ModelError):  # these turns cannot stand alone
            closing = ""
        return at, _common_prefix(closing, str(parts[at]))

    def begins_with_bos(self, parts: tuple[Part, ...]) -> bool:
        """Whether the first text is ``bos_token``, written as the beginning of the whole."""
        first = parts[0] if parts else None
        if not self.bos_token or type(first) is not str or not first.startswith(self.bos_token):
            return False
        if self._writes_bos is None:
            self._writes_bos = "bos_token" in self.source or self._writes_once(self.bos_token)
        return self._writes_bos

    def _writes_once(self, token: str) -> bool:
        """Whether a token that is spelt out in the template begins the text, not each turn."""
        try:
            written = self.text(("user", "assistant", "user"), ("x", "x", "x"))
        except (ProgramError, ModelError):
            return False
        return written.count(token) == 1

    def _run(
        self, roles: tuple[str, ...], contents: tuple[str, ...], generation_prompt: bool
    ) -> _Recipe:
        trace = Trace(contents)
        names = {
            "messages": [
                {"role": role, "content": trace.content(turn)} for turn, role in enumerate(roles)
            ],
            "add_generation_prompt": generation_prompt,
            "tools": None if self._tools is None else trace.foreign(self._tools),
            "documents": None,
            **self._names,
        }
        try:
            texts = sandbox().rendered(self._template, trace, names)
        except Refused as refusal:
            raise ProgramError(
                f"{self._whose} refuses turns of the roles {_shown(roles)}: it says "
                f"{quote(str(refusal))}. Use roles, and an order of them, that it knows."
            ) from None
        except Exception as error:  # a template is a foreign program: it may raise anything
            said = f"{type(error).__name__}: {quote(str(error))}"
            self._fail(f"fails for the roles {_shown(roles)} ({said})", error)
        parts = self._merged([part for text in texts for part in parts_of(text)])
        return _Recipe(
            parts,
            tuple(trace.conditions) if trace.reusable else (),
            tuple(trace.clocks.items()),
            None if trace.reusable else contents,
        )

    def _merged(self, parts: list[Part]) -> tuple[Part, ...]:
        """Parts without empty texts, the template's neighbouring ones joined."""
        found: list[Part] = []
        own: list[str] = []
        for part in [*parts, None]:
            if isinstance(part, str):
                own.append(part)
                continue
            text = "".join(own)
            if text:
                found.append(self._texts.setdefault(text, text))
            own = []
            if isinstance(part, Piece) or (isinstance(part, Rewritten) and part.text):
                found.append(part)
        if len(self._texts) > KEPT_PARTS // 10:
            self._texts.clear()
        return tuple(found)

    def _keep(self, key: tuple[tuple[str, ...], bool], recipe: _Recipe) -> None:
        with self._lock:
            recipes = self._recipes.setdefault(key, [])
            self._recipes.move_to_end(key)
            recipes.insert(0, recipe)
            self._kept += recipe.size
            while len(recipes) > KEPT_RECIPES:
                self._kept -= recipes.pop().size
            while self._kept > KEPT_PARTS and self._recipes:
                _, dropped = self._recipes.popitem(last=False)
                self._kept -= sum(old.size for old in dropped)

    def _fail(self, fault: str, cause: BaseException | None = None) -> NoReturn:
        kind = ProgramError if self._given else ModelError
        raise kind(
            f"{self._whose} {fault}: it cannot be used; give another chat_template."
        ) from cause

    @property
    def _whose(self) -> str:
        return "the chat template that was given" if self._given else "the model's chat template"


def _placed(piece: Piece, contents: tuple[str, ...]) -> Piece:
    content = contents[piece.turn]
    start, end = 0, len(content)
    for strip, characters in piece.strips or ():
        rest = getattr(content[start:end], strip)(characters)
        start, end = (end - len(rest), end) if strip == "lstrip" else (start, start + len(rest))
    return Piece(piece.turn, start, end, piece.strips)


def _common_prefix(one: str, other: str) -> int:
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return length


def _shown(roles: tuple[str, ...]) -> str:
    return quote(", ".join(roles))
