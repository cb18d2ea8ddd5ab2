"""One call for one job: `extract`, `classify`, `generate`, each a program of a few lines.

    texts ──rows──> @function: instructions, examples, the text, gen or select ──run_batch──> values

Whoever needs more than a call writes the program, which each function's description shows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, overload

from lmlang.errors import LMLangError, ProgramError, ProgramTypeError, an, note, quote
from lmlang.frontend.arguments import meant, of_a_run
from lmlang.frontend.content import content_digest
from lmlang.frontend.decorator import function
from lmlang.frontend.dsl import assistant, gen, select, system, user
from lmlang.frontend.expression import Expression
from lmlang.frontend.members import members_of
from lmlang.frontend.partial import Partial
from lmlang.frontend.program import Function
from lmlang.frontend.recorder import ProgramState
from lmlang.frontend.rows import MAX_VERSION

Examples: TypeAlias = Iterable[tuple[str, Any]]
"""Pairs of a text and what is right for it."""

Texts: TypeAlias = list[str] | tuple[str, ...]

MAX_TOKENS = 512
"""Tokens of an answer at most, unless the call says otherwise."""
_GEN = frozenset(inspect.signature(gen).parameters) - {
    "name", "type", "dtype", "choices", "choices_method", "n", "seed", "provenance",
}  # fmt: skip
_BATCH = ("num_threads", "progress_bar", "on_error", "key", "journal", "version")


@dataclass(frozen=True, slots=True)
class Classification:
    """What `classify` found. A value.

    Args:
        label: The label.
        probs: The probability of each label; they sum to 1.
        margin: How much likelier the label is than the next one.
    """

    label: Any
    probs: Mapping[Any, float]
    margin: float

    def __str__(self) -> str:
        return str(self.label)


@overload
def extract(text: str, type: Any, **keywords: Any) -> Any: ...
@overload
def extract(text: Texts, type: Any, **keywords: Any) -> list[Any]: ...
def extract(
    text: str | Sequence[str],
    type: Any,
    *,
    instructions: str | None = None,
    examples: Examples = (),
    **keywords: Any,
) -> Any:
    """What a text says, as an instance of a type; of a list of texts a list, in their order.

    Args:
        text: The text, or a list of texts, which are one batch.
        type: A type as `gen` takes it.
        instructions: What matters besides, for the model to read.
        examples: Pairs of a text and its value.
        **keywords: Of `gen`, as max_tokens=512, temperature=0.0, tries, think; of a run, as seed,
            backend, deadline; of `Function.run_batch`, as on_error, journal, num_threads. With
            on_error="return" an error stands in the place of its value.

    Raises:
        ProgramError: An argument is wrong.
        ConstraintError: An example is none of the type, or a value that validators refuse.

    It is this program::

        @lm.function
        def extract(s, text):
            s += lm.system('Extract … Answer in this form: {"vendor": text, "total": number}')
            for example, value in examples:
                s += lm.user(example) + lm.assistant(value_as_json)
            s += lm.user(text) + lm.assistant(lm.gen("value", type=T, temperature=0.0))

        [s["value"] for s in extract.run_batch([(text,) for text in texts])]
    """
    from lmlang.grammar.type_text import outline, written

    texts = _texts("extract", text)
    if type is None:
        raise ProgramTypeError("extract: type is None: give a type, as of what the text says.")
    own, more = _split("extract", keywords, _GEN)
    answer = gen("value", type=type, **{"max_tokens": MAX_TOKENS, "temperature": 0.0, **own})
    form = outline(type)
    head = _head(
        "Extract what is asked for from the text of the user. Take only what the text says."
        + (f" Answer in this form: {form}" if form else ""),
        "extract",
        instructions,
    )
    shots = _shots("extract", examples, lambda value: written(value, type))
    program = _program("extract", head, shots, answer)
    more = _versioned(more, head, shots, answer, type)
    return _values(program, texts, text, more, _value)


@overload
def classify(text: str, labels: Any, **keywords: Any) -> Classification: ...
@overload
def classify(text: Texts, labels: Any, **keywords: Any) -> list[Classification]: ...
def classify(
    text: str | Sequence[str],
    labels: Any,
    *,
    instructions: str | None = None,
    examples: Examples = (),
    **keywords: Any,
) -> Any:
    """Which of some labels a text has, with probabilities; of a list of texts a list.

    Args:
        text: The text, or a list of texts, which are one batch.
        labels: As `select` takes choices: texts, an Enum, a Literal, or a dict of label to text.
        instructions: What matters besides, for the model to read.
        examples: Pairs of a text and its label.
        **keywords: choices_method, of a run, and of `Function.run_batch`, as in `extract`.

    Returns:
        A `Classification`: ``.label``, ``.probs`` by label, ``.margin``.

    Raises:
        ProgramError: An argument is wrong; labels are empty or stand twice.

    It is this program::

        @lm.function
        def classify(s, text):
            s += lm.system("Classify … Answer with one of these alone: refund, bug, other")
            for example, label in examples:
                s += lm.user(example) + lm.assistant(label)
            s += lm.user(text) + lm.assistant(lm.select("value", labels))
    """
    texts = _texts("classify", text)
    own, more = _split("classify", keywords, frozenset(("choices_method",)))
    labels = list(labels) if isinstance(labels, Iterator) else labels  # which are read twice
    members, named = members_of(labels)
    answer = select("value", labels, **own)
    head = _head(
        f"Classify the text of the user. Answer with one of these alone: {', '.join(named)}",
        "classify",
        instructions,
    )

    def label(value: Any) -> str:
        if value not in members:
            raise ProgramError(f"{quote(repr(value))[1:-1]} is none of the labels.")
        return named[members.index(value)]

    shots = _shots("classify", examples, label)
    program = _program("classify", head, shots, answer, _classified)
    more = _versioned(more, head, shots, answer, members)
    return _values(program, texts, text, more, lambda state: state.ret_value)


@overload
def generate(
    prompt: str, type: Any = None, *, stream: Literal[True], **keywords: Any
) -> Generator[Partial]: ...
@overload
def generate(
    prompt: str, type: Any = None, *, stream: Literal[False] = False, **keywords: Any
) -> Any: ...
@overload
def generate(prompt: Texts, type: Any = None, **keywords: Any) -> list[Any]: ...
def generate(
    prompt: str | Sequence[str],
    type: Any = None,
    *,
    stream: bool = False,
    instructions: str | None = None,
    examples: Examples = (),
    **keywords: Any,
) -> Any:
    """What the model answers to a prompt, as text or as an instance of a type.

    Args:
        prompt: What the user says, or a list of such prompts, which are one batch.
        type: A type as `gen` takes it; None: text.
        stream: Return an iterator of `Partial` values that grow, of which the last is ``done``.
        instructions: A system message.
        examples: Pairs of a prompt and its answer.
        **keywords: As in `extract`; the temperature is the run's, 1.0.

    Raises:
        ProgramError: An argument is wrong.

    It is this program::

        @lm.function
        def generate(s, prompt):
            s += lm.user(prompt) + lm.assistant(lm.gen("value", type=T))
    """
    from lmlang.grammar.type_text import written

    prompts = _texts("generate", prompt)
    own, more = _split("generate", keywords, _GEN)
    answer = gen("value", type=type, **{"max_tokens": MAX_TOKENS, **own})
    head = "" if instructions is None else _head("", "generate", instructions)

    def write(value: Any) -> str:
        if type is None:
            return _text("generate", "the answer of an example", value)
        return written(value, type)

    shots = _shots("generate", examples, write)
    program = _program("generate", head, shots, answer)
    if not stream:
        more = _versioned(more, head, shots, answer, type)
        return _values(program, prompts, prompt, more, _value)
    if not isinstance(prompt, str):
        raise ProgramError(
            "generate: stream=True is for one prompt: iterate over the prompts, or leave it out."
        )
    wrong = next((name for name in more if name in _BATCH), None)
    if wrong is not None:
        raise ProgramError(
            f"generate: {wrong} is a keyword of batches, and stream=True is for one run: leave one "
            "of them out."
        )
    return program.run(prompt, stream=True, **more).partial_iter("value")


# ------------------------------------------------------------------------------- programs


def _program(
    name: str,
    head: str,
    shots: Sequence[tuple[str, str]],
    answer: Expression,
    found: Callable[[ProgramState], Any] | None = None,
) -> Function[[str], Any]:
    """The program of a call: only the text differs from row to row.

    Args:
        name: The program's.
        head: The system message.
        shots: Examples.
        answer: What is asked for.
        found: What the program returns, where that is more than a variable's value: a journal that
            keeps whole rows has it.
    """

    def body(s: ProgramState, text: str) -> Any:
        if head:
            s += system(head)
        for example, due in shots:
            s += user(example)
            s += assistant(due)
        s += user(text)
        s += assistant(answer)
        return None if found is None else found(s)

    body.__name__ = body.__qualname__ = name
    return function(body)


def _versioned(
    keywords: dict[str, Any],
    head: str,
    shots: Sequence[tuple[str, str]],
    answer: Expression,
    values: object,
) -> dict[str, Any]:
    """The keywords, ``version`` being another one where something else is asked for, too.

    Nobody sees the program of a call change: it is made of what it is called with.
    """
    version = keywords.get("version")
    if not isinstance(version, str) or not 0 < len(version) <= MAX_VERSION:
        return keywords  # none, or one that is refused where it is read
    nodes = tuple([leaf.node for leaf in answer.leaves])
    asked = content_digest((version, head, tuple(shots), nodes, repr(values)))
    return {**keywords, "version": asked}


def _value(state: ProgramState) -> Any:
    return state["value"]


def _classified(state: ProgramState) -> Classification:
    found = state.meta("value")
    assert found.margin is not None
    return Classification(state["value"], found.probs, found.margin)


def _values(
    program: Function[[str], Any],
    texts: Sequence[str],
    given: object,
    keywords: dict[str, Any],
    value: Any,
) -> Any:
    """What the runs of a program come to: of a list of texts a list."""
    if isinstance(given, str) and not any(name in keywords for name in _BATCH):
        return value(program.run(given, **keywords))  # on this thread, whose line errors then name
    states = program.run_batch([(text,) for text in texts], **keywords)
    errors = [state.error() for state in states]
    found = [
        value(state) if error is None else error
        for state, error in zip(states, errors, strict=True)
    ]
    return found[0] if isinstance(given, str) else found


# ------------------------------------------------------------------------------ arguments


def _texts(where: str, given: object) -> Sequence[str]:
    """The texts of a call, checked."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, (bytes, bytearray)):
        raise ProgramTypeError(
            f"{where}: the text is {an(type(given).__name__)}: decode it, as in text.decode()."
        )
    if not isinstance(given, Sequence):
        raise ProgramTypeError(
            f"{where}: {an(type(given).__name__)} is no text and no list of texts: write "
            f"list(…) around what gives texts, or use run_batch of a program for many of them."
        )
    for index, text in enumerate(given):
        if not isinstance(text, str):
            raise ProgramTypeError(
                f"{where}: text {index:,} of the list is {an(type(text).__name__)}: all are "
                "strings."
            )
    return given


