"""The tokenizer of a model folder: tokenizer.json and the files that name its special tokens.

Everything is looked at by name: what cannot be honoured is refused, nothing is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from lmlang.errors import ModelError, quote
from lmlang.runtime.boundaries import SPACE
from lmlang.runtime.models.hf_config import read_json
from lmlang.runtime.pretokens import Digits, Split, Step, Words
from lmlang.runtime.tokenizer_parts import (
    BYTE,
    BYTE_TOKEN,
    CONTROL,
    MAX_TOKENS,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    Prefix,
    TokenizerParts,
    Vocabulary,
    byte_level,
    sentencepiece,
)

T = TypeVar("T")

MAX_DEPTH = 8
SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token")
LOOKS_SPECIAL = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))
"""Beginnings and ends of added tokens that mark turns and tools though not all files say so.

llama.cpp's converter takes the same ones for control tokens.
"""
BEHAVIORS = {
    "Isolated": "isolated", "MergedWithPrevious": "merged_with_previous",
    "MergedWithNext": "merged_with_next", "Contiguous": "contiguous",
}  # fmt: skip


def folder_json(folder: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file of a model folder; empty where there is no such file.

    Raises:
        ModelError: The file cannot be read, is too large or too deep, or holds no object.
    """
    path = folder / name
    if not path.exists():
        return {}
    if not path.is_file():
        raise ModelError(f"{path} is no regular file: put the model's own file there.")
    return read_json(path)


def folder_parts(folder: Path) -> TokenizerParts:
    """The parts of the tokenizer of a model folder.

    Raises:
        ModelError: There is no tokenizer.json, it is damaged, or it holds what is not known.
    """
    source = folder_json(folder, "tokenizer.json")
    if not source:
        raise ModelError(
            f"{folder} has no tokenizer.json: copy that of the model it comes from, or make one of "
            "its other files with transformers, "
            "`AutoTokenizer.from_pretrained(folder).save_pretrained(folder)`."
        )
    return _TokenizerFile(folder / "tokenizer.json", source, _named_tokens(folder)).parts()


@dataclass(frozen=True, slots=True)
class _Named:
    """What the files beside tokenizer.json say.

    Args:
        tokens: Spellings by role ("bos_token", …).
        add_bos: Whether a prompt begins with the first of them; None: they do not say.
        ends: Ids that end an output.
        added: Further tokens by id, each ``{"content": …, "special": …}``.
    """

    tokens: Mapping[str, str]
    add_bos: bool | None
    ends: frozenset[int]
    added: Mapping[int, Mapping[str, Any]]


def _named_tokens(folder: Path) -> _Named:
    path = folder / "tokenizer_config.json"
    config = folder_json(folder, "tokenizer_config.json")
    special = folder_json(folder, "special_tokens_map.json")
    tokens: dict[str, str] = {}
    for name in SPECIAL_NAMES:
        value = config[name] if name in config else special.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str) and value:
            tokens[name] = value
        elif value is not None and value != "":
            raise ModelError(f"{path}: {name} is no text: the file is damaged.")
    add_bos = config.get("add_bos_token")
    if add_bos is not None and not isinstance(add_bos, bool):
        raise ModelError(f"{path}: add_bos_token is neither true nor false: the file is damaged.")
    added: dict[int, Mapping[str, Any]] = {}
    decoder = config.get("added_tokens_decoder")
    for key, entry in (decoder if isinstance(decoder, dict) else {}).items():
        if not (key.isascii() and key.isdigit() and len(key) < 9 and isinstance(entry, dict)):
            raise ModelError(f"{path}: added_tokens_decoder holds {quote(key)}: it is damaged.")
        added[int(key)] = entry
    return _Named(tokens, add_bos, _ends(folder), added)


def _ends(folder: Path) -> frozenset[int]:
    """The ids that end an output, as the settings of generation say, else those of the model."""
    for name in ("generation_config.json", "config.json"):
        value = folder_json(folder, name).get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(index) is int for index in ids):
            raise ModelError(f"{folder / name}: eos_token_id holds no token ids: it is damaged.")
        if ids:
            return frozenset(ids)
    return frozenset()


