"""The workload of choices: a long few-shot prefix, and many questions scored exactly behind it."""

from __future__ import annotations

import report

# isort: split
import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

from by_hand import Peer, common_tokens
from reviews import Question, examples, questions

import lmlang as lm

Ids = list[list[int]]
CLOSE = 1e-3
"""Joint log-probabilities (nats) this close decide nothing: float additions in another order."""
MARGIN = 0.05
"""Of joint log-probabilities (nats): fewer bits must not turn what float32 decides by more."""


@lm.function
def answer(s: lm.ProgramState, shots: str, question: str, choices: tuple[str, ...]) -> None:
    """One question behind the examples that all of them share."""
    s += shots
    s += question
    s += lm.select("answer", choices, choices_method=lm.joint)


@dataclass(frozen=True, slots=True)
class Answers:
    """Log-probability of each choice, and how many tokens prompts and choices had."""

    logprobs: list[list[float]]
    prompt_tokens: int
    ids: Ids | None = None

    @property
    def chosen(self) -> list[int]:
        """Index of the likeliest choice of each question."""
        return [row.index(max(row)) for row in self.logprobs]


@dataclass(frozen=True, slots=True)
class Choices:
    """The input, as text for us and as ids for transformers.

    Args:
        shots: The examples.
        questions: All with the same shots.
        prefix: The ids that all prompts begin with: the shots', and what questions share.
        ids: Of shots, question and choice, for each question and choice.
    """

    name = "choices"
    shots: str
    questions: list[Question]
    prefix: list[int]
    ids: list[Ids]

    @classmethod
    def of(cls, runtime: lm.Runtime, tokens: int, count: int) -> Choices:
        """Examples of about so many tokens, and so many other questions."""
        encode = runtime.tokenizer.encode
        shots = examples(1, lambda text: len(encode(text)) <= tokens)
        asked = questions(2, count)
        ids = [[encode(shots + q.text + choice) for choice in q.choices] for q in asked]
        shared = common_tokens([row for rows in ids for row in rows])
        return cls(shots, asked, ids[0][0][:shared], ids)

    def less(self) -> Choices:
        """Two questions, to warm up."""
        return dataclasses.replace(self, questions=self.questions[:2], ids=self.ids[:2])

    def facts(self) -> dict[str, int]:
        """Its sizes."""
        return {"prefix_tokens": len(self.prefix), "questions": len(self.questions)}

    def ours(self, runtime: lm.Runtime) -> tuple[float, Answers]:
        """All questions as one batch of runs."""
        rows = [
            {"shots": self.shots, "question": q.text, "choices": q.choices} for q in self.questions
        ]
        seconds, states = report.timed(lambda: answer.run_batch(rows, backend=runtime))
        metas = [state.meta("answer") for state in states]
        logprobs = [
            [meta.logprobs[choice] for choice in question.choices]
            for meta, question in zip(metas, self.questions, strict=True)
        ]
        tokens = sum(meta.prompt_tokens for meta in metas)
        return seconds, Answers(logprobs, tokens, [state.token_ids() for state in states])

    def plain(self, peer: Peer) -> tuple[float, Answers]:
        """Each question from the start."""
        seconds, logprobs = report.timed(lambda: [peer.score(rows) for rows in self.ids])
        return seconds, Answers(logprobs, self._prompt_tokens())

    def by_hand(self, peer: Peer) -> tuple[float, Answers]:
        """The examples once, each question behind them."""

        def scored() -> list[list[float]]:
            score = partial(peer.score, held=len(self.prefix), cache=peer.prefix(self.prefix))
            return [score(rows) for rows in self.ids]

        seconds, logprobs = report.timed(scored)
        return seconds, Answers(logprobs, self._prompt_tokens())

    def check(self, judge: Peer, ours: Answers, theirs: Answers) -> None:
        """Require equal tokens and equal answers."""
        report.require(ours.prompt_tokens == theirs.prompt_tokens, "choices: prompt tokens")
        assert ours.ids is not None
        for number, other in enumerate(theirs.logprobs):
            chosen, wanted = ours.chosen[number], theirs.chosen[number]
            tied = abs(other[chosen] - other[wanted]) <= CLOSE
            report.require(chosen == wanted or tied, f"choices: the label of question {number}")
            report.require(ours.ids[number] == self.ids[number][chosen], "choices: token ids")

    def same(self, ours: Answers, theirs: Answers) -> int:
        """How many questions have the same label."""
        return sum(a == b for a, b in zip(ours.chosen, theirs.chosen, strict=True))

    def told(self, ours: Answers, theirs: Answers) -> dict[str, Any]:
        """Right answers, distance of log-probabilities, labels that differ beyond `MARGIN`."""
        pairs = zip(ours.logprobs, theirs.logprobs, strict=True)
        apart = max(abs(a - b) for mine, other in pairs for a, b in zip(mine, other, strict=True))
        right = sum(
            question.choices[chosen] == question.answer
            for question, chosen in zip(self.questions, ours.chosen, strict=True)
        )
        turned = sum(
            max(other) - other[chosen] > MARGIN
            for chosen, other in zip(ours.chosen, theirs.logprobs, strict=True)
        )
        return {
            "prompt_tokens": ours.prompt_tokens, "right": right, "apart": apart, "turned": turned,
        }  # fmt: skip

    def _prompt_tokens(self) -> int:
        """Tokens before the first one that tells choices apart, of all questions."""
        return sum(common_tokens(rows) for rows in self.ids)
