"""Healing: outputs that begin inside of a token, against brute force over the whole vocabulary."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import lmlang as lm
from lmlang.protocol import EndTurn, Output, Prompt, Request, SamplingParams, Text, Tokens, Turn
from lmlang.runtime.chat import ChatTemplate
from lmlang.runtime.encoder import PromptEncoder
from lmlang.runtime.healing import Healer
from lmlang.runtime.local import Runtime
from lmlang.runtime.output import Drawn, OutputStream, Prediction
from lmlang.runtime.sampler import Draw, sample
from tests.reference import embedded
from tests.runtime.chats import TRAITS
from tests.runtime.oracle import logits
from tests.tiny import tiny_model

MODEL, TOKENIZER, TEMPLATE = tiny_model()
PIECES = TOKENIZER.token_bytes
ENCODER = PromptEncoder(TOKENIZER, TEMPLATE)
PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)
HEALED = st.sampled_from(["hell", " the wor", "and ", "he", "!", "x!", "h", "in the", "us"])


@pytest.fixture(scope="module")
def rt() -> Iterator[Runtime]:
    with Runtime.over(MODEL, TOKENIZER, TEMPLATE, kv_tokens=600) as rt:
        yield rt
        rt.check()


def allowed_by_hand(rest: bytes, ends: set[int]) -> list[int]:
    """The ids that may come while these bytes are to be spelled; every byte has a token here."""
    return [
        token
        for token, piece in enumerate(PIECES)
        if piece and (rest.startswith(piece) or piece.startswith(rest)) and token not in ends
    ]


def extends(data: bytes) -> bool:
    return any(piece.startswith(data) and piece != data for piece in PIECES)


def by_hand(prompt: list[int], params: SamplingParams, key: int) -> list[int]:
    """The ids of an output in place of the prompt's last token, each step from scratch."""
    rest, ids = PIECES[prompt[-1]], []
    while len(ids) < params.max_tokens:
        last = logits(MODEL, [*prompt[:-1], *ids])[-1:]
        allowed = np.array(allowed_by_hand(rest, set(TOKENIZER.stop_ids))) if rest else None
        ids.append(sample(last, [Draw(0, params, key, len(ids), allowed=allowed)])[0].token)
        rest = rest[len(PIECES[ids[-1]]) :]
        if ids[-1] in TOKENIZER.stop_ids:
            break
    return ids


@PROPERTY
@given(
    text=HEALED,
    key=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 1.0, 3.0]),
    top_k=st.sampled_from([-1, 4]),
    count=st.integers(1, 7),
)
@example("hell", 0, 0.0, -1, 1)
def test_outputs_are_drawn_among_the_tokens_that_begin_so(
    rt: Runtime, text: str, key: int, temperature: float, top_k: int, count: int
) -> None:
    params = SamplingParams(count, temperature, top_k=top_k, heal=True)
    prompt = Prompt.of(Text("We say: " + text))
    ids = ENCODER.encode(prompt)
    data = PIECES[ids[-1]]
    assert extends(data)
    output = rt.generate(Request(prompt, params, key)).result(timeout=60)
    expected = by_hand(ids, params, key)
    assert list(output.ids) == expected
    assert output.usage.generated_tokens == len(output.logprobs) == len(expected)
    assert output.usage.prompt_tokens == len(ids) - 1
    spelled = b"".join(PIECES[token] for token in expected)
    assert spelled.startswith(data) or data.startswith(spelled)
    assert output.text == spelled[len(data) :].decode("utf-8", "replace")