class _TokenizerFile:
    """One tokenizer.json, looked at part by part."""

    def __init__(self, path: Path, source: dict[str, Any], named: _Named) -> None:
        self._path = path
        self._source = source
        self._named = named
        self._model = self._of(source, "model", dict)

    def parts(self) -> TokenizerParts:
        kind = self._model.get("type", "BPE")
        if kind != "BPE" or "merges" not in self._model:
            self._refuse("a tokenizer of the kind", kind)
        for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
            if self._model.get(name):
                self._refuse(f"BPE with {name}", self._model[name])
        spelled = self._spelled()
        entries = self._entries(spelled)
        vocabulary = self._vocabulary(spelled, entries)
        normalized = {str(e["content"]) for e in entries.values() if e.get("normalized") is True}
        steps = _flat(self._source.get("pre_tokenizer"), "pretokenizers", self)
        if any(step["type"] == "ByteLevel" for step in steps):
            parts = self._byte_level(vocabulary, steps, normalized)
        else:
            parts = self._sentencepiece(vocabulary, steps, normalized)
        bos, eos = self._role(vocabulary, "bos_token"), self._role(vocabulary, "eos_token")
        first, add_bos = self._writes_first(), self._named.add_bos
        if add_bos is None:
            add_bos = bos is not None and first == vocabulary.tokens[bos]
        ends = self._named.ends
        for end in ends:
            if not 0 <= end < len(vocabulary.tokens):
                raise ModelError(
                    f"{self._path} is of another model: generation_config.json or config.json says "
                    f"eos_token_id={end}, outside of its {len(vocabulary.tokens):,} tokens. Give "
                    "the tokenizer of this model, or correct the id."
                )
        return replace(parts, bos_id=bos, eos_id=eos, add_bos=add_bos, ends=ends)

    # ------------------------------------------------------------------ tokens

    def _spelled(self) -> dict[int, str]:
        """The tokens of the model by id."""
        spelled: dict[int, str] = {}
        for token, index in self._of(self._model, "vocab", dict).items():
            if type(index) is not int or not 0 <= index < MAX_TOKENS:
                self._damaged(f"the token {quote(token)} has the id {quote(repr(index))}")
            if index in spelled:
                self._damaged(f"{quote(token)} and {quote(spelled[index])} have the id {index}")
            spelled[index] = token
        return spelled

    def _entries(self, spelled: Mapping[int, str]) -> dict[int, Mapping[str, Any]]:
        """Added tokens by id, those of the file beside it too."""
        found: dict[int, Mapping[str, Any]] = {}
        known: set[str] = set()
        for entry in self._of(self._source, "added_tokens", list, []):
            index = entry.get("id") if isinstance(entry, dict) else None
            if type(index) is not int or not 0 <= index < MAX_TOKENS:
                self._damaged(f"an added token has the id {quote(repr(index))}")
            if found.get(index, entry) != entry:
                self._damaged(f"two added tokens have the id {index}")
            found[index] = entry
            known.add(self._of(entry, "content", str))
        known |= self._model["vocab"].keys()
        for index, entry in self._named.added.items():
            is_new = self._of(entry, "content", str) not in known
            if is_new and index < MAX_TOKENS and index not in spelled and index not in found:
                found[index] = entry
        for entry in found.values():
            strips = [name for name in ("lstrip", "rstrip", "single_word") if entry.get(name)]
            if strips and "mask" not in entry["content"].lower():
                self._refuse(f"the added token {quote(entry['content'])} with", strips[0])
        return found

    def _vocabulary(
        self, base: Mapping[int, str], entries: Mapping[int, Mapping[str, Any]]
    ) -> Vocabulary:
        vocab, spelled = self._model["vocab"], dict(base)
        last = max(spelled, default=-1)
        for index, entry in entries.items():
            content = entry["content"]
            if vocab.get(content, index) != index or spelled.get(index, content) != content:
                self._damaged(f"the added token {quote(content)} has the id {index} of another")
            spelled[index] = content
        for index in range(last):
            if index not in spelled:
                self._damaged(f"the id {index} has no token")
        named = {*self._named.tokens.values(), self._of(self._model, "unk_token", str, "")}
        fallback = self._model.get("byte_fallback") is True
        tokens: list[str] = []
        kinds: list[int] = []
        for index in range(max(spelled, default=-1) + 1):
            token = spelled.get(index)
            entry = entries.get(index, {})
            tokens.append(token or "")
            if token is None:
                kinds.append(UNUSED)
            elif index in base and len(token) == 1:
                kinds.append(NORMAL)  # some files pad with "!", which text must be able to say
            elif token in named or entry.get("special") is True or (entry and _is_mark(token)):
                kinds.append(CONTROL)
            elif entry:
                kinds.append(USER_DEFINED)
            else:
                kinds.append(BYTE if fallback and BYTE_TOKEN.fullmatch(token) else NORMAL)
        return Vocabulary(tokens, kinds, self._merges())

    def _merges(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for merge in self._of(self._model, "merges", list):
            pair = merge.split(" ") if isinstance(merge, str) else merge
            if not (isinstance(pair, list) and len(pair) == 2 and all(map(_is_text, pair))):
                self._damaged(f"{quote(repr(merge))} is no merge")
            found.append((pair[0], pair[1]))
        return found

    def _role(self, vocabulary: Vocabulary, name: str) -> int | None:
        token = self._named.tokens.get(name)
        if token is None:
            return None
        try:
            return list(vocabulary.tokens).index(token)
        except ValueError:
            raise ModelError(
                f"{self._path} lacks the token {quote(token)}, which the files beside it name as "
                f"{name}: the folder is incomplete, fetch it anew."
            ) from None

    def _writes_first(self) -> str | None:
        """The token that the post-processor writes before a text, if it writes one."""
        for step in _flat(self._source.get("post_processor"), "processors", self):
            if step["type"] == "TemplateProcessing":
                for piece in self._of(step, "single", list)[:1]:
                    token = piece.get("SpecialToken") if isinstance(piece, dict) else None
                    return token.get("id") if isinstance(token, dict) else None
            elif step["type"] != "ByteLevel":
                self._refuse("the post-processor", step["type"])
        return None

    # ------------------------------------------------------------------ families

    def _byte_level(
        self, vocabulary: Vocabulary, steps: list[dict[str, Any]], normalized: set[str]
    ) -> TokenizerParts:
        for step in _flat(self._source.get("decoder"), "decoders", self):
            if step["type"] != "ByteLevel":
                self._refuse("a byte-level tokenizer with the decoder", step["type"])
        normalizers = _flat(self._source.get("normalizer"), "normalizers", self)
        for step in normalizers:
            if step["type"] != "NFC":
                self._refuse("a byte-level tokenizer with the normaliser", step["type"])
        found: list[Step] = []
        for at, step in enumerate(steps):
            last = at == len(steps) - 1
            if (step["type"] == "ByteLevel") != last or step.get("add_prefix_space") is True:
                self._refuse("the pre-tokeniser", step)
            if not last:
                found.append(self._step(step))
            elif step.get("use_regex", True) is not False:
                found.append(Words())
        return byte_level(
            vocabulary,
            found,
            composed=bool(normalizers),
            whole_pieces=self._model.get("ignore_merges") is True,
            normalized=normalized,
        )

    def _step(self, step: dict[str, Any]) -> Step:
        pattern = step.get("pattern")
        if step["type"] == "Digits":
            return Digits(step.get("individual_digits") is True)
        behavior = BEHAVIORS.get(str(step.get("behavior")))
        if step["type"] != "Split" or behavior is None or step.get("invert") or not pattern:
            self._refuse("the pre-tokeniser", step)
        if not isinstance(pattern, dict) or len(pattern) != 1:
            self._damaged(f"a pre-tokeniser has the pattern {quote(repr(pattern))}")
        ((kind, text),) = pattern.items()
        if kind not in ("Regex", "String") or not isinstance(text, str):
            self._damaged(f"a pre-tokeniser has the pattern {quote(repr(pattern))}")
        return Split(text, kind == "String", behavior)

    def _sentencepiece(
        self, vocabulary: Vocabulary, steps: list[dict[str, Any]], normalized: set[str]
    ) -> TokenizerParts:
        if self._model.get("byte_fallback") is not True:
            self._refuse("BPE over characters with byte_fallback", False)
        if self._model.get("ignore_merges") is True:
            self._refuse("BPE over characters with ignore_merges", True)
        self._check_decoder()
        prefix: Prefix | None = None
        spaces = False
        for step in _flat(self._source.get("normalizer"), "normalizers", self):
            if step["type"] == "Prepend" and step.get("prepend") == SPACE:
                prefix = Prefix()
            elif step["type"] == "Replace" and _replaces(step, " ", SPACE):
                spaces = True
            else:
                self._refuse("a tokenizer over characters with the normaliser", step)
        words = False
        for step in steps:
            if step["type"] == "Metaspace" and step.get("replacement") == SPACE:
                spaces, words = True, step.get("split", True) is not False
                scheme = step.get("prepend_scheme", "always")
                if step.get("add_prefix_space") is False:
                    scheme = "never"
                if scheme != "never":
                    prefix = Prefix(after_bos=scheme != "first", doubled=False)
            elif not (
                spaces and step["type"] == "Split" and step.get("pattern") == {"String": " "}
            ):
                self._refuse("a tokenizer over characters with the pre-tokeniser", step)
        if not spaces:
            self._refuse("a tokenizer over characters that writes spaces as", " ")
        return sentencepiece(vocabulary, prefix=prefix, words=words, normalized=normalized)

    def _check_decoder(self) -> None:
        """Refuse one that would read tokens otherwise; a space at the beginning may be dropped."""
        for step in _flat(self._source.get("decoder"), "decoders", self):
            kind = step["type"]
            is_plain = kind in ("ByteFallback", "Fuse") or (
                kind == "Metaspace" and step.get("replacement") == SPACE
            )
            is_strip = kind == "Strip" and step.get("content") == " " and not step.get("stop")
            if not (is_plain or is_strip or (kind == "Replace" and _replaces(step, SPACE, " "))):
                self._refuse("a tokenizer over characters with the decoder", step)

    # ------------------------------------------------------------------ faults

    def _of(self, holder: Mapping[str, Any], name: str, kind: type[T], default: Any = None) -> T:
        value = holder.get(name)
        value = default if value is None else value
        if not isinstance(value, kind):
            self._damaged(f"{name} is {quote(repr(value))}, no {kind.__name__}")
        return value

    def _damaged(self, fault: str) -> NoReturn:
        raise ModelError(f"{self._path}: {fault}: it is damaged, fetch it anew.")

    def _refuse(self, what: str, value: object) -> NoReturn:
        shown = quote(value if isinstance(value, str) else repr(value))
        raise ModelError(
            f"{self._path} has {what} {shown}, which is not supported: the text would be read "
            "otherwise than the model was trained, so it cannot be run."
        )


def _flat(part: object, inner: str, file: _TokenizerFile, depth: int = 0) -> list[dict[str, Any]]:
    """The steps of a part that may be a sequence, of sequences too."""
    if part is None:
        return []
    if not isinstance(part, dict) or not isinstance(part.get("type"), str) or depth > MAX_DEPTH:
        file._damaged(f"{quote(repr(part))} is no step of a tokenizer")
    if part["type"] != "Sequence":
        return [part]
    steps = part.get(inner)
    if not isinstance(steps, list):
        file._damaged(f"a sequence has no {inner}")
    return [step for entry in steps for step in _flat(entry, inner, file, depth + 1)]


def _replaces(step: Mapping[str, Any], old: str, new: str) -> bool:
    return step.get("pattern") == {"String": old} and step.get("content") == new


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_mark(token: str) -> bool:
    return any(token.startswith(begin) and token.endswith(end) for begin, end in LOOKS_SPECIAL)
