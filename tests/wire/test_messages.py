"""Values of the protocol come back from the wire as they were, and nothing else is read."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmlang as lm
from lmlang import errors, wire
from lmlang.errors import ErrorContext
from lmlang.grammar.spec import Choice, Ebnf, Either, JsonSchema, Regex
from lmlang.protocol import (
    BackendInfo,
    ChoiceScore,
    EndTurn,
    Event,
    Finish,
    Image,
    InputLogprobs,
    Output,
    Prompt,
    Provenance,
    Request,
    SamplingParams,
    ScoreRequest,
    Scores,
    Tag,
    Text,
    Tokens,
    Turn,
    Usage,
)


def tuples(elements, **limits):
    return st.lists(elements, max_size=3, **limits).map(tuple)


def joined(text):
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


texts = st.text(st.characters(exclude_categories=()), max_size=6).map(joined)
words = st.text(min_size=1, max_size=6)
counts = st.integers(0, 2**40)
ids = st.integers(0, 2**31 - 1)
logprobs = st.floats(max_value=0, allow_nan=False)
chances = st.floats(0, 1)
segments = (
    st.builds(Text, texts)
    | st.builds(Turn, st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True))
    | st.just(EndTurn())
    | st.builds(Tokens, tuples(ids), texts, st.booleans())
)
prompts = st.lists(segments, max_size=5).map(lambda found: Prompt.of(*found))
styles = st.sampled_from(["line", "compact"]) | st.integers(1, 8)
plain_specs = (
    st.builds(Regex, words)
    | st.builds(JsonSchema, words, styles)
    | st.builds(Ebnf, words, words)
    | st.builds(Choice, tuples(words, min_size=1, unique=True))
)
specs = plain_specs | st.builds(Either, tuples(plain_specs, min_size=1))
tags = st.builds(Tag, texts, texts, st.integers(-9, 9))
free_params = st.builds(
    SamplingParams,
    max_tokens=st.integers(100, 1_000_000),
    temperature=st.floats(0, 1_000),
    top_p=st.floats(0, 1, exclude_min=True),
    top_k=st.integers(-1, 2**31 - 1),
    min_p=chances,
    stop=tuples(words, unique=True),
    ignore_eos=st.booleans(),
    min_tokens=st.integers(0, 100),
    stop_token_ids=tuples(ids, unique=True),
    include_stop=st.booleans(),
    frequency_penalty=st.floats(-2, 2),
    presence_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0, 10, exclude_min=True),
    logit_bias=tuples(st.tuples(ids, st.floats(-100, 100)), unique_by=lambda pair: pair[0]),
    stop_regex=st.sampled_from([(), ("a+b",)]),
    heal=st.booleans(),
)
bound_params = st.builds(SamplingParams, temperature=st.floats(0, 1_000), stop=tuples(words))
reports = {
    "draw_key": st.integers(0, 2**64 - 1),
    "top_logprobs": st.integers(0, 100),
    "input_logprobs_from": st.none() | st.integers(0, 1_000_000),
    "tag": tags,
    "namespace": texts,
    "lora": st.none() | words,
    "probs": st.booleans(),
    "on_budget": st.sampled_from(["close", "raise"]),
    "provenance": st.booleans(),
}
requests = st.builds(Request, prompts, free_params, **reports) | st.builds(
    Request, prompts, bound_params, constraint=specs, **reports
)
score_requests = st.builds(
    ScoreRequest,
    prompts,
    st.lists(words, min_size=1, max_size=3, unique=True).map(tuple),
    st.booleans(),
    tags,
    st.booleans(),
    texts,
    st.none() | words,
)
finishes = st.builds(
    Finish,
    st.sampled_from(["stop", "eos", "length", "complete", "forced_close"]),
    st.none() | texts | ids,
)
usages = st.builds(Usage, counts, counts, counts, counts, counts, counts)
tops = tuples(tuples(st.tuples(ids, logprobs)))
events = st.builds(Event, counts, tuples(ids), texts, tuples(logprobs), st.none() | finishes, tops)
outputs = st.builds(
    Output,
    texts,
    tuples(ids),
    tuples(logprobs),
    finishes,
    usages,
    tuples(segments),
    tops,
    st.none() | st.builds(InputLogprobs, counts, tuples(ids), tuples(st.none() | logprobs), tops),
    tuples(chances),
    tuples(tuples(st.tuples(ids, chances))),
    tuples(st.builds(Provenance, st.booleans(), counts, chances, ids, texts)),
)
scores = st.builds(
    Scores,
    tuples(st.builds(ChoiceScore, tuples(ids), tuples(logprobs), tuples(st.none() | logprobs))),
    usages,
)
infos = st.builds(
    BackendInfo,
    texts,
    st.none() | counts,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.none() | st.tuples(ids, ids),
    fingerprint=st.none() | texts,
    adapter_fingerprints=tuples(texts),
)
contexts = st.builds(
    ErrorContext, *[st.none() | texts] * 3, st.none() | st.integers(-9, 9), st.none() | texts
)
PLAIN_ERRORS = sorted(
    {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, lm.LMLangError)
    }
    - {lm.BackendError, lm.SchemaUnsupported},
    key=lambda kind: kind.__name__,
)
raised = (
    st.builds(lambda kind, message: kind(message), st.sampled_from(PLAIN_ERRORS), texts)
    | st.builds(lm.BackendError, texts, retryable=st.booleans(), status=st.none() | counts)
    | st.builds(lm.SchemaUnsupported, texts, keyword=texts, pointer=texts)
)


def sent(value):
    """What of a value arrives as the text of its message."""
    return wire.loads(wire.dumps(wire.to_wire(value)).encode())


def parts(value):
    """A value's fields, a prompt by its segments, tags too, which equality leaves out."""
    found = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return found | {"prompt": found["prompt"].segments()}


