"""A model ready to run: weights, tokenizer and chat template; one in memory for each file."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path

from lmlang.runtime.chat import ChatTemplate
from lmlang.runtime.chat_templates import resolve_chat_template
from lmlang.runtime.models.fetch import find_embedded_model, model_file
from lmlang.runtime.models.llama import CausalLM, LlamaModel
from lmlang.runtime.models.loader import load_gguf
from lmlang.runtime.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """What a Runtime runs. Immutable, so that any number of Runtimes share it.

    Args:
        name: For people: the file it came from.
        model: The weights.
        tokenizer: Its tokenizer.
        template: Its chat template, or the plain one.
    """

    name: str
    model: CausalLM
    tokenizer: Tokenizer
    template: ChatTemplate

    def with_template(self, spec: str | os.PathLike[str]) -> OpenedModel:
        """The same model under another chat template: a name, a path or Jinja.

        Raises:
            ProgramError: There is no such template, or it is no valid Jinja.
        """
        template = _template(resolve_chat_template(spec), self.tokenizer, given=True)
        return OpenedModel(self.name, self.model, self.tokenizer, template)


_opening = threading.Lock()
_opened: weakref.WeakValueDictionary[tuple[str, int, int], OpenedModel] = (
    weakref.WeakValueDictionary()
)


def open_model(named: str | os.PathLike[str] | None) -> OpenedModel:
    """Load a ``.gguf`` file, or the embedded model for None; one already in memory is shared.

    Raises:
        ModelError: It cannot be found or read.
    """
    path = find_embedded_model() if named is None else model_file("model", named)
    with _opening:
        status = path.stat()
        key = (str(path.resolve()), status.st_size, status.st_mtime_ns)
        found = _opened.get(key)
        if found is None:
            found = _opened[key] = _load(path)
        return found


def _load(path: Path) -> OpenedModel:
    loaded = load_gguf(path)
    tokenizer = Tokenizer.from_gguf(loaded.metadata)
    source = loaded.metadata.get("tokenizer.chat_template")
    template = _template(source if isinstance(source, str) else None, tokenizer)
    return OpenedModel(path.name, LlamaModel(loaded.shape, loaded.weights), tokenizer, template)


def _template(source: str | None, tokenizer: Tokenizer, given: bool = False) -> ChatTemplate:
    bos, eos = (
        "" if token is None else tokenizer.spelling(token)
        for token in (tokenizer.bos_id, tokenizer.eos_id)
    )
    return ChatTemplate(source, bos, eos, given=given)
