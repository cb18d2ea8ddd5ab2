"""A generation tells everybody who listens of everything, whenever they began to."""

from lmlang.protocol import Event, Finish, Generation, Output, Prompt, Request, Text, Usage

REQUEST = Request(Prompt.of(Text("Hi")))
OUTPUT = Output("ab", (97, 98), (-1.0,) * 2, Finish("eos"), Usage(2, 0, 2), ())


def event(index):
    return Event(index, (97 + index,), "ab"[index], (-1.0,))


class Follower:
    """Reads what there is whenever it is called."""

    def __init__(self, generation):
        self.generation = generation
        self.read = []
        self.calls = 0

    def __call__(self):
        self.calls += 1
        self.read += self.generation.events_from(len(self.read))


def test_a_watcher_is_told_of_what_came_before_it_at_once():
    generation = Generation(REQUEST)
    early = Follower(generation)
    generation.watch(early)
    assert early.calls == 0
    generation.push(event(0))
    late = Follower(generation)
    unwatch = generation.watch(late)
    assert late.read == early.read == [event(0)]
    unwatch()
    generation.push(event(1))
    assert (late.read, early.read) == ([event(0)], [event(0), event(1)])
    assert (late.calls, early.calls) == (1, 2)


def test_a_callback_is_called_once_whenever_it_was_added():
    generation, called = Generation(REQUEST), []
    generation.add_done_callback(called.append)
    generation.complete(OUTPUT)
    generation.add_done_callback(called.append)
    generation.fail(ValueError("too late"))
    assert called == [generation] * 2
    assert generation.result(0) == OUTPUT
