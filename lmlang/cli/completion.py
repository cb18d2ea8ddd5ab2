"""Completion in shells: a script that asks ``lmlang`` itself what may come next.

eval "$(lmlang completion bash)"          the shell ── lmlang __complete -- chat --te
                                                   ◀── --temperature ⇥ 0.7 without it; …
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from lmlang import demo
from lmlang.cli import terminal
from lmlang.cli.command import DONE, Command
from lmlang.cli.target import split

COMPLETE = "__complete"
"""The word by which the scripts ask; people have no use for it."""
DESCRIPTION = """\
Print a script that completes commands, options, the programs of a file and their parameters:

  eval "$(lmlang completion bash)"                     # in ~/.bashrc
  eval "$(lmlang completion zsh)"                      # in ~/.zshrc, after compinit
  lmlang completion fish | source                      # in ~/.config/fish/config.fish

Files are read to find their programs, never run.
"""
BASH = """\
_lmlang() {
    local IFS=$'\\n' word="${COMP_WORDS[COMP_CWORD]}" line
    COMPREPLY=()
    local words=() joined="" i
    for ((i = 1; i <= COMP_CWORD; i++)); do
        if [[ "${COMP_WORDS[i]}" == ":" || "$joined" == *: ]]; then
            joined+="${COMP_WORDS[i]}"
        else
            ((i > 1)) && words+=("$joined")
            joined="${COMP_WORDS[i]}"
        fi
    done
    words+=("$joined")
    while read -r line; do
        line="${line%%$'\\t'*}"
        [[ "$joined" == *:* ]] && line="${line#"${joined%"${joined##*:}"}"}"
        [[ -n "$line" ]] && COMPREPLY+=("$line")
    done < <(lmlang __complete -- "${words[@]}" 2>/dev/null)
}
complete -o default -F _lmlang lmlang
"""
ZSH = """\
_lmlang() {
    local -a found
    local line name tab=$'\\t'
    for line in "${(@f)$(lmlang __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        [[ -n $line ]] || continue
        name=${line%%${tab}*}
        found+=(${name//:/\\\\:}:${line#*${tab}})
    done
    if (( ${#found} )); then
        _describe 'lmlang' found
    else
        _files
    fi
}
compdef _lmlang lmlang
"""
FISH = """\
function __lmlang_complete
    set -l before (commandline -opc)
    set -e before[1]
    set -l current (commandline -ct)
    lmlang __complete -- $before "$current" 2>/dev/null
end
complete -c lmlang -a '(__lmlang_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def complete(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Print what may stand in the place of the last word, a line each, with a word about it."""
    words = list(arguments[1:] if arguments[:1] == ["--"] else arguments)
    for word, about in candidates(parser, words or [""]):
        terminal.say(f"{word}\t{about}" if about else word)
    return DONE


def candidates(parser: argparse.ArgumentParser, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What may stand in the place of the last of ``words``; nothing: a file's name may."""
    *before, last = words
    subparsers = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    if not before:
        about = {action.dest: action.help or "" for action in subparsers._choices_actions}
        yield from ((w, about[w]) for w in subparsers.choices if w.startswith(last))
        return
    if before[0] not in subparsers.choices:
        return
    command = subparsers.choices[before[0]]
    options = command._option_string_actions
    asking = options.get(before[-1]) if len(before) > 1 else None
    if asking is not None and asking.nargs != 0:
        yield from ((str(c), "") for c in asking.choices or () if str(c).startswith(last))
        return
    positional = [action for action in command._actions if not action.option_strings]
    if last.startswith("-"):
        yield from ((w, _about(a)) for w, a in options.items() if w.startswith(last))
        if any(action.dest == "target" for action in positional):
            own = (f"--{name.replace('_', '-')}" for name in _parameters(before[1:]))
            yield from ((w, "") for w in own if w.startswith(last) and w not in options)
        return
    for action in positional:
        if action.dest == "target":
            yield from ((word, "") for word in _targets(last))
        if action.dest == "demo":
            yield from ((w, about) for w, about in demo.NAMES.items() if w.startswith(last))
        yield from ((str(c), "") for c in action.choices or () if str(c).startswith(last))


def _about(action: argparse.Action) -> str:
    text = (action.help or "").replace("%%", "%")
    return text.split("\n", 1)[0].split(";", 1)[0]


def _targets(last: str) -> Iterator[str]:
    """The programs of a file that is written out, ``file.py:`` and the beginning of a name."""
    place, colon, begun = last.rpartition(":")
    if not colon and last.endswith(".py"):
        place, begun = last, ""
    for node in _programs(place):
        if node.name.startswith(begun):
            yield f"{place}:{node.name}"


def _parameters(words: Sequence[str]) -> Iterator[str]:
    """Of the program that one of the words names: what stands behind the state."""
    for word in words:
        place, name = split(word)
        found = [node for node in _programs(place) if name in (None, node.name)]
        if len(found) == 1:
            given = found[0].args
            yield from (each.arg for each in [*given.posonlyargs, *given.args][1:])
            yield from (each.arg for each in given.kwonlyargs)
            return


def _programs(place: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The programs that stand in a file; none where it is no file of Python."""
    if not place.endswith(".py"):
        return []
    try:
        tree = ast.parse(Path(place).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    return [
        node
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and any(map(_is_program, node.decorator_list))
    ]


def _is_program(decorator: ast.expr) -> bool:
    """Whether it is ``@function``, ``@lm.function`` or one of these called."""
    named = decorator.func if isinstance(decorator, ast.Call) else decorator
    return getattr(named, "attr", getattr(named, "id", "")) == "function"


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=sorted(SCRIPTS), help="whose script")


def _run(options: argparse.Namespace) -> int:
    terminal.say(SCRIPTS[options.shell], end="")
    return DONE


COMPLETION = Command(
    "completion", "print a script that completes commands in a shell", DESCRIPTION, _add, _run
)
