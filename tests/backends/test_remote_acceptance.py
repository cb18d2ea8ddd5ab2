"""Programs that people write, whole, in this process and over a server: the same in everything."""

import dataclasses
import datetime
import enum
from typing import Annotated, Literal

import pydantic
import pytest

import lmlang as lm
from lmlang.backends.remote import RuntimeEndpoint
from tests.backends.served import served
from tests.backends.test_remote_programs import ROOMY, Sides, log_of
from tests.tiny import tiny_model

pytest.importorskip("fastapi")


@pytest.fixture(scope="module")
def sides():
    from lmlang.server.app import make_app

    with (
        lm.Runtime.over(*tiny_model(max_positions=4_096), **ROOMY) as here,
        lm.Runtime.over(*tiny_model(max_positions=4_096), **ROOMY) as behind,
        served(make_app(behind)) as url,
        RuntimeEndpoint(url) as there,
    ):
        yield Sides(here, there)


class Line(pydantic.BaseModel):
    what: Annotated[str, pydantic.Field(max_length=8)]
    amount: Annotated[int, pydantic.Field(ge=0, le=99)]


class Invoice(pydantic.BaseModel):
    vendor: Annotated[str, pydantic.Field(max_length=12)]
    date: datetime.date
    currency: Literal["EUR", "USD", "GBP", "CHF"]
    lines: Annotated[list[Line], pydantic.Field(min_length=1, max_length=2)]


@lm.function
def invoice(s, text):
    s += lm.system("Read the invoice.") + lm.user(text)
    s += lm.assistant(lm.gen("invoice", type=Invoice, max_tokens=160))
    return s["invoice"]


class Department(enum.Enum):
    SALES = "sales"
    SUPPORT = "support"


@lm.function
def triage(s, mail):
    s += lm.user(mail)
    s += lm.assistant("Priority " + lm.select("priority", [1, 2, 3, 4]))
    s += lm.user("Whose is it?") + lm.assistant(lm.select("department", Department))
    margin = s.meta("priority").margin
    return s["priority"], s["department"], margin, margin < 0.1


@lm.function
def tags(s, text):
    s += "Text: " + text + "\n"
    forks = s.fork(12)
    forks += lambda i: f"Is it about {i}? " + lm.select("tagged", ["yes", "no"])
    forks.join()
    return s["tagged"]


def look_up(word: str) -> str:
    return {"sun": "a star"}[word]


