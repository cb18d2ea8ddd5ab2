r"""IR as text and back, exactly: ``parse_program(print_program(p)) == p``.

    program tips(topic: str)
      %0 = start
      %1 = text %0 "Two tips about "
      %2 = arg %1 topic
      %3, %4 = fork %2 2
      %5 = gen %3 -> tip [max_tokens=32, stop="\n"]
      %6 = gen %4 -> tip [max_tokens=32, stop="\n"]
      %7 = join %2 %5 %6
      %8 = ref %7 tip[0]
      %9 = select %8 -> verdict ["good", "bad"]
      return %9

One line a node: the states it makes, its word, the state it takes, what it must have, and in
brackets what it may have. Sources are not printed. What the text says is checked by `verify`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lmlang.errors import ProgramError, an
from lmlang.frontend import ir
from lmlang.frontend.fields import check_fields, check_program
from lmlang.frontend.layout import ANNOTATION, PARAMETER, options_of, state_text, word_of
from lmlang.frontend.literals import float_text, integer_text, name_text, quoted
from lmlang.frontend.parser import parse_program

__all__ = ["parse_program", "print_node", "print_program"]


def print_program(program: ir.Program) -> str:
    """A program as text, one line a node.

    Raises:
        ProgramError: It is none, or holds what cannot be printed, such as an infinite number.
    """
    check_program(program)
    parameters = ", ".join(map(_parameter_text, program.parameters))
    version = "" if program.version == 1 else f" version {program.version}"
    lines = [f"program {name_text(program.name)}({parameters}){version}"]
    lines += [f"  {print_node(node)}" for node in program.nodes]
    return "\n".join(lines) + "\n"


def print_node(node: ir.Node) -> str:
    """A node as the line that it is in the text of a program.

    Raises:
        ProgramError: It is no node, or holds what cannot be printed.
    """
    try:
        return _line(node)
    except (AttributeError, TypeError, ValueError):
        check_fields(node)  # which says what is wrong with it
        raise


def _line(node: ir.Node) -> str:
    word = word_of(type(node))
    made = ", ".join(map(state_text, ir.made_by(node)))
    parts = [f"{made} =" if made else "", word]
    if not isinstance(node, ir.Start):
        parts.append(state_text(node.state))
    return " ".join(filter(None, [*parts, *_tail(node)]))


def _tail(node: ir.Node) -> Iterator[str]:
    """What stands behind the state that a node takes."""
    match node:
        case ir.Text():
            yield quoted(node.text)
        case ir.Arg() | ir.Scope() | ir.EndScope():
            yield name_text(node.name)
        case ir.Ref():
            yield _ref_text(node)
        case ir.Role() | ir.EndRole():
            yield name_text(node.role)
        case ir.Gen():
            yield f"-> {name_text(node.name)}"
        case ir.Select():
            yield f"-> {name_text(node.name)}"
            yield _list(map(quoted, node.choices))
        case ir.Image():
            yield quoted(node.image)
        case ir.SetVar():
            yield f"-> {name_text(node.name)}"
            yield "" if node.value == ir.Opaque() else _datum_text(node.value)
        case ir.Fork():
            yield integer_text(len(node.made))
        case ir.Join():
            yield from map(state_text, node.children)
        case ir.Call():
            yield name_text(node.callee)
            given = [f"{name_text(name)}={_datum_text(x)}" for name, x in node.arguments]
            yield _list(given) if given else ""
        case ir.Return():
            yield "" if node.value is None else _datum_text(node.value)
    yield _options_text(node)


def _options_text(node: ir.Node) -> str:
    given = [
        f"{name}={option.form.write(getattr(node, name))}"
        for name, option in options_of(type(node)).items()
        if getattr(node, name) != option.default
    ]
    return _list(given) if given else ""


def _list(parts: Iterable[str]) -> str:
    return f"[{', '.join(parts)}]"


def _parameter_text(parameter: ir.Parameter) -> str:
    name, annotation = parameter.name, parameter.annotation
    text = name if PARAMETER.fullmatch(name) else quoted(name)
    if not annotation:
        return text
    return f"{text}: {annotation if ANNOTATION.fullmatch(annotation) else quoted(annotation)}"


def _ref_text(ref: ir.Ref) -> str:
    if not all(0 <= index < 10**15 for index in ref.index):
        raise ProgramError(f"{ref.index} is no index: items are counted from 0.")
    return name_text(ref.name) + "".join(f"[{index}]" for index in ref.index)


def _datum_text(value: ir.Datum) -> str:
    match value:
        case None | True | False:
            return str(value)
        case str():
            return quoted(value)
        case int():
            return integer_text(value)
        case float():
            return float_text(value)
        case ir.Arg():
            return f"arg {name_text(value.name)}"
        case ir.Ref():
            return f"ref {_ref_text(value)}"
        case ir.Opaque():
            return f"<{name_text(value.kind) if value.kind else ''}>"
    raise ProgramError(f"{an(type(value).__name__)} is no data and cannot stand in a program.")