@given(requests)
def test_requests_come_back(request):
    assert parts(wire.request_from_wire(sent(request))) == parts(request)


@given(score_requests)
def test_score_requests_come_back(request):
    assert parts(wire.score_request_from_wire(sent(request))) == parts(request)


@given(prompts)
def test_prompts_come_back(prompt):
    assert wire.prompt_from_wire(sent(prompt)).segments() == prompt.segments()


@given(specs)
def test_constraints_come_back(spec):
    assert wire.spec_from_wire(sent(spec)) == spec


@given(events | outputs)
def test_items_of_a_stream_come_back(item):
    assert wire.item_from_wire(sent(item)) == item


@given(scores)
def test_scores_come_back(found):
    assert wire.scores_from_wire(sent(found)) == found


@given(infos)
def test_infos_come_back(info):
    assert wire.info_from_wire(sent(info)) == info


@given(st.lists(ids, max_size=5), texts, counts)
def test_ids_texts_and_counts_come_back(found, text, count):
    def over(message):
        return wire.loads(wire.dumps(message))

    assert wire.ids_from_wire(over(wire.ids_to_wire(found))) == found
    assert wire.text_from_wire(over(wire.text_to_wire(text))) == text
    assert wire.count_from_wire(over(wire.count_to_wire(count))) == count


@given(raised, st.none() | contexts)
def test_errors_come_back_as_themselves(error, context):
    error.context = context
    read = wire.error_from_wire(sent(error))
    assert wire.item_from_wire(sent(error)).args == error.args
    assert (type(read), read.args, read.context) == (type(error), error.args, context)
    assert str(read) == str(error)
    for name in ("retryable", "status", "keyword", "pointer"):
        assert getattr(read, name, None) == getattr(error, name, None)


@pytest.mark.parametrize("kind", [Request, ScoreRequest, SamplingParams, Output, Event])
def test_the_wire_has_every_field(kind):
    from lmlang.wire import values

    form = {
        Request: values.REQUEST,
        ScoreRequest: values.SCORE_REQUEST,
        SamplingParams: values.PARAMS,
        Output: values.OUTPUT,
        Event: values.EVENT,
    }[kind]
    for field in dataclasses.fields(kind):
        with pytest.raises(lm.WireError, match=rf"^\$: expected the field|^\$\.{field.name}: "):
            form.read({field.name: object_()}, "$")


def object_():
    """What no field of any form is."""
    return {"?": None}


def test_an_error_of_a_user_is_the_nearest_of_ours():
    class Mine(lm.ContextOverflow):
        pass

    assert type(wire.error_from_wire(sent(Mine("too long")))) is lm.ContextOverflow


