"""A backend whose every event a test makes with its own hand."""

from __future__ import annotations

import heapq
import threading

from lmlang.backends.scripted import ScriptedBackend
from lmlang.errors import Cancelled
from lmlang.frontend.dispatcher import dispatcher
from lmlang.protocol import Event, Finish, Generation, Output, Request, Tokens, Usage

PATIENCE = 60.0
"""Seconds after which a test says that something hangs."""


class ByHand(ScriptedBackend):
    """Generations wait for `say` and `end`; a cancelled one ends unless ``stubborn``."""

    def __init__(self, stubborn: bool = False) -> None:
        super().__init__()
        self.stubborn = stubborn
        self.generations: list[Generation] = []
        self._more = threading.Condition()

    def generate(self, request: Request) -> Generation:
        generation = Generation(request, on_cancel=self._on_cancel)
        with self._more:
            self.generations.append(generation)
            self._more.notify_all()
        return generation

    def _on_cancel(self, generation: Generation) -> None:
        with self._more:
            self._more.notify_all()
        if not self.stubborn:
            generation.fail(Cancelled("the generation was cancelled."))

    def asked(self, index: int = 0) -> Generation:
        """The generation of this number, once it has been asked for."""
        with self._more:
            assert self._more.wait_for(lambda: len(self.generations) > index, PATIENCE)
            return self.generations[index]

    def cancels(self, index: int = 0) -> bool:
        """Whether the generation of this number is cancelled; the thread that does it may lag."""
        generation = self.asked(index)
        with self._more:
            return self._more.wait_for(lambda: generation.cancelled, PATIENCE)

    def say(self, text: str, index: int = 0) -> None:
        generation = self.asked(index)
        at = sum(len(event.ids) for event in generation.events_from(0))
        ids = tuple(map(ord, text))
        generation.push(Event(at, ids, text, (-1.0,) * len(ids)))

    def end(self, text: str = "", index: int = 0) -> None:
        """Say a last text and end."""
        generation = self.asked(index)
        if text:
            self.say(text, index)
        events = generation.events_from(0)
        whole = "".join(event.text for event in events)
        ids = tuple(token for event in events for token in event.ids)
        finish = Finish("eos")
        generation.push(Event(len(ids), (), "", (), finish))
        history = (Tokens(ids, whole),) if whole else ()
        usage = Usage(
            prompt_tokens=len(self.render(generation.request.prompt)), generated_tokens=len(ids)
        )
        generation.complete(Output(whole, ids, (-1.0,) * len(ids), finish, usage, history))


def deadlines_pass() -> None:
    """Have all deadlines of programs that have begun pass now, however long they are."""
    here = dispatcher()

    def forward() -> None:
        here._alarms = [(float("-inf"), number, alarm) for _, number, alarm in here._alarms]
        heapq.heapify(here._alarms)

    here.put(forward)


def bounded(work):
    """What ``work()`` returns or raises; an AssertionError if it does not end."""
    outcome = []

    def attempt():
        try:
            outcome.append((work(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it hangs"
    value, error = outcome[0]
    if error is not None:
        raise error
    return value
