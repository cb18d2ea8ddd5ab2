"""SGLang's names, argument order and defaults, as its 0.4.10.post2 has them."""

import inspect

import pytest

import lmlang as sgl

COMMON = (
    "n stop stop_token_ids temperature top_p top_k min_p frequency_penalty presence_penalty "
    "ignore_eos return_logprob logprob_start_len top_logprobs_num return_text_in_logprobs"
)
OWN = {"gen": "stop_regex"}
"""A parameter of ours that stands among theirs."""

NAMES = (
    "function gen gen_int gen_string select image system user assistant system_begin system_end "
    "user_begin user_end assistant_begin assistant_end separate_reasoning set_default_backend "
    "flush_cache get_server_info Runtime RuntimeEndpoint Engine OpenAI global_config "
    "token_length_normalized greedy_token_selection unconditional_likelihood_normalized"
)
SIGNATURES = {
    "gen": f"name max_tokens min_tokens {COMMON} dtype choices choices_method regex json_schema",
    "gen_int": f"name max_tokens {COMMON}",
    "gen_string": f"name max_tokens {COMMON}",
    "select": "name choices temperature choices_method",
    "system": "expr",
    "user": "expr",
    "assistant": "expr",
    "system_begin": "",
    "assistant_end": "",
    "separate_reasoning": "expr model_type",
    "set_default_backend": "backend",
    "flush_cache": "backend",
    "get_server_info": "backend",
}


@pytest.mark.parametrize("name", NAMES.split())
def test_every_name_is_here(name):
    assert name in sgl.__all__
    assert getattr(sgl, name) is not None


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_stand_in_the_same_order(name):
    positional = [
        parameter.name
        for parameter in inspect.signature(getattr(sgl, name)).parameters.values()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.name != OWN.get(name)
    ]
    assert " ".join(positional) == SIGNATURES[name]


@pytest.mark.parametrize("name", ["gen", "gen_int", "gen_string", "separate_reasoning", "user"])
def test_every_argument_can_be_left_out(name):
    for parameter in inspect.signature(getattr(sgl, name)).parameters.values():
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            assert parameter.default in (None, "")


def test_select_is_greedy_unless_told():
    assert inspect.signature(sgl.select).parameters["temperature"].default == 0.0


@pytest.mark.parametrize(("word", "kind"), [("gen_int", int), ("gen_string", str)])
def test_typed_words_are_gens_of_their_types(word, kind):
    typed, plain = getattr(sgl, word)("x", 5, stop="."), sgl.gen("x", 5, stop=".", dtype=kind)
    assert typed.leaves[0].node == plain.leaves[0].node