def test_an_error_that_is_not_ours_tells_nothing_but_its_class():
    read = wire.error_from_wire(sent(ValueError("the password is secret")))
    assert type(read) is lm.BackendError
    assert str(read) == "the backend failed (ValueError): its log says more."


def test_an_error_of_a_newer_version_is_a_backend_error_of_its_name():
    read = wire.error_from_wire({"v": 1, "error": {"type": "Novel", "message": "why"}})
    assert (type(read), str(read)) == (lm.BackendError, "Novel: why")


def test_defaults_are_left_out():
    request = Request(Prompt.of(Text("Hi")), SamplingParams(max_tokens=4))
    assert sent(request) == {"v": 1, "prompt": [{"text": "Hi"}], "params": {"max_tokens": 4}}
    event = Event(3, (7,), "a", (-0.5,))
    item = {"index": 3, "ids": [7], "text": "a", "logprobs": [-0.5]}
    assert sent(event) == {"v": 1, "event": item}


def test_a_draw_key_may_be_a_number():
    message = {"v": 1, "prompt": [], "draw_key": 2**64 - 1}
    assert wire.request_from_wire(message).draw_key == 2**64 - 1
    assert sent(wire.request_from_wire(message))["draw_key"] == str(2**64 - 1)


def test_what_stays_here_is_not_sent():
    image = Image("0" * 64, "x.png", b"")
    with pytest.raises(lm.ProgramError, match="a picture cannot be sent"):
        wire.to_wire(Request(Prompt.of(image)))
    with pytest.raises(lm.ProgramError, match="logits_processor is a function of this process"):
        wire.to_wire(Request(Prompt(), processor=lambda ids, logits: logits))
    with pytest.raises(TypeError, match="int is no value that has a message"):
        wire.to_wire(3)


