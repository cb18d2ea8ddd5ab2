"""Where a runtime computes: what is not there, or is too small, is refused in words and numbers."""

from __future__ import annotations

import pytest
import torch

from lmlang.errors import ModelError, ProgramError
from lmlang.runtime.cache.room import made_pool, pool_tokens
from lmlang.runtime.config import RuntimeConfig
from lmlang.runtime.device import check_room, device_of, free_bytes
from lmlang.runtime.local import Runtime
from lmlang.runtime.shape import KVLayer
from tests.tiny import tiny_model

CPU = torch.device("cpu")
LAYERS = (KVLayer(4, 2, 64, 64, 0.125),) * 3
here = torch.cuda.is_available()


def test_a_runtime_computes_on_the_gpu_where_there_is_one() -> None:
    assert device_of("cpu") == CPU
    assert device_of("auto") == (torch.device("cuda", 0) if here else CPU)


@pytest.mark.skipif(here, reason="there is a GPU here")
@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:7"])
def test_a_gpu_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match=rf"device='{name}' asks for a GPU, and .*leave device="):
        Runtime(device=name)


@pytest.mark.skipif(not here, reason="there is no GPU here")
def test_a_gpu_of_too_high_a_number_is_refused() -> None:
    with pytest.raises(ModelError, match="asks for GPU 99, and this machine has"):
        device_of("cuda:99")


def test_a_runtime_over_a_model_computes_where_that_lies() -> None:
    with Runtime.over(*tiny_model(), kv_tokens=64, device="cpu", cuda_graphs=False) as runtime:
        assert runtime.info().context_length == 64
    with pytest.raises((ProgramError, ModelError), match="device='cuda"):
        Runtime.over(*tiny_model(), kv_tokens=64, device="cuda:0")


@pytest.mark.parametrize(
    "parameters",
    [
        {"dtype": "bfloat16"},
        {"model_impl": "transformers"},
        {"chat_template": "chatml"},
        {"model_path": "other"},
    ],
)
def test_a_model_in_memory_is_not_loaded_otherwise(parameters: dict[str, str]) -> None:
    with pytest.raises(ProgramError, match="is for models that are loaded, and this one is in mem"):
        Runtime.over(*tiny_model(), kv_tokens=64, **parameters)


def test_sglangs_names_say_the_same() -> None:
    assert RuntimeConfig.of({"disable_cuda_graph": True}).cuda_graphs is False
    assert RuntimeConfig.of({"disable_cuda_graph": None, "device": None}) == RuntimeConfig()


def test_memory_for_less_than_one_context_is_refused_with_all_numbers() -> None:
    said = (
        r"[\d,]+ bytes of memory are free on cpu, and memory_fraction=1e-09 of them holds the keys "
        r"and values of \d tokens of 3,072 bytes; one context needs at least 256 \(786,432 bytes\)"
    )
    with pytest.raises(ModelError, match=said):
        pool_tokens(LAYERS, torch.float32, CPU, 1e-9, 8_192)
    with pytest.raises(ModelError, match=r"needs at least 10 \(30,720 bytes\): free some memory"):
        pool_tokens(LAYERS, torch.float32, CPU, 1e-9, 10)
    with pytest.raises(ModelError, match="needs at least 256"):
        Runtime.over(*tiny_model(), memory_fraction=1e-9)


def test_a_pool_takes_a_part_of_what_is_free() -> None:
    tokens = pool_tokens(LAYERS, torch.float32, CPU, 1e-3, 8_192)
    assert tokens == pytest.approx(free_bytes(CPU) * 1e-3 / 3_072, rel=0.3)
    assert pool_tokens(LAYERS, torch.float32, CPU, 1.0, 8_192) <= 4 * 2**30 // 3_072


def test_a_pool_that_cannot_be_made_says_how_much_it_takes() -> None:
    with pytest.raises(ModelError, match=r"host_kv_gb: 1,099,511,627,776 tokens take [\d,]+ bytes"):
        made_pool("host_kv_gb", LAYERS, 1 << 40, torch.float32, CPU)


def test_weights_are_not_asked_whether_they_fit_into_main_memory() -> None:
    check_room("the weights", 1 << 60, CPU)
