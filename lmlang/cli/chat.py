"""``lmlang chat``: a conversation in the terminal, word by word, in the model's own template."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable

from lmlang.cli import backends, terminal
from lmlang.cli.command import DONE, PARTLY, Command
from lmlang.errors import LMLangError

DESCRIPTION = """\
Talk with a model. Answers come word by word; Ctrl-C stops an answer, and at the prompt, as Ctrl-D
does, ends the program. Standard output has the answers alone, so that questions may come from a
pipe, one a line.

  lmlang chat
  lmlang chat --system "Answer in one sentence." --temperature 0
  echo "What is the capital of France?" | lmlang chat
"""
COMMANDS = {
    "/help": "these commands",
    "/new": "forget the conversation",
    "/system TEXT": "the system turn, in a conversation that begins anew",
    "/usage": "tokens of this conversation",
    "/exit": "end",
}


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", metavar="TEXT", help="the system turn")
    parser.add_argument(
        "--max-tokens", type=int, default=512, metavar="N", help="of an answer; 512 without it"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.7, metavar="T", help="0.7 without it; 0 is greedy"
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="of all draws; a fresh one without it"
    )
    backends.add(parser)


class Conversation:
    """Turns of one conversation; an answer that was stopped counts as far as it was read.

    Each turn stands on a fork of the state, so that one that fails leaves nothing behind.
    """

    def __init__(self, system: str | None, options: argparse.Namespace) -> None:
        import lmlang as lm

        @lm.function
        def begin(s: lm.ProgramState) -> None:
            if system is not None:
                s += lm.system(system)

        self.system = system
        self._lm = lm
        self._max_tokens = options.max_tokens
        keywords = {"temperature": options.temperature, "seed": options.seed}
        self._state: lm.ProgramState = begin.options(**keywords).run()

    def ask(self, question: str, write: Callable[[str], None]) -> None:
        """One turn: the answer is written as it comes. Ctrl-C ends it, with what has been read.

        Raises:
            LMLangError: The turn failed, and the conversation is as it was before.
        """
        lm, state = self._lm, self._state
        asked = state.fork(1)[0]
        asked += lm.user(question)
        answer = asked.fork(1)[0]
        answer += lm.assistant(lm.gen("answer", max_tokens=self._max_tokens))
        read = []
        pieces = answer.text_iter("answer")
        try:
            for piece in pieces:
                read.append(piece)
                write(piece)
        except KeyboardInterrupt:
            answer.cancel()
            asked += lm.assistant("".join(read))
            self._state = asked
            raise
        finally:
            pieces.close()
        answer.sync()
        self._state = answer

    def usage(self) -> str:
        """Tokens so far, in words."""
        found = self._state.usage()
        return (
            f"{found.prompt_tokens:,} prompt tokens ({found.cached_tokens:,} cached), "
            f"{found.generated_tokens:,} generated"
        )


def _run(options: argparse.Namespace) -> int:
    from lmlang.frontend import defaults

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - lines can be edited, where Python has it
    with backends.chosen(options) as backend, defaults.use(defaults.resolve(backend)):
        conversation, code = Conversation(options.system, options), DONE
        while True:
            try:
                line = _asked()
            except (EOFError, KeyboardInterrupt):
                return code
            if not line.strip():
                continue
            if line.startswith("/"):
                conversation, ends = _command(line, conversation, options)
                if ends:
                    return code
            elif not _turn(conversation, line):
                code = PARTLY


def _turn(conversation: Conversation, line: str) -> bool:
    """One question and its answer; what fails is told, and the conversation goes on.

    Returns:
        Whether it did not fail.
    """
    try:
        conversation.ask(line, lambda piece: terminal.say(terminal.shown(piece), end=""))
    except KeyboardInterrupt:
        terminal.tell("\n(stopped)")
        return True
    except LMLangError as error:  # where it is in the program of ours says nothing to who asked
        terminal.tell(f"lmlang chat: {error.args[0] if error.args else error}")
        return False
    terminal.say("")
    return True


def _asked() -> str:
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\r\n")
    try:
        return input("> ")
    except (EOFError, KeyboardInterrupt):
        terminal.tell("")
        raise


def _command(
    line: str, conversation: Conversation, options: argparse.Namespace
) -> tuple[Conversation, bool]:
    """What a line that begins with a slash does; also whether it ends the program."""
    word, _, rest = line.partition(" ")
    if word == "/exit":
        return conversation, True
    if word == "/new":
        return Conversation(conversation.system, options), False
    if word == "/system":
        return Conversation(rest.strip() or None, options), False
    if word == "/usage":
        terminal.tell(conversation.usage())
    else:
        for name, about in COMMANDS.items():
            terminal.tell(f"{name:<14} {about}")
    return conversation, False


CHAT = Command("chat", "talk with a model in the terminal", DESCRIPTION, _add, _run)