PROMPT = [{"text": "Hi"}]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": "Hi"}, "$.prompt: expected a list, found 'Hi'"),
        ({"prompt": ["Hi"]}, "$.prompt[0]: expected a segment"),
        ({"prompt": [{"text": "Hi", "role": "x"}]}, "$.prompt[0]: unknown field 'role'"),
        ({"prompt": [{"turn": "a b"}]}, "$.prompt[0]: the role 'a b' is no word"),
        ({"prompt": [{"end_turn": False}]}, "$.prompt[0].end_turn: expected true, found false"),
        ({"prompt": [{"ids": [1]}]}, "$.prompt[0]: expected the field text"),
        ({"prompt": [{"ids": [-1], "text": ""}]}, "$.prompt[0].ids[0]: expected a token id"),
        ({"prompt": [{"ids": [2**31], "text": ""}]}, "$.prompt[0].ids[0]: expected a token id"),
        ({"prompt": [{"image": "file:/etc/passwd"}]}, "$.prompt[0]: expected a segment"),
        ({"v": 2}, "$.v: the message has version 2, and this lmlang reads version 1"),
        ({"v": True}, '$: expected the field v, as in "v": 1'),
        ({"v": "1"}, '$: expected the field v, as in "v": 1'),
        ({"temperature": 1}, "$: unknown field 'temperature'"),
        ({"processor": "print"}, "$.processor: expected no such field"),
        ({"processor": None}, "$.processor: expected no such field"),
        ({"draw_key": 2**64}, "$.draw_key: expected an integer from 0"),
        ({"draw_key": "-1"}, "$.draw_key: expected an integer from 0"),
        ({"draw_key": "²"}, "$.draw_key: expected an integer from 0"),
        ({"draw_key": "9" * 50}, "$.draw_key: expected an integer from 0"),
        ({"draw_key": 1.0}, "$.draw_key: expected an integer from 0"),
        ({"draw_key": True}, "$.draw_key: expected an integer from 0"),
        ({"top_logprobs": 101}, "$: top_logprobs=101 is out of range"),
        ({"on_budget": "die"}, "$.on_budget: expected one of close, raise"),
        ({"params": {"top_p": "x"}}, "$.params.top_p: expected a number, found 'x'"),
        ({"params": {"top_p": True}}, "$.params.top_p: expected a number, found true"),
        ({"params": {"top_p": "inf"}}, "$.params.top_p: expected a number, found 'inf'"),
        ({"params": {"top_p": 2}}, "$.params: top_p=2.0 is out of range"),
        ({"params": {"max_tokens": None}}, "$.params.max_tokens: expected an integer"),
        ({"params": {"max_tokens": -1}}, "$.params.max_tokens: expected an integer"),
        ({"params": {"max_tokens": 10**9}}, "$.params: max_tokens=1000000000 is out of range"),
        ({"params": {"stop": "x"}}, "$.params.stop: expected a list"),
        ({"params": {"stop_regex": ["(a"]}}, "$.params: the pattern '(a' is no regular"),
        ({"params": {"logit_bias": [[1, 2, 3]]}}, "$.params.logit_bias[0]: expected a list of two"),
        ({"constraint": "a+"}, "$.constraint: expected a constraint: regex"),
        ({"constraint": {"regex": ""}}, "$.constraint: a regular expression is empty"),
        ({"constraint": {"regex": "a", "root": "b"}}, "$.constraint: unknown field 'root'"),
        ({"constraint": {"json_schema": "{}", "style": 9}}, "$.constraint: json_style=9: give"),
        ({"constraint": {"either": []}}, "$.constraint: a constraint without alternatives"),
        (
            {"constraint": {"either": [{"either": [{"regex": "a"}]}]}},
            "$.constraint.either[0]: expected a constraint",
        ),
        ({"constraint": {"regex": "a"}, "params": {"heal": True}}, "$: heal cannot act beside"),
        ({"tag": {"priority": 1.5}}, "$.tag.priority: expected an integer, found 1.5"),
    ],
    ids=str,
)
def test_what_is_no_request_is_refused_with_its_place(fields, message):
    with pytest.raises(lm.WireError) as caught:
        wire.request_from_wire({"v": 1, "prompt": PROMPT} | fields)
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        (None, "$: expected an object, found null"),
        ({}, '$: expected the field v, as in "v": 1, found an object of 0'),
        ({"v": 1}, "$: expected one of the fields event, output, error, found an object of 1"),
        ({"v": 1, "event": {}, "output": {}}, "$: unknown field 'output'"),
        ({"v": 1, "event": {"index": 0}}, "$.event: expected the field ids"),
        ({"v": 1, "error": {"type": "x"}}, "$.error: expected the field message"),
        ({"v": 1, "error": {"type": "x", "message": 1}}, "$.error.message: expected a string"),
    ],
    ids=str,
)
def test_what_is_no_item_of_a_stream_is_refused(message, refusal):
    with pytest.raises(lm.WireError) as caught:
        wire.item_from_wire(message)
    assert str(caught.value).startswith(refusal)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[NaN]", "NaN is no number of JSON"),
        ("[-Infinity]", "-Infinity is no number of JSON"),
        ("1e400", "'1e400' is no finite number"),
        ("9" * 30, "an integer of 30 digits"),
        ('{"a":1,"a":2}', "the key 'a' stands twice"),
        ("[" * 100_000, "nested too deep"),
        (b'{"a":"\xff"}', "not JSON: byte 6 is no UTF-8"),
        (b"", "not JSON at line 1, column 1"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_json_of_ours_is_refused(text, message):
    with pytest.raises(lm.WireError) as caught:
        wire.loads(text)
    assert message in str(caught.value)


jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)
FULL = Request(
    Prompt.of(Turn("user"), Text("Hi"), EndTurn(), Tokens((5, 9), "Yes", True)),
    SamplingParams(8, 0.5, 0.9, 40, 0.1, ("a",), stop_token_ids=(1,), logit_bias=((3, -1.0),)),
    7,
    2,
    0,
    Tag("r", "0/1", 2),
    "mine",
    True,
    Either((Regex("a"), JsonSchema("{}", 2), Ebnf("a", "b"), Choice(("x", "y")))),
    "raise",
    True,
)


@settings(max_examples=300)
@given(st.data(), jsons)
def test_a_message_that_was_tampered_with_is_read_or_refused(data, to):
    whole = json.loads(json.dumps(wire.to_wire(FULL)))
    place = whole
    while True:
        keys = range(len(place)) if isinstance(place, list) else sorted(place)
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], (list, dict)) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = to
    text = json.dumps(whole)[: data.draw(st.none() | st.integers(0, 2_000))]
    try:
        request = wire.request_from_wire(wire.loads(text))
    except lm.WireError:
        return
    assert parts(wire.request_from_wire(sent(request))) == parts(request)
