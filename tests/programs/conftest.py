"""The runtimes that programs run on: a real model, and one whose weights are random."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lmlang as lm
from tests.tiny import tiny_shape, write_tiny_gguf


@pytest.fixture(scope="session")
def embedded() -> Iterator[lm.Runtime]:
    """The embedded model."""
    with lm.Runtime(kv_tokens=16_384) as made:
        yield made


@pytest.fixture(scope="session")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lm.Runtime]:
    """A small model that knows nothing, so that only what always holds does."""
    path = tmp_path_factory.mktemp("model") / "untrained.gguf"
    write_tiny_gguf(path, tiny_shape(max_positions=4_096))
    with lm.Runtime(path, kv_tokens=32_768) as made:
        yield made


@pytest.fixture(params=["embedded", "untrained"])
def runtime(request: pytest.FixtureRequest) -> lm.Runtime:
    """Each of them in turn, nothing cached, nothing counted."""
    found: lm.Runtime = request.getfixturevalue(request.param)
    found.flush_cache()
    found.reset_stats()
    return found
