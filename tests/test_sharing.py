"""Programs on the real engine compute every shared prompt token once: counted against the trie."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import lmlang as lm
from lmlang.protocol import Generation, Request
from lmlang.runtime.local import Runtime
from tests.tiny import tiny_model


class Watched(Runtime):
    """A runtime that remembers the token ids of the prompts it was asked to continue."""

    prompts: list[list[int]]
    asked: threading.Semaphore

    def generate(self, request: Request) -> Generation:
        self.prompts.append(self.encode(request.prompt))
        generation = super().generate(request)
        self.asked.release()
        return generation

    def hold(self, number: int) -> None:
        """Take no step until so many more generations have been asked for."""
        self.asked = asked = threading.Semaphore(0)
        self._engine.tell(lambda _: [asked.acquire(timeout=60) for _ in range(number)])


@pytest.fixture
def rt() -> Iterator[Watched]:
    model, tokenizer, template = tiny_model()
    with Watched.over(model, tokenizer, template, kv_tokens=20_000) as rt:
        assert isinstance(rt, Watched)
        rt.prompts, rt.asked = [], threading.Semaphore(0)
        yield rt
        rt.check()


def trie_tokens(prompts: list[list[int]]) -> int:
    """Tokens of the union trie, plus one for each prompt that is cached to its end."""
    known: set[tuple[int, ...]] = set()
    count = 0
    for prompt in prompts:
        new = {tuple(prompt[:n]) for n in range(1, len(prompt) + 1)} - known
        known |= new
        count += len(new) or 1
    return count


EXAMPLES = "".join(f"user: {n}\nand: hello world {n}\n\n" for n in range(6))


def test_few_shot_rows_at_once(rt: Watched) -> None:
    @lm.function
    def row(s: lm.ProgramState, x: int) -> None:
        s += EXAMPLES + f"user: {x}\nand:" + lm.gen("answer", max_tokens=5, ignore_eos=True)

    states = row.run_batch([{"x": n % 9} for n in range(24)], backend=rt, seed=1)
    assert len({str(s["answer"]) for s in states}) > 1
    stats = rt.stats()
    assert stats.prefill_tokens == trie_tokens(rt.prompts)
    assert stats.prompt_tokens == stats.cached_tokens + stats.prefill_tokens
    assert stats.decode_tokens == 24 * 4


def test_forks_of_forks_share_everything_before_them(rt: Watched) -> None:
    @lm.function
    def tree(s: lm.ProgramState) -> None:
        s += EXAMPLES
        for child in s.fork(3):
            child += "the user "
            for grandchild, word in zip(child.fork(3), ("and ", "world ", "hello "), strict=True):
                grandchild += word + lm.gen("leaf", max_tokens=4, ignore_eos=True)

    tree.run(backend=rt, seed=3)
    # The children say the same, so their prompts coincide; 3 distinct ones, each asked 3 times.
    assert len(rt.prompts) == 9
    assert rt.stats().prefill_tokens == trie_tokens(rt.prompts)
    assert rt.stats().decode_tokens == 9 * 3


def test_a_chats_turns_compute_only_what_is_new(rt: Watched) -> None:
    @lm.function
    def chat(s: lm.ProgramState) -> None:
        s += lm.system("the user and the world")
        for turn in range(5):
            s += lm.user(f"hello {turn}")
            s += lm.assistant(lm.gen(f"answer{turn}", max_tokens=6, ignore_eos=True))

    state = chat.run(backend=rt, seed=5)
    computed: set[tuple[int, ...]] = set()
    expected = 0
    for turn, prompt in enumerate(rt.prompts):
        new = {tuple(prompt[:n]) for n in range(1, len(prompt) + 1)} - computed
        expected += len(new) or 1
        assert state.meta(f"answer{turn}").cached_tokens == len(prompt) - (len(new) or 1)
        ids = [*prompt, *state.meta(f"answer{turn}").tokens]
        computed |= {tuple(ids[:n]) for n in range(1, len(ids))}  # all but the last token
    assert rt.stats().prefill_tokens == expected


def test_a_forked_program_reads_and_draws_the_same_tokens_as_the_unforked_one(rt: Watched) -> None:
    @lm.function
    def straight(s: lm.ProgramState, word: str) -> None:
        s += "hello wor" + f"ld and {word}" + lm.gen("x", max_tokens=8, temperature=0)

    @lm.function
    def forked(s: lm.ProgramState) -> None:
        s += "hello wor"
        forks = s.fork(2)
        for child, word in zip(forks, ("the", "us"), strict=True):
            child += f"ld and {word}"
            child += lm.gen("x", max_tokens=8, temperature=0)
        forks.join()

    apart = [straight.run(word=word, backend=rt)["x"] for word in ("the", "us")]
    first = list(rt.prompts)
    assert forked.run(backend=rt)["x"] == apart
    assert rt.prompts[2:] == first


def test_samples_share_one_prefill_differ_and_can_be_repeated(rt: Watched) -> None:
    @lm.function
    def sampled(s: lm.ProgramState) -> None:
        s += EXAMPLES + lm.gen("x", n=4, max_tokens=8, ignore_eos=True)

    rt.hold(4)  # a sample that comes when the first has been computed lacks its last token
    first = sampled.run(backend=rt, seed=11)
    stats = rt.stats()
    assert len(set(first["x"])) == 4
    assert stats.prefill_tokens == len(rt.prompts[0])
    assert stats.prompt_tokens == stats.cached_tokens + stats.prefill_tokens
    assert stats.decode_tokens == 4 * 7
    rt.hold(4)
    assert sampled.run(backend=rt, seed=11)["x"] == first["x"]
    rt.hold(4)
    assert sampled.run(backend=rt, seed=12)["x"] != first["x"]
    assert rt.stats().prefill_tokens == len(rt.prompts[0]) + 2  # once for each time asked
