"""llama.cpp as a subject, by its low-level interface: sequences share the cells of their prefix."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any

import llama_cpp as lib
import numpy as np
from llama_cpp.llama_grammar import json_schema_to_gbnf
from plays import Ids, Work, common, play

CONTEXT, BATCH, SEQUENCES = 16_384, 2_048, 128
THREADS = int(os.environ["OMP_NUM_THREADS"])
Choice = Callable[[np.ndarray], int]
"""The token of a row of logits."""


@lib.llama_log_callback
def _silent(*_: Any) -> None:
    """What it logs is no part of a report."""


class LlamaCpp:
    """A model in one context.

    Args:
        model: The GGUF file, whose blocks it computes with.
    """

    def __init__(self, model: str) -> None:
        lib.llama_log_set(_silent, ctypes.c_void_p(0))
        lib.llama_backend_init()
        loaded = lib.llama_model_load_from_file(model.encode(), lib.llama_model_default_params())
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = CONTEXT, BATCH, 512
        params.n_seq_max, params.kv_unified = SEQUENCES, True
        params.n_threads = params.n_threads_batch = THREADS
        self._context = lib.llama_init_from_model(loaded, params)
        self._memory = lib.llama_get_memory(self._context)
        self._words = lib.llama_model_get_vocab(loaded)
        self._vocab = lib.llama_vocab_n_tokens(self._words)
        self._batch = lib.llama_batch_init(BATCH, 0, 1)
        self._held: dict[int, list[int]] = {}

    def fresh(self) -> None:
        """Forget all sequences."""
        lib.llama_memory_clear(self._memory, True)
        self._held = {}

    def complete(self, rows: Ids, tokens: int, ends: Sequence[int] = ()) -> Ids:
        """See `plays.Engine`."""
        return self._chosen(rows, tokens, ends, [_greedy] * len(rows))

    def written(self, rows: Ids, schema: str, tokens: int) -> list[str]:
        """See `plays.Engine`: by the GBNF grammar that the package makes of the schema."""
        text = json_schema_to_gbnf(schema).encode()
        bounds = [Grammar(self._words, text) for _ in rows]
        ends = [token for token in range(self._vocab) if lib.llama_vocab_is_eog(self._words, token)]
        try:
            found = self._chosen(rows, tokens, ends, bounds)
        finally:
            for bound in bounds:
                bound.close()
        return [self._text([token for token in ids if token not in ends]) for ids in found]

    def _chosen(
        self, rows: Ids, tokens: int, ends: Sequence[int], choices: Sequence[Choice]
    ) -> Ids:
        """`complete`, with what chooses each row's tokens of their logits."""
        numbers = self._begun(rows)
        outputs: Ids = [[] for _ in rows]
        last = self._decode(
            [
                (n, self._held[n], row[len(self._held[n]) :])
                for n, row in zip(numbers, rows, strict=True)
            ]
        )
        going = list(range(len(rows)))
        logits = [last[i][-1] for i in going]
        while going:
            left, fed = [], []
            for index, row in zip(going, logits, strict=True):
                token = choices[index](row)
                outputs[index].append(token)
                if token not in ends and len(outputs[index]) < tokens:
                    left.append(index)
                    fed.append((numbers[index], self._held[numbers[index]], [token]))
            going = left
            logits = [each[-1] for each in self._decode(fed)] if fed else []
        return outputs

    def choose(self, prefix: list[int], questions: list[Work]) -> list[int]:
        """See `plays.Engine`: exact log-probabilities, all questions at once."""
        self.complete([prefix], 1)
        stems = [question["ids"][0][: common(question["ids"])] for question in questions]
        numbers = self._begun(stems)
        firsts = self._decode(
            [
                (n, self._held[n], stem[len(self._held[n]) :])
                for n, stem in zip(numbers, stems, strict=True)
            ]
        )
        chosen = []
        for number, stem, first, question in zip(numbers, stems, firsts, questions, strict=True):
            start, sums = _log_softmax(first[-1]), []
            for ids in question["ids"]:
                rest = ids[len(stem) :]
                total = float(start[rest[0]])
                if len(rest) > 1:
                    spare = SEQUENCES - 1
                    lib.llama_memory_seq_rm(self._memory, spare, -1, -1)
                    lib.llama_memory_seq_cp(self._memory, number, spare, -1, -1)
                    rows = self._decode([(spare, list(stem), rest[:-1])], every=True)[0]
                    told = zip(rows, rest[1:], strict=True)
                    total += sum(float(_log_softmax(row)[token]) for row, token in told)
                sums.append(total)
            chosen.append(sums.index(max(sums)))
        return chosen

    def _text(self, ids: list[int]) -> str:
        """What tokens spell."""
        size = 64
        buffer = ctypes.create_string_buffer(size)
        parts = []
        for token in ids:
            length = lib.llama_token_to_piece(self._words, token, buffer, size, 0, False)
            parts.append(buffer.raw[:length])
        return b"".join(parts).decode(errors="replace")

    def _begun(self, rows: Ids) -> list[int]:
        """A sequence for each row, with as much of it as another one holds; drops those."""
        free = [n for n in range(SEQUENCES - 1) if n not in self._held]
        made: dict[int, list[int]] = {}
        for row in rows:
            number = free.pop()
            best, length = None, 0
            for other, ids in self._held.items():
                count = min(common([ids, row]), len(row) - 1)
                if count > length:
                    best, length = other, count
            if best is not None:
                lib.llama_memory_seq_cp(self._memory, best, number, 0, length)
            made[number] = row[:length]
        for other in self._held:
            lib.llama_memory_seq_rm(self._memory, other, -1, -1)
        self._held = made
        return list(made)

    def _decode(
        self, fed: list[tuple[int, list[int], list[int]]], every: bool = False
    ) -> list[list[np.ndarray]]:
        """Run more ids of sequences; logits of the last one of each, or of every one.

        Args:
            fed: Of each: its number, the ids that it holds, which grow, and the new ids.
            every: Whether logits of all new ids are wanted.
        """
        found: list[list[np.ndarray]] = [[] for _ in fed]
        flat = [
            (index, number, len(held) + at, token, every or at == len(new) - 1)
            for index, (number, held, new) in enumerate(fed)
            for at, token in enumerate(new)
        ]
        for _, held, new in fed:
            held += new
        for begin in range(0, len(flat), BATCH):
            part, batch = flat[begin : begin + BATCH], self._batch
            batch.n_tokens = len(part)
            for i, (_, number, position, token, wanted) in enumerate(part):
                batch.token[i], batch.pos[i] = token, position
                batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, number, wanted
            if lib.llama_decode(self._context, batch):
                raise RuntimeError("llama_decode has failed")
            for i, (index, _, _, _, wanted) in enumerate(part):
                if wanted:
                    row = lib.llama_get_logits_ith(self._context, i)
                    found[index].append(np.ctypeslib.as_array(row, (self._vocab,)).copy())
        return found