def calculate(left: int, right: int) -> str:
    return str(left // right)


TOOLS = {"look_up": look_up, "calculate": calculate}


@dataclasses.dataclass
class LookUp:
    word: Literal["sun", "moon"]


@dataclasses.dataclass
class Calculate:
    left: Annotated[int, pydantic.Field(ge=0, le=9)]
    right: Annotated[int, pydantic.Field(ge=0, le=9)]


@lm.function
def agent(s, question):
    s += "Question: " + question + "\n"
    seen = []
    for turn in range(4):
        s += "Thought: " + lm.gen(f"thought{turn}", max_tokens=5, stop="\n") + "\nTool: "
        s += lm.select(f"tool{turn}", [*TOOLS, "answer"])
        tool = s[f"tool{turn}"]
        if tool == "answer":
            break
        kind = LookUp if tool == "look_up" else Calculate
        s += " " + lm.gen(f"arguments{turn}", type=kind, max_tokens=40)
        try:
            observed = TOOLS[tool](**dataclasses.asdict(s[f"arguments{turn}"]))
        except (KeyError, ZeroDivisionError) as error:
            observed = type(error).__name__
        seen.append(observed)
        s += f"\nObservation: {observed}\n"
    return seen


class Refund(pydantic.BaseModel):
    call: Literal["refund"]
    order: Annotated[int, pydantic.Field(ge=0, le=999)]


class Ship(pydantic.BaseModel):
    call: Literal["ship"]
    fast: bool


@lm.function
def called(s, wish):
    s += lm.user(wish)
    union = Annotated[Refund | Ship, pydantic.Field(discriminator="call")]
    s += lm.assistant(lm.gen("call", type=union, max_tokens=40))
    return s["call"]


@lm.function
def number(s):
    s += "A number: " + lm.gen("x", type=int, max_tokens=4)
    return s["x"]


@lm.function
def word(s):
    s += "A word: " + lm.gen("x", regex="[a-z]{1,6}", max_tokens=8)
    return s["x"]


@lm.function
def router(s, text):
    s += text + " Kind: " + lm.select("kind", ["number", "word"])
    return s.call(number if s["kind"] == "number" else word)


@lm.function
def form(s):
    asked = 0
    while asked < 5:
        s += f"Question {asked}: " + lm.gen(f"more{asked}", type=bool, max_tokens=6) + "\n"
        asked += 1
        if not s[f"more{asked - 1}"]:
            break
    else:
        s += "Enough. "
    s += "Sum: " + lm.gen("sum", type=int, max_tokens=4)
    return asked


@lm.function
def dialogue(s, turns):
    for turn in turns:
        s += lm.user(turn) + lm.assistant(lm.gen(f"to {turn}", max_tokens=6))
    return s.messages()


@lm.function
def votes(s):
    s += "2 + 2 = "
    forks = s.fork(8)
    forks += lm.gen("thought", max_tokens=4, temperature=0.8) + " so "
    forks += lm.gen("sum", type=int, max_tokens=3, temperature=0.8)
    forks.join()
    return max(s["sum"], key=s["sum"].count)


@lm.function
def record(s):
    s += '{"name": "' + lm.gen("name", regex="[a-z ]{1,9}", max_tokens=12) + '", "age": '
    s += lm.gen("age", type=Annotated[int, pydantic.Field(ge=0, le=120)], max_tokens=4)
    s += ', "songs": [' + lm.gen("songs", regex=r'"[a-z]{1,4}"(, "[a-z]{1,4}"){2}', max_tokens=30)
    s += "]}"


PEOPLE = [
    (invoice, {"text": "ACME 3 tins 12 EUR 2024-02-29"}),
    (triage, {"mail": "It is broken."}),
    (tags, {"text": "hello the world"}),
    *((agent, {"question": question}) for question in ("the sun", "1 / 0", "and so on")),
    (called, {"wish": "Send it back."}),
    *((router, {"text": text}) for text in ("hello", "the world", "12")),
    (form, {}),
    (dialogue, {"turns": ("Hello.", "the world", "é 😀", "And?", "user")}),
    (votes, {}),
    (record, {}),
]


@pytest.mark.parametrize("ship", [False, True], ids=["stepped", "shipped"])
@pytest.mark.parametrize(
    ("program", "arguments"), PEOPLE, ids=[program.__name__ for program, _ in PEOPLE]
)
def test_what_people_write_comes_to_the_same(sides, program, arguments, ship):
    def ask(backend):
        state = program.run(
            **arguments, backend=backend, seed=11, ship=ship and backend is sides.there
        )
        usage = dataclasses.replace(state.usage(), cached_tokens=0)
        return state.ret_value, state.text(), state.token_ids(), usage, log_of(state)

    *_, usage, log = sides.both(ask)
    counted = [each["usage"]["generated_tokens"] for each in log["operations"]]
    assert sum(counted) == usage.generated_tokens


def test_rows_keep_their_outputs_in_any_order_and_place(sides):
    rows = [{"text": f"{number} tins"} for number in (1, 2, 3, 4, 5, 2)]

    def ask(backend, rows):
        return [state.ret_value for state in invoice.run_batch(rows, backend=backend, seed=2)]

    here = ask(sides.here, rows)
    assert ask(sides.there, rows) == here
    assert ask(sides.there, rows[4::-1])[::-1] == here[:5]
    assert here[1] != here[5]  # equal rows draw apart
