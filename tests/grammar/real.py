"""The vocabulary of the embedded model, read once; tests of it skip where the model is absent."""

from __future__ import annotations

from functools import cache

import pytest

from lmlang.errors import ModelError
from lmlang.grammar.vocabulary import Vocabulary
from lmlang.runtime.models.fetch import find_embedded_model
from lmlang.runtime.models.gguf_file import open_gguf
from lmlang.runtime.tokenizer import Tokenizer


@cache
def real_tokenizer() -> Tokenizer:
    """The embedded model's tokenizer."""
    try:
        path = find_embedded_model()
    except ModelError as error:
        pytest.skip(f"the embedded model is not here: {error}")
    return Tokenizer.from_gguf(open_gguf(path).metadata)


@cache
def real_vocabulary() -> Vocabulary:
    """Its vocabulary."""
    return Vocabulary.of(real_tokenizer())