class Grammar:
    """What chooses one row's tokens under a grammar, as llama.cpp's own sampling does.

    The likeliest token is tried alone; only where it is refused are all of them.

    Args:
        words: The vocabulary.
        text: GBNF, whose root is "root".
    """

    def __init__(self, words: Any, text: bytes) -> None:
        self._sampler = lib.llama_sampler_init_grammar(words, text, b"root")
        if not self._sampler:
            raise RuntimeError("llama.cpp has refused the grammar")

    def __call__(self, logits: np.ndarray) -> int:
        """The likeliest token of those that it allows."""
        best = int(logits.argmax())
        if not np.isfinite(self._allowed(np.array([best]), logits)).all():
            best = int(self._allowed(np.arange(len(logits)), logits).argmax())
        lib.llama_sampler_accept(self._sampler, best)
        return best

    def _allowed(self, ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Logits of tokens, of those that are refused minus infinity."""
        data = np.zeros(len(ids), dtype=[("id", "i4"), ("logit", "f4"), ("p", "f4")])
        data["id"], data["logit"] = ids, logits[ids]
        pointer = data.ctypes.data_as(ctypes.POINTER(lib.llama_token_data))
        lib.llama_sampler_apply(
            self._sampler, ctypes.byref(lib.llama_token_data_array(pointer, len(ids), -1, False))
        )
        return np.array(data["logit"])

    def close(self) -> None:
        """Free it."""
        lib.llama_sampler_free(self._sampler)


def _greedy(logits: np.ndarray) -> int:
    return int(logits.argmax())


def _log_softmax(row: np.ndarray) -> np.ndarray:
    row = row.astype(np.float64)
    row -= row.max()
    return row - np.log(np.exp(row).sum())


def made(model: str, folder: str) -> Callable[[str, Work], tuple[float, Any]]:
    """A model that plays works."""
    engine = LlamaCpp(model)
    return lambda name, work: play(engine, name, work)