def _text(where: str, what: str, value: object) -> str:
    if not isinstance(value, str):
        raise ProgramTypeError(f"{where}: {what} is {an(type(value).__name__)}: give a string.")
    return value


def _head(said: str, where: str, instructions: object) -> str:
    """The system message."""
    if instructions is None:
        return said
    more = _text(where, "instructions", instructions)
    return f"{said}\n\n{more}" if said else more


def _shots(where: str, examples: Any, write: Any) -> list[tuple[str, str]]:
    """Examples as what the user and the model say."""
    if isinstance(examples, (str, bytes, Mapping)) or not isinstance(examples, Iterable):
        raise ProgramTypeError(
            f"{where}: examples are {an(type(examples).__name__)}: give a list of pairs, each a "
            "text and what is right for it."
        )
    found = []
    for index, pair in enumerate(examples):
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise ProgramTypeError(
                f"{where}: example {index:,} is {quote(repr(pair))[1:-1]}: give a pair of a text "
                "and what is right for it."
            )
        text = _text(where, f"the text of example {index:,}", pair[0])
        try:
            found.append((text, write(pair[1])))
        except LMLangError as error:
            note(error, f"raised by example {index:,} of {where}")
            raise
    return found


def _split(
    where: str, keywords: Mapping[str, Any], own: frozenset[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keywords of the answer, and those of its run."""
    for name in keywords:
        if name == "n":
            raise ProgramTypeError(f"{where}: n cannot act: one text has one value; call it again.")
        if name == "stream":
            raise ProgramTypeError(
                f"{where}: stream cannot act: it returns values that are done; lm.generate(…, "
                "type=T, stream=True) gives values that grow."
            )
        if name not in own and name not in _BATCH and not of_a_run(name):
            raise ProgramTypeError(
                f"{where}: unknown keyword {quote(name)}{meant(name)}: it takes those of "
                f"{'gen' if own is _GEN else 'a run'} and of run_batch."
            )
    mine = {name: value for name, value in keywords.items() if name in own}
    return mine, {name: value for name, value in keywords.items() if name not in own}
