"""Four workloads that generate: forks, extractions, chats, a tree of thought.

Each answers with the token ids of its texts, prompts included, the same from every subject. By
hand means what a careful user of transformers writes: what is shared is computed once and kept in
a DynamicCache, which is repeated for every row, goes on over turns, and branches with the tree.
"""

from __future__ import annotations

import report

# isort: split
import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from by_hand import Peer, common_tokens
from reviews import records, reviews

import lmlang as lm

Ids = list[list[int]]
Answer = tuple[float, Ids]
"""Seconds, and all tokens of each text."""


class Rows:
    """How token rows are compared."""

    __slots__ = ()
    name = ""

    def check(self, judge: Peer, ours: Ids, theirs: Ids) -> None:
        """Require equal rows up to ties."""
        for mine, other in zip(ours, theirs, strict=True):
            same = mine[0] == other[0] and judge.same_up_to_ties([], mine, other)
            report.require(same, f"{self.name}: the tokens")

    def same(self, ours: Ids, theirs: Ids) -> int:
        """How many rows are equal."""
        return sum(a == b for a, b in zip(ours, theirs, strict=True))


# ------------------------------------------------------------------ forks


@lm.function
def advise(s: lm.ProgramState, text: str, endings: tuple[str, ...], tokens: int) -> lm.Forks:
    """One text, continued behind several endings."""
    s += text
    forks = s.fork(len(endings))
    for branch, ending in zip(forks, endings, strict=True):
        branch += ending
        branch += lm.gen("advice", max_tokens=tokens, temperature=0, ignore_eos=True)
    forks.join()
    return forks


@dataclass(frozen=True, slots=True)
class Forks(Rows):
    """One long prompt, continued in several ways side by side.

    Args:
        text: The shared prompt.
        endings: What each fork adds; all have the same number of tokens.
        tokens: To generate in each fork.
        ids: Of text and ending, for each fork.
    """

    name = "forks"
    text: str
    endings: tuple[str, ...]
    tokens: int
    ids: Ids

    @classmethod
    def of(cls, runtime: lm.Runtime, length: int, count: int, tokens: int) -> Forks:
        """A text of about ``length`` tokens, to be forked ``count`` times."""
        text = filled(runtime, 3, length)
        digits = len(str(count))  # each is a token
        numbers = [f"{number:0{digits}}" for number in range(1, count + 1)]
        endings = tuple(f"\nAdvice {number} for the innkeeper:" for number in numbers)
        return cls(text, endings, tokens, equally_long(runtime, text, endings))

    def less(self) -> Forks:
        """Two tokens, to warm up."""
        return dataclasses.replace(self, tokens=2)

    def facts(self) -> dict[str, int]:
        """Its sizes."""
        shared = common_tokens(self.ids)
        return {"prefix_tokens": shared, "forks": len(self.ids), "tokens": self.tokens}

    def ours(self, runtime: lm.Runtime) -> Answer:
        """One run that forks."""
        seconds, state = report.timed(
            lambda: advise.run(self.text, self.endings, self.tokens, backend=runtime)
        )
        return seconds, [branch.token_ids() for branch in state.ret_value]

    def plain(self, peer: Peer) -> Answer:
        """One batch of whole prompts."""
        return report.timed(lambda: continued(peer, self.ids, self.tokens))

    def by_hand(self, peer: Peer) -> Answer:
        """The prompt once, its cache repeated for every fork."""

        def run() -> Ids:
            cache = peer.prefix(self.ids[0][: common_tokens(self.ids)], len(self.ids))
            return continued(peer, self.ids, self.tokens, cache=cache)

        return report.timed(run)

    def told(self, ours: Ids, theirs: Ids) -> dict[str, Any]:
        """Nothing more."""
        return {}


# ------------------------------------------------------------------ extractions