def stream_of(prompt: Prompt, params: SamplingParams, tokens: list[int]) -> tuple[str, Output]:
    """The events' joined text and the output, if the model writes these tokens."""
    ids = ENCODER.encode(prompt)
    healing = Healer(TOKENIZER).healing(prompt, ids, params)
    assert healing is not None
    stream, shown = OutputStream(TOKENIZER, params, healing), ""
    for token in tokens:
        allowed = stream.allowed()
        assert allowed is None or token in allowed
        event = stream.accept(Drawn(token), Prediction(-1.0))
        shown += event.text
        if event.finish is not None:
            break
    return shown, stream.output(len(ids) - 1, 0, None)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    before=st.text("a he🙂!", max_size=80),
    text=HEALED,
    more=st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=8),
    stop=st.sampled_from([(), ("o",), ("l",), (" w",), ("\n", "ld")]),
    include=st.booleans(),
    after=st.text("a e\n", max_size=3),
    data=st.data(),
)
def test_the_prompt_gains_the_tokens_that_were_written(
    before: str,
    text: str,
    more: list[int],
    stop: tuple[str, ...],
    include: bool,
    after: str,
    data: st.DataObject,
) -> None:
    before = "We say" + before
    prompt = Prompt.of(Text(before), Text(text))
    ids = ENCODER.encode(prompt)
    rest, first = PIECES[ids[-1]], []
    if not extends(rest):
        return
    while rest:
        first.append(data.draw(st.sampled_from(allowed_by_hand(rest, set(TOKENIZER.stop_ids)))))
        rest = rest[len(PIECES[first[-1]]) :]
    count = len(first) + len(more)
    params = SamplingParams(max(1, count), stop=stop, include_stop=include, heal=True)
    shown, output = stream_of(prompt, params, [*first, *more])
    assert shown == output.text
    spelled = b"".join(PIECES[token] for token in output.ids)
    value = spelled[len(PIECES[ids[-1]]) :].decode("utf-8", "replace")
    assert value.startswith(output.text)
    grown = prompt
    for segment in output.history:
        grown = grown.append(segment)
    assert ENCODER.render(grown) == before + text + output.text
    encoded = ENCODER.encode(grown)
    kept = output.history[0] if output.history else None
    if isinstance(kept, Tokens):
        assert kept.heals
        assert encoded[: len(ids) - 1 + len(kept.ids)] == [*ids[:-1], *kept.ids]
        assert output.ids[: len(kept.ids)] == kept.ids
        if output.finish.reason == "length":
            assert encoded == [*ids[:-1], *output.ids]
        # kept as they are under whatever follows, encoded at once or bit by bit
        longer = grown.append(Text(after))
        assert (
            ENCODER.encode(longer)[: len(ids) - 1 + len(kept.ids)]
            == encoded[: len(ids) - 1 + len(kept.ids)]
        )
        assert ENCODER.encode(longer) == PromptEncoder(TOKENIZER, TEMPLATE).encode(longer)
    else:
        assert encoded == ENCODER.encode(Prompt.of(Text(before + text + output.text)))


def test_what_does_not_spell_the_token_out_leaves_the_prompt_as_it_is() -> None:
    prompt = Prompt.of(Text("We say: hell"))
    h = TOKENIZER.encode("h")[0]
    shown, output = stream_of(prompt, SamplingParams(1, heal=True), [h])
    assert (shown, output.text, output.history) == ("", "", ())
    assert output.finish.reason == "length"


def test_stop_texts_and_patterns_look_at_the_value_alone() -> None:
    prompt = Prompt.of(Text("We say: hell"))
    hello, world = TOKENIZER.encode("hello")[0], TOKENIZER.encode(" world")[0]
    params = SamplingParams(9, stop=("l",), stop_regex=("^o w", "lo"), heal=True)
    shown, output = stream_of(prompt, params, [hello, world])
    assert (shown, output.finish.stop, output.history) == ("", "o w", ())


@pytest.mark.parametrize(
    "segments",
    [
        (Turn("user"),),
        (Turn("user"), Text("hell"), EndTurn()),
        (Text("We say: "), Tokens(tuple(TOKENIZER.encode("hell")), "hell")),
        (Text("so:zz"),),  # no token goes on so
        (Text("hell"),),  # nothing would be left of the prompt
        (Text("We say: \N{SLIGHTLY SMILING FACE}"),),  # its last token ends a character
    ],
)
def test_nothing_else_is_healed(rt: Runtime, segments: tuple[object, ...]) -> None:
    prompt = Prompt.of(*segments)
    healed, plain = (
        rt.generate(Request(prompt, SamplingParams(4, heal=heal), 7)).result(timeout=60)
        for heal in (True, False)
    )
    assert (healed.ids, healed.text, healed.history) == (plain.ids, plain.text, plain.history)
    assert healed.usage.prompt_tokens == plain.usage.prompt_tokens == len(ENCODER.encode(prompt))


def test_it_is_left_out_unless_asked_for(rt: Runtime) -> None:
    prompt = Prompt.of(Text("We say: hell"))
    output = rt.generate(Request(prompt, SamplingParams(3), 7)).result(timeout=60)
    assert output.usage.prompt_tokens == len(ENCODER.encode(prompt))


