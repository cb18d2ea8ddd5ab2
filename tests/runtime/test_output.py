"""Outputs as they grow: whole characters, stops wherever they are cut, what is shown and kept."""

from __future__ import annotations

import codecs
import re

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmlang.protocol import Event, Finish, Output, Prompt, Request, SamplingParams, Text
from lmlang.runtime.local import Runtime
from lmlang.runtime.output import Drawn, OutputStream, Prediction
from tests.runtime.oracle import logits
from tests.tiny import tiny_model

MODEL, TOKENIZER, TEMPLATE = tiny_model()
PIECES = TOKENIZER.token_bytes
PROPERTY = settings(max_examples=200, deadline=None, derandomize=True)

FAMILY = "\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}"
WORDS = ["a", "hello", " world", "!!", "é", "🙂", "你好", FAMILY, "\n", "1", "x", "\N{WHITE FLAG}️"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=8).map("".join)
LONE = st.integers(0x80, 0xFF).map(lambda byte: PIECES.index(bytes([byte])))
"""Tokens of one byte that is no character."""
IDS = st.one_of(
    TEXTS.map(TOKENIZER.encode),
    st.lists(TEXTS.map(TOKENIZER.encode) | LONE.map(lambda i: [i]), max_size=5).map(
        lambda parts: [index for part in parts for index in part]
    ),
)
STOPS = st.lists(
    st.sampled_from(
        ["a", "hello", "hello w", "o", "!", "\n", "é", "🙂", "qxzjkv", "1x", "你", FAMILY[2:]]
    ),
    max_size=16,
    unique=True,
)  # fmt: skip
PATTERNS = st.lists(
    st.sampled_from(
        [r"\d", r"l+o", r"\s\w", "[^a-z]!", "h.*d", "\N{GIRL}|🙂🙂", r"\bx", "\ufffd+"]
    ),
    max_size=2,
    unique=True,
)


def written(ids: list[int], params: SamplingParams) -> tuple[list[Event], Output]:
    """The events and the output, if the model writes these ids, or as many as it may."""
    stream = OutputStream(TOKENIZER, params)
    events = []
    for index in ids:
        events.append(stream.accept(Drawn(index), Prediction(-1.0)))
        if stream.finish is not None:
            break
    return events, stream.output(1, 0, None)


def final_texts(ids: list[int]) -> list[str]:
    """The text that is final behind each number of tokens; behind all it is the whole."""
    data, ends = b"", [b""]
    for index in ids:
        data += PIECES[index]
        ends.append(data)
    texts = [codecs.getincrementaldecoder("utf-8")("replace").decode(part) for part in ends]
    return [*texts[:-1], data.decode("utf-8", "replace")]


@PROPERTY
@given(IDS.filter(bool), STOPS, PATTERNS, st.integers(0, 4), st.booleans())
@example(TOKENIZER.encode("a hello world"), ["hello w", "hello"], [], 0, False)
@example(TOKENIZER.encode("xqxzjkvx"), ["qxzjkv"], [], 0, False)
@example(TOKENIZER.encode("hell 1x"), ["1x"], [r"\d"], 0, True)
def test_an_output_ends_where_a_stop_first_ends(
    ids: list[int], stops: list[str], patterns: list[str], least: int, include: bool
) -> None:
    least = min(least, len(ids))
    params = SamplingParams(
        len(ids), stop=tuple(stops), stop_regex=tuple(patterns), min_tokens=least,
        include_stop=include,
    )  # fmt: skip
    events, output = written(ids, params)
    texts = final_texts(ids)
    base, whole = len(texts[least]), texts[-1]
    compiled = [re.compile(pattern) for pattern in patterns]
    found = next(
        (
            (start, end)
            for end in range(base + 1, len(whole) + 1)
            for start in range(base, end)
            if whole[start:end] in stops or any(p.fullmatch(whole, start, end) for p in compiled)
        ),
        None,
    )
    if found is None:
        assert (output.text, output.finish, list(output.ids)) == (whole, Finish("length"), ids)
    else:
        start, end = found
        assert output.text == whole[: end if include else start]
        assert output.finish == Finish("stop", whole[start:end])
        taken = next(count for count, text in enumerate(texts) if len(text) >= end)
        assert list(output.ids) == ids[:taken]
    assert "".join(event.text for event in events) == output.text
    assert [event.index for event in events] == list(range(len(output.ids)))
    if "\ufffd" not in whole:
        assert all("\ufffd" not in event.text for event in events)
        assert "".join(segment.text for segment in output.history) == output.text


