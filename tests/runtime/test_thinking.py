"""Hidden thinking on the runtime: a model's own markers where its tokenizer has them."""

import pytest

import lmlang as lm
from lmlang.runtime.models.llama import LlamaModel
from lmlang.runtime.tokenizer import CONTROL, USER_DEFINED, Tokenizer
from tests.tiny import MERGES, tiny_model, tiny_shape, tiny_template, tiny_vocabulary, tiny_weights


def runtime(kind=None):
    if kind is None:
        model, tokenizer, template = tiny_model()
        return lm.Runtime.over(model, tokenizer, template, kv_tokens=2048)
    tokens, kinds = tiny_vocabulary()
    marks = ["<think>", "</think>"]
    tokenizer = Tokenizer(tokens + marks, MERGES, kinds=[*kinds, kind, kind], bos_id=1, eos_id=2)
    shape = tiny_shape(vocab=len(tokens) + 2)
    model = LlamaModel(shape, tiny_weights(shape))
    return lm.Runtime.over(model, tokenizer, tiny_template(), kv_tokens=2048)


@lm.function
def program(s):
    s += lm.user("hello")
    s += lm.assistant("It is " + lm.gen("x", type=bool, think=8))
    s += lm.user("and?") + lm.assistant(lm.gen("y", max_tokens=3))


@pytest.mark.parametrize("kind", [None, CONTROL, USER_DEFINED])
@pytest.mark.parametrize("seed", [1, 2])
def test_thoughts_are_in_the_tokens_and_nowhere_else(kind, seed):
    with runtime(kind) as backend:
        known = backend.info().thinking
        size = backend.tokenizer.vocab_size
        assert known == (None if kind is None else (size - 2, size - 1))
        state = program(backend=backend, seed=seed)
        assert type(state["x"]) is bool
        thought, text = state.meta("x").thought, state.text()
        assert f"It is {state['x']}<|im_end|>" in text
        assert "think>" not in text
        assert state.messages()[1]["content"] == f"It is {state['x']}"
        ids = state.token_ids()
        if known is None:
            begin, end = (backend.tokenizer.encode(t) for t in ("<think>\n", "\n</think>\n\n"))
        else:
            newline = backend.tokenizer.encode("\n")
            begin, end = [known[0], *newline], [known[1], *backend.tokenizer.encode("\n\n")]
        first = position(ids, begin)
        last = position(ids, end)
        assert backend.tokenizer.decode(ids[first + len(begin) : last]) == thought
        assert state.usage().generated_tokens >= state.meta("x").generated_tokens
        assert state.meta("x").generated_tokens > len(state.meta("x").tokens)


def position(ids, part):
    return next(i for i in range(len(ids)) if ids[i : i + len(part)] == part)


def test_a_whole_token_is_found_by_its_text():
    with runtime(USER_DEFINED) as backend:
        whole = backend.tokenizer.whole
        assert (whole("<|im_end|>"), whole("<think>"), whole("hello")) == (2, 286, 262)
        assert whole("hello hello") is None
        assert whole("<think>x") is None