def test_a_token_that_would_end_the_output_is_not_written_for_the_one_taken_back() -> None:
    prompt, healer = Prompt.of(Text("We say: hell")), Healer(TOKENIZER)
    ids = ENCODER.encode(prompt)
    h, he, hell, hello = (PIECES.index(piece) for piece in (b"h", b"he", b"hell", b"hello"))
    healing = healer.healing(prompt, ids, SamplingParams(stop_token_ids=(hell, he), heal=True))
    assert healing is not None
    assert set(healing.allowed[0].tolist()) == {h, hello}
    every = SamplingParams(stop_token_ids=(h, he, hell, hello), heal=True)
    assert healer.healing(prompt, ids, every) is None
    e, ell = PIECES.index(b"e"), SamplingParams(stop_token_ids=(PIECES.index(b"e"),), heal=True)
    healing = healer.healing(prompt, ids, ell)
    assert healing is not None
    assert h not in healing.allowed[0], "what would be left could not be spelled"
    assert e not in healing.allowed[1]
    assert healer.healing(prompt, ids, SamplingParams(0, heal=True)) is None


@pytest.mark.parametrize("name", sorted(TRAITS))
def test_healed_tokens_stay_in_a_turn_that_is_closed(name: str) -> None:
    template = ChatTemplate(TRAITS[name], "<|im_start|>", "<|im_end|>")
    encoder = PromptEncoder(TOKENIZER, template)
    (world,), (bang,) = TOKENIZER.encode(" world"), TOKENIZER.encode("!!")
    turn = (Turn("user"), Text("Hi"), EndTurn(), Turn("assistant"), Text("In the wor"))
    open_ids = encoder.encode(Prompt.of(*turn))
    for text, tokens in (
        ("ld", (world,)),
        ("ld!!", (world, bang)),
        ("ld \n", (world, *TOKENIZER.encode(" \n"))),
    ):
        kept = Prompt.of(*turn, Tokens(tokens, text, heals=True))
        assert encoder.encode(kept) == [*open_ids[:-1], *tokens]
        closed = kept.append(EndTurn())
        assert world in encoder.encode(closed)
        assert "In the world" in encoder.render(closed)
        again = PromptEncoder(TOKENIZER, template).encode(Prompt.of(*closed.segments()))
        assert encoder.encode(closed) == again


def test_a_template_that_cuts_the_text_before_gets_the_rest_as_text() -> None:
    spaced = Prompt.of(Text("a"), Tokens(tuple(TOKENIZER.encode(" the")), "the", heals=True))
    assert ENCODER.encode(spaced) == TOKENIZER.encode("athe")


def test_programs_heal_where_they_say_so(rt: Runtime) -> None:
    text, more = "We say: the wor", [lm.gen("x", max_tokens=3, heal=True), " and", lm.gen("y")]

    @lm.function
    def program(s: lm.ProgramState) -> None:
        s += text
        for part in more:
            s += part

    state = program.run(backend=rt, temperature=0, max_new_tokens=2)
    ids = TOKENIZER.encode(text)
    expected = by_hand(ids, SamplingParams(3, 0.0), 0)
    assert list(state.meta("x").tokens) == expected
    assert PIECES[expected[0]] == b" world"
    assert state.token_ids()[: len(ids) + 2] == [*ids[:-1], *expected]
    assert state.text() == text + state["x"] + " and" + state["y"]


def test_a_vocabulary_is_searched_fast() -> None:
    tokenizer = embedded()[3]
    healer = Healer(tokenizer)
    prompt = Prompt.of(Text("The capital of Fra"))
    ids = tokenizer.encode("The capital of Fra")
    assert healer.healing(prompt, ids, SamplingParams(heal=True)) is not None
    begun = time.thread_time()
    for _ in range(20):
        healer.healing(prompt, ids, SamplingParams(heal=True))
    assert time.thread_time() - begun < 1
    healing = healer.healing(prompt, ids, SamplingParams(heal=True))
    assert healing is not None
    for start, allowed in enumerate(healing.allowed):
        rest = healing.data[start:]
        assert sorted(allowed.tolist()) == [
            token
            for token, piece in enumerate(tokenizer.token_bytes)
            if piece and (rest.startswith(piece) or piece.startswith(rest))
        ]