@PROPERTY
@given(TEXTS, st.integers(1, 5))
def test_no_part_of_a_character_is_shown_in_any_interval(text: str, interval: int) -> None:
    ids = TOKENIZER.encode(text)
    if not ids:
        return
    events, output = written(ids, SamplingParams(len(ids)))
    deltas = [
        "".join(e.text for e in events[i : i + interval]) for i in range(0, len(ids), interval)
    ]
    assert "".join(deltas) == output.text == text
    assert all("\ufffd" not in delta for delta in deltas)
    for count in range(len(deltas) + 1):
        assert text.startswith("".join(deltas[:count]))


@pytest.mark.parametrize("length", range(1, 7))
def test_a_stop_over_so_many_tokens_is_never_streamed(length: int) -> None:
    stop = "qxzjkv"[:length]
    ids = TOKENIZER.encode(f"hello {stop} world")
    assert len(TOKENIZER.encode(stop)) == length
    events, output = written(ids, SamplingParams(99, stop=(stop, *(f"{i}q" for i in range(15)))))
    assert (output.text, output.finish.stop) == ("hello ", stop)
    assert "".join(event.text for event in events) == "hello "
    cut = TOKENIZER.encode(f"hello {stop}")[:-1] if length > 1 else TOKENIZER.encode("hello ")
    events, output = written(cut, SamplingParams(len(cut), stop=(stop,)))
    assert output.text == f"hello {stop[:-1]}", "what was held back comes at the end"


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(0, 2**64 - 1), st.integers(2, 9), st.integers(1, 3))
def test_a_runtime_streams_no_part_of_what_a_pattern_matches(key: int, at: int, count: int) -> None:
    prompt = Prompt.of(Text("hello"))
    with Runtime.over(MODEL, TOKENIZER, TEMPLATE, kv_tokens=100) as rt:
        whole = rt.generate(Request(prompt, SamplingParams(12), key)).result(timeout=60)
        text = whole.text
        pattern = "".join(rf"(?:{re.escape(c)}|\d)" for c in text[at : at + count])
        params = SamplingParams(12, stop_regex=(pattern,) if pattern else ("a",))
        generation = rt.generate(Request(prompt, params, key))
        output = generation.result(timeout=60)
        rt.check()
    found = re.search(params.stop_regex[0], text)
    assert whole.ids[: len(output.ids)] == output.ids
    assert output.text == (text[: found.start()] if found else text)
    assert output.finish.stop == (found[0] if found else whole.finish.stop)
    assert "".join(event.text for event in generation.events()) == output.text


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(6, 0.0),
        SamplingParams(6, 0.7, top_k=9, top_p=0.8),
        SamplingParams(6, 1.5, min_p=0.1, repetition_penalty=1.3, logit_bias=((70, 4.0),)),
    ],
    ids=["greedy", "truncated", "penalised"],
)
def test_probabilities_are_those_that_tokens_are_drawn_with(params: SamplingParams) -> None:
    prompt = TOKENIZER.encode("hello world")
    with Runtime.over(MODEL, TOKENIZER, TEMPLATE, kv_tokens=100) as rt:
        asked = Request(Prompt.of(Text("hello world")), params, 5, top_logprobs=4, probs=True)
        output = rt.generate(asked).result(timeout=60)
        silent = rt.generate(Request(asked.prompt, params, 5)).result(timeout=60)
    assert silent.ids == output.ids
    assert silent.probs == silent.top_probs == ()
    assert len(output.top_probs) == len(output.ids)
    assert len(output.probs) == len(output.ids)
    for at, (token, told) in enumerate(zip(output.ids, output.probs, strict=True)):
        scores = logits(MODEL, [*prompt, *output.ids[:at]])[-1].double()
        for index, bias in params.logit_bias:
            scores[index] += bias
        for index in {*prompt, *output.ids[:at]}:
            factor = params.repetition_penalty
            scores[index] = scores[index] / factor if scores[index] > 0 else scores[index] * factor
        scores /= params.temperature or 1.0
        order = scores.argsort(descending=True)
        probs = torch.zeros_like(scores)
        kept = order[: params.top_k] if params.top_k > 0 else order
        probs[kept] = torch.softmax(scores[kept], 0)
        if params.top_p < 1:
            ordered = probs[order]
            gone = ordered.cumsum(0) - ordered >= params.top_p
            probs[order[gone]] = 0
        probs[probs < params.min_p * probs.max()] = 0
        probs /= probs.sum()
        assert told == pytest.approx(probs[token].item(), abs=1e-4)
        likeliest = output.top_probs[at]
        assert len(likeliest) == min(4, int((probs > 0).sum()))
        wanted = probs.topk(len(likeliest)).values.tolist()
        assert [prob for _, prob in likeliest] == pytest.approx(wanted, abs=1e-4)
        assert [probs[i].item() for i, _ in likeliest] == pytest.approx(wanted, abs=1e-4)
