"""global_config and what is asked of backends outside programs."""

import pytest

import lmlang as lm
from lmlang.testing import RandomBackend, ScriptedBackend

config = lm.global_config


@pytest.fixture(autouse=True)
def untouched():
    yield
    config.default_choices_method = lm.joint
    lm.set_default_backend(None)


def test_the_default_backend_is_the_one_that_was_set():
    backend = ScriptedBackend(["hi"])
    assert config.default_backend is None
    lm.set_default_backend(backend)
    assert config.default_backend is backend
    config.default_backend = other = ScriptedBackend(["ho"])

    @lm.function
    def program(s):
        s += lm.gen("x")

    assert program()["x"] == "ho"
    assert other.requests
    assert not backend.requests


def test_the_default_choices_method_is_that_of_selects_that_name_none():
    @lm.function
    def program(s):
        s += lm.select("x", ["long one", "b"])
        s += lm.select("y", ["long one", "b"], choices_method=lm.joint)

    backend = ScriptedBackend(scores={"long one": -2.0, "b": -1.0})
    assert program(backend=backend)["x"] == "b"
    config.default_choices_method = lm.token_length_normalized
    state = program(backend=backend)
    assert (state["x"], state["y"]) == ("long one", "b")
    assert state.meta("x").scores == {"long one": -0.25, "b": -1.0}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("verbosity", 2, "global_config.verbosity=2 is not available in this version"),
        ("skip_special_tokens_in_output", False, "leave it at True"),
        ("spaces_between_special_tokens_in_out", False, "leave it at True"),
        ("verbose", 1, "global_config has no 'verbose' to set; it has default_backend, "),
        ("default_choices_method", "joint", "must be a choices method"),
        ("enable_parallel_encoding", 1, "enable_parallel_encoding=1 must be True or False"),
        ("default_backend", "gpt", "backend is a str, which is no backend"),
    ],
)
def test_settings_that_cannot_act_raise(name, value, message):
    with pytest.raises(lm.ProgramError, match=message):
        setattr(config, name, value)


def test_settings_have_the_fields_names():
    assert config.verbosity == 0
    config.verbosity = 0
    config.skip_special_tokens_in_output = True
    config.enable_precache_with_tracing = False
    assert config.enable_precache_with_tracing is False
    config.enable_precache_with_tracing = True
    assert config.enable_parallel_encoding is True
    assert config.spaces_between_special_tokens_in_out is True


def test_server_info_is_what_the_backend_says_of_itself():
    assert lm.get_server_info() is None
    found = lm.get_server_info(RandomBackend())
    assert found == {
        "model_path": "random",
        "context_length": None,
        "can_score": True,
        "has_tokens": True,
        "has_vision": False,
    }
    with lm.use(ScriptedBackend()):
        assert lm.get_server_info()["model_path"] == "scripted"
