"""Programs of types: P2 a résumé whose refused field is written anew, P12 claims with citations."""

from __future__ import annotations

import enum
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

import lmlang as lm
from lmlang.protocol import Usage
from tests.programs.properties import ran, same_alone, silent


class Degree(enum.Enum):
    NONE = "none"
    BACHELOR = "bachelor"
    MASTER = "master"


Year = Annotated[int, Field(ge=1990, le=2024)]


class Job(BaseModel):
    title: Annotated[str, Field(max_length=10)]
    start: Year
    end: Year

    @field_validator("end")
    @classmethod
    def ordered(cls, end: int, info: ValidationInfo) -> int:
        if end < info.data["start"]:
            raise ValueError("the job ends before it starts")
        return end


class Resume(BaseModel):
    name: Annotated[str, Field(max_length=12)]
    degree: Degree
    phone: Annotated[str, Field(max_length=8)] | None
    jobs: Annotated[list[Job], Field(min_length=1, max_length=2)]


@lm.function
def resume(s, text: str):
    s += lm.user(text + "\nWrite this as a record.")
    s += lm.assistant(lm.gen("resume", type=Resume, max_tokens=140, tries=40))
    return s["resume"]


def test_a_resume_is_valid_and_a_refused_field_is_counted(runtime, untrained, capfd):
    many = runtime is untrained
    texts = ["Ann, master's degree, baker from 2003 to 2007.", "Bob, cook since 2010."]
    rows = [{"text": f"{text} ({number})"} for text in texts for number in range(6 if many else 1)]
    states = ran(resume, rows, runtime, temperature=1.0 if many else 0.0)
    anew = 0
    for state in states:
        found = state.ret_value
        assert isinstance(found, Resume)
        assert isinstance(found.degree, Degree)
        assert all(job.start <= job.end for job in found.jobs)
        assert found.name is not None
        (operation,) = [each for each in state.run_log().operations if each.kind == "gen"]
        assert Resume.model_validate_json(state.text_of("resume")) == found
        anew += operation.usage.generated_tokens > len(state.meta("resume").tokens)
    if many:
        assert anew  # some were refused, and what that took is in their usage
        same_alone(resume, rows[:2], states[:2], runtime)
    silent(capfd)


PASSAGES = (
    "On 3 May it was 4 degrees at dawn.",
    "By noon it rained, and the wind came from the west.",
    "The market of the village is held on Fridays.",
    "Two bakers sell bread there, and one sells fish.",
    "The bus to the coast leaves at ten.",
)


@lm.function
def answer(s, question: str):
    kinds = []
    for number, passage in enumerate(PASSAGES):
        fields = {
            "passage": (Literal[number], ...),
            "quote": (Annotated[str, lm.Quote(passage, min_length=4, max_length=30)], ...),
        }
        kinds.append(_claim(number, fields))
    claim = Annotated[_union(*kinds), Field(discriminator="passage")]
    s += "".join(f"[{number}] {passage}\n" for number, passage in enumerate(PASSAGES))
    s += lm.user(question)
    s += lm.assistant(lm.gen("claim", type=claim | Literal["insufficient evidence"], max_tokens=60))
    return s["claim"]


def _claim(number, fields):
    from pydantic import create_model

    return create_model(f"Claim{number}", **fields)


def _union(*kinds):
    from typing import Union

    return Union[kinds]  # noqa: UP007 - of a tuple


def test_quotes_stand_in_the_passage_that_is_cited(runtime, untrained, capfd):
    questions = [f"What is sold on day {number}?" for number in range(12)]
    rows = [{"question": q} for q in questions[: 12 if runtime is untrained else 2]]
    total = Usage()
    for state in ran(answer, rows, runtime):
        found = state.ret_value
        total += state.usage()
        if found == "insufficient evidence":
            continue
        passage = PASSAGES[found.passage]
        assert found.quote in passage
        assert passage[found.quote.start : found.quote.end] == found.quote
    assert total.generated_tokens > 0
    silent(capfd)