@lm.function
def extract(s: lm.ProgramState, instruction: str, review: str, tokens: int) -> None:
    """One review into one line of JSON."""
    s += instruction
    s += review
    s += lm.gen("record", max_tokens=tokens, temperature=0, stop="\n", ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Extractions(Rows):
    """Short extractions behind one instruction; each ends with its line.

    Args:
        instruction: The same for all.
        reviews: What stands before each record.
        right: All ids as they should be, without the end of the line.
        tokens: Of each record at most.
        ids: Of instruction and review.
        ends: The tokens that hold a line's end.
    """

    name = "extractions"
    instruction: str
    reviews: list[str]
    right: Ids
    tokens: int
    ids: Ids
    ends: tuple[int, ...]

    @classmethod
    def of(cls, runtime: lm.Runtime, length: int, count: int, tokens: int) -> Extractions:
        """An instruction of about ``length`` tokens and so many reviews."""
        encode = runtime.tokenizer.encode
        shots = "Write each review down as a line of JSON.\n\n"
        for text, record in records(4, 1_000):
            more = shots + asked(text) + f" {json.dumps(record)}\n\n"
            if len(encode(more)) > length:
                break
            shots = more
        made = records(5, count)
        texts = [asked(text) for text, _ in made]
        vocabulary = range(runtime.tokenizer.vocab_size)
        ends = tuple(token for token in vocabulary if "\n" in runtime.decode([token]))
        ids = [encode(shots + text) for text in texts]
        right = [encode(f"{shots}{asked(text)} {json.dumps(record)}") for text, record in made]
        return cls(shots, texts, right, tokens, ids, ends)

    def less(self) -> Extractions:
        """Two tokens, to warm up."""
        return dataclasses.replace(self, tokens=2)

    def facts(self) -> dict[str, int]:
        """Its sizes."""
        return {"prefix_tokens": common_tokens(self.ids), "extractions": len(self.ids)}

    def ours(self, runtime: lm.Runtime) -> Answer:
        """All reviews as one batch of runs."""
        rows = [
            {"instruction": self.instruction, "review": review, "tokens": self.tokens}
            for review in self.reviews
        ]
        seconds, states = report.timed(lambda: extract.run_batch(rows, backend=runtime))
        metas = [state.meta("record") for state in states]
        for meta, ids in zip(metas, self.ids, strict=True):
            report.require(meta.prompt_tokens == len(ids), "extractions: prompt tokens")
        return seconds, [[*ids, *m.tokens] for ids, m in zip(self.ids, metas, strict=True)]

    def plain(self, peer: Peer) -> Answer:
        """One padded batch of whole prompts."""
        return report.timed(lambda: continued(peer, self.ids, self.tokens, ends=self.ends))

    def by_hand(self, peer: Peer) -> Answer:
        """The instruction once, its cache repeated for every review."""

        def run() -> Ids:
            held = common_tokens(self.ids)
            cache = peer.prefix(self.ids[0][:held], len(self.ids))
            return continued(peer, self.ids, self.tokens, cache=cache, held=held, ends=self.ends)

        return report.timed(run)

    def told(self, ours: Ids, theirs: Ids) -> dict[str, Any]:
        """The tokens that the records took, and how many are right."""
        taken = sum(map(len, ours)) - sum(map(len, self.ids))
        right = sum(row[:-1] == wanted for row, wanted in zip(ours, self.right, strict=True))
        return {"tokens": taken, "right": right}


def asked(review: str) -> str:
    """What stands before a record."""
    return f"Review: {review}\nRecord:"


# ------------------------------------------------------------------ chats


@lm.function
def chat(s: lm.ProgramState, system: str, said: tuple[str, ...], tokens: int) -> None:
    """One conversation, in the form that the model was trained with."""
    s += lm.system(system)
    for number, words in enumerate(said):
        s += lm.user(words)
        s += lm.assistant(
            lm.gen(f"answer{number}", max_tokens=tokens, temperature=0, ignore_eos=True)
        )


@dataclass(frozen=True, slots=True)
class Chats(Rows):
    """Conversations side by side, each turn behind all before it.

    Args:
        system: The same for all.
        said: What each chat's user says, turn by turn.
        tokens: Of each answer.
        turns: Chat by chat the ids that each turn adds before its answer.
        close: The ids behind the last answer.
    """

    name = "chats"
    system: str
    said: list[tuple[str, ...]]
    tokens: int
    turns: list[Ids]
    close: list[int]

    @classmethod
    def of(cls, runtime: lm.Runtime, count: int, turns: int, tokens: int) -> Chats:
        """So many chats, whose users' words are of one length in tokens."""
        system = "You are the innkeeper. " + filled(runtime, 6, 60)
        dishes = ("soup", "fish", "cake", "wine")[:count]
        asking = ("Do you still serve {}?", "Who makes the {}?", "Is the {} good?", "Why {}?")
        said = [tuple(ask.format(dish) for ask in asking[:turns]) for dish in dishes]
        begin, end = (runtime.tokenizer.control_id(f"<|im_{name}|>") for name in ("start", "end"))
        assert begin is not None
        assert end is not None
        encode = runtime.tokenizer.encode
        close = [end, *encode("\n")]
        opening = [begin, *encode(f"system\n{system}"), *close]
        rows = [
            [
                [
                    *(close if turn else opening),
                    *(begin, *encode(f"user\n{words}"), *close),
                    *(begin, *encode("assistant\n")),
                ]
                for turn, words in enumerate(chat)
            ]
            for chat in said
        ]
        for turn in zip(*rows, strict=True):
            assert len(set(map(len, turn))) == 1, "unequal turns would need padding"
        return cls(system, said, tokens, rows, close)

    def less(self) -> Chats:
        """Two tokens an answer, to warm up."""
        return dataclasses.replace(self, tokens=2)

    def facts(self) -> dict[str, int]:
        """Its sizes."""
        shared = common_tokens([turns[0] for turns in self.turns])
        facts = {"prefix_tokens": shared, "chats": len(self.said)}
        return facts | {"turns": len(self.said[0]), "tokens": self.tokens}

    def ours(self, runtime: lm.Runtime) -> Answer:
        """All chats as one batch of runs."""
        rows = [{"system": self.system, "said": said, "tokens": self.tokens} for said in self.said]
        seconds, states = report.timed(lambda: chat.run_batch(rows, backend=runtime))
        return seconds, [state.token_ids() for state in states]

    def plain(self, peer: Peer) -> Answer:
        """Each turn as one batch of whole conversations."""
        return report.timed(lambda: self._turns(lambda rows: continued(peer, rows, self.tokens)))

    def by_hand(self, peer: Peer) -> Answer:
        """The system text once, its cache repeated for every chat and kept over the turns."""

        def run() -> Ids:
            first = [turns[0] for turns in self.turns]
            cache = peer.prefix(first[0][: common_tokens(first)], len(first))
            return self._turns(lambda rows: continued(peer, rows, self.tokens, cache=cache))

        return report.timed(run)

    def told(self, ours: Ids, theirs: Ids) -> dict[str, Any]:
        """Nothing more."""
        return {}

    def _turns(self, answered: Callable[[Ids], Ids]) -> Ids:
        rows: Ids = [[] for _ in self.turns]
        for turn in zip(*self.turns, strict=True):
            rows = answered([[*row, *words] for row, words in zip(rows, turn, strict=True)])
        return [[*row, *self.close] for row in rows]


# ------------------------------------------------------------------ tree


@lm.function
def think(
    s: lm.ProgramState, text: str, endings: tuple[str, ...], depth: int, tokens: int
) -> list[lm.ProgramState]:
    """A tree of thought: every node extends its parent's text; returns the leaves."""
    s += text
    level = [s]
    for _ in range(depth):
        parents, level = level, []
        for parent in parents:
            for child, ending in zip(parent.fork(len(endings)), endings, strict=True):
                child += ending
                child += lm.gen("thought", max_tokens=tokens, temperature=0, ignore_eos=True)
                level.append(child)
    return level


@dataclass(frozen=True, slots=True)
class Tree(Rows):
    """A tree of thought, all nodes of a level side by side.

    Args:
        text: At the root.
        endings: What the children of a node begin with; all have the same number of tokens.
        depth: Levels below the root.
        tokens: To generate in each node.
        root: The text's ids.
        steps: The endings' ids.
    """

    name = "tree"
    text: str
    endings: tuple[str, ...]
    depth: int
    tokens: int
    root: list[int]
    steps: Ids

    @classmethod
    def of(cls, runtime: lm.Runtime, length: int, depth: int, tokens: int) -> Tree:
        """A tree of width 3 on a text of about ``length`` tokens."""
        text = filled(runtime, 7, length)
        endings = tuple(f"\nThought {number}:" for number in (1, 2, 3))
        ids = equally_long(runtime, text, endings)
        root = runtime.tokenizer.encode(text)
        assert all(row[: len(root)] == root for row in ids)
        return cls(text, endings, depth, tokens, root, [row[len(root) :] for row in ids])

    def less(self) -> Tree:
        """One level of two tokens, to warm up."""
        return dataclasses.replace(self, depth=1, tokens=2)

    def facts(self) -> dict[str, int]:
        """Its sizes."""
        nodes = sum(len(self.endings) ** level for level in range(1, self.depth + 1))
        return {"prefix_tokens": len(self.root), "nodes": nodes, "tokens": self.tokens}

    def ours(self, runtime: lm.Runtime) -> Answer:
        """One run whose forks fork."""
        seconds, state = report.timed(
            lambda: think.run(self.text, self.endings, self.depth, self.tokens, backend=runtime)
        )
        return seconds, [leaf.token_ids() for leaf in state.ret_value]

    def plain(self, peer: Peer) -> Answer:
        """Each level as one batch of whole texts."""

        def run() -> Ids:
            level = [self.root]
            for _ in range(self.depth):
                level = continued(peer, self._children(level), self.tokens)
            return level

        return report.timed(run)

    def by_hand(self, peer: Peer) -> Answer:
        """The text once; each level's cache repeated for the children."""

        def run() -> Ids:
            level, cache = [self.root], peer.prefix(self.root)
            for _ in range(self.depth):
                cache.batch_repeat_interleave(len(self.steps))
                level = continued(peer, self._children(level), self.tokens, cache=cache)
            return level

        return report.timed(run)

    def told(self, ours: Ids, theirs: Ids) -> dict[str, Any]:
        """Nothing more."""
        return {}

    def _children(self, level: Ids) -> Ids:
        return [[*parent, *step] for parent in level for step in self.steps]


# ------------------------------------------------------------------ all


def filled(runtime: lm.Runtime, seed: int, length: int) -> str:
    """Reviews of about so many tokens."""
    encode = runtime.tokenizer.encode
    return reviews(seed, lambda text: len(encode(text)) <= length)


def equally_long(runtime: lm.Runtime, text: str, endings: Sequence[str]) -> Ids:
    """The ids of a text with each ending; they take no padding."""
    ids = [runtime.tokenizer.encode(text + ending) for ending in endings]
    assert len(set(map(len, ids))) == 1, "unequal endings would need padding"
    return ids


def continued(peer: Peer, rows: Ids, tokens: int, **given: Any) -> Ids:
    """The rows with what `Peer.generate` adds to them."""
    more = peer.generate(rows, tokens, **given).tokens
    return [[*row, *new] for row, new in zip(rows, more, strict=True)]
