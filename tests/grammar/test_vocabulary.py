"""Vocabularies: the bytes of every token, from whatever tokenizer; and the tree of them."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PythonBackend

from lmlang.errors import ProgramError, ProgramTypeError
from lmlang.grammar.token_trie import TokenTrie
from lmlang.grammar.vocabulary import Vocabulary
from tests.grammar.real import real_tokenizer, real_vocabulary
from tests.tiny import MERGES, byte_characters, tiny_tokenizer, tiny_vocabulary

TEXTS = ["hello world", " the\n end", "é 😀", '{"a": 1}', "", "<|im_end|>"]


def check(vocabulary: Vocabulary, texts: Sequence[str] = TEXTS) -> None:
    for text in texts:
        ids = vocabulary.encode(text)
        assert b"".join([vocabulary.pieces[index] for index in ids]) == text.encode()
    assert all(not vocabulary.pieces[index] for index in vocabulary.special_ids)
    assert vocabulary.stop_ids <= vocabulary.special_ids


@given(st.lists(st.binary(max_size=4).map(lambda d: bytes(b % 3 for b in d)), min_size=1))
def test_the_tree_holds_every_piece_at_its_bytes(pieces: list[bytes]) -> None:
    trie = TokenTrie(pieces)
    prefixes = {piece[:end] for piece in pieces for end in range(len(piece) + 1)}
    assert len(trie) == len(prefixes)
    for node in range(len(trie)):
        path = trie.path(node)
        equal = [index for index, piece in enumerate(pieces) if piece and piece == path]
        assert trie.id_at[node] == min(equal, default=-1)
        assert [index for index in range(len(pieces)) if trie.node_of[index] == node] == (
            equal if node else [index for index, piece in enumerate(pieces) if not piece]
        )
        for byte in range(4):
            child = trie.child(node, byte)
            longer = path + bytes([byte])
            assert (trie.path(child) == longer) if longer in prefixes else child < 0
        marked = trie.bits([node])
        assert [i for i in range(len(pieces)) if marked[i >> 5] >> (i & 31) & 1] == equal
    assert trie.longest == max(map(len, pieces))


def test_of_our_own_tokenizer() -> None:
    tokenizer = tiny_tokenizer()
    vocabulary = Vocabulary.of(tokenizer)
    check(vocabulary)
    assert vocabulary.special_ids == {0, 1, 2}
    assert vocabulary.missing_bytes == b""
    assert [vocabulary.pieces[index] for index in vocabulary.byte_ids] == [
        bytes([byte]) for byte in range(256)
    ]
    assert vocabulary.cut is not None
    assert vocabulary.cut("hello world") == 5


def test_of_whatever_has_a_tokenizer() -> None:
    class Holder:
        tokenizer = tiny_tokenizer()

    vocabulary = Vocabulary.of(Holder())
    assert vocabulary is Vocabulary.of(tiny_tokenizer())
    assert Vocabulary.of(vocabulary) is vocabulary


def fast_byte_level() -> Any:
    tokens, _ = tiny_vocabulary()
    pairs = [tuple(merge.split(" ")) for merge in MERGES]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=pairs)
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", additional_special_tokens=[*tokens[:2]]
    )


def test_of_a_fast_byte_level_tokenizer() -> None:
    vocabulary = Vocabulary.of(fast_byte_level())
    check(vocabulary)
    ours = Vocabulary.of(tiny_tokenizer())
    assert vocabulary.token_bytes == ours.token_bytes
    assert vocabulary.special_ids == ours.special_ids
    assert [vocabulary.encode(text) for text in TEXTS] == [ours.encode(text) for text in TEXTS]


def test_a_later_truncation_or_padding_of_the_original_changes_nothing() -> None:
    tokenizer = fast_byte_level()
    vocabulary = Vocabulary.of(tokenizer)
    before = vocabulary.encode("hello world and the end")
    tokenizer.backend_tokenizer.enable_truncation(1)
    tokenizer.backend_tokenizer.enable_padding(length=40)
    assert vocabulary.encode("hello world and the end") == before


def test_of_a_fast_sentencepiece_tokenizer_no_space_is_put_before_a_text() -> None:
    pieces = ["▁", "▁the", "the", "he", "t", "h", "e", "b", "a", ".", "n", "d", "en", "{", '"', ":"]
    tokens = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    merges = [("h", "e"), ("t", "he"), ("▁", "the"), ("e", "n")]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=merges,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    vocabulary = Vocabulary.of(
        PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")
    )
    check(vocabulary)
    assert vocabulary.special_ids == {0, 1}
    assert vocabulary.stop_ids == {1}
    the = tokens.index("the")
    assert vocabulary.encode("the") == [the]
    assert vocabulary.encode(" the") == [tokens.index("▁the")]
    assert vocabulary.pieces[tokens.index("<0x0A>")] == b"\n"


class Slow(PythonBackend):
    """A byte-level tokenizer in plain Python, without merges."""

    def __init__(self, **given: Any) -> None:
        self.characters = byte_characters()
        super().__init__(**given)

    @property
    def vocab_size(self) -> int:
        return 256

    def get_vocab(self) -> dict[str, int]:
        own = {character: byte for byte, character in enumerate(self.characters)}
        return own | self.added_tokens_encoder

    def _tokenize(self, text: str, **given: Any) -> list[str]:
        return [self.characters[byte] for byte in text.encode()]

    def _convert_token_to_id(self, token: str) -> int:
        return self.characters.index(token)

    def _convert_id_to_token(self, index: int) -> str:
        return self.characters[index]


def test_of_a_slow_tokenizer() -> None:
    vocabulary = Vocabulary.of(Slow(eos_token="</s>"))
    check(vocabulary, TEXTS[:-1])
    assert vocabulary.size == 257
    assert vocabulary.stop_ids == vocabulary.special_ids == {256}
    assert vocabulary.pieces[:256] == tuple(bytes([byte]) for byte in range(256))


def test_a_tokenizer_whose_tokens_are_no_text_is_refused() -> None:
    words = {"[UNK]": 0, "the": 1, "end": 2, "##d": 3}
    backend = tokenizers.Tokenizer(models.WordPiece(vocab=words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    with pytest.raises(ProgramError, match=r"^the tokens of this .* do not spell the texts"):
        Vocabulary.of(tokenizer)


@pytest.mark.parametrize("source", [None, 3, "gpt2", object()])
def test_what_has_no_vocabulary_is_refused(source: object) -> None:
    with pytest.raises(ProgramTypeError, match=r"^an? \w+ has no vocabulary: give a Runtime"):
        Vocabulary.of(source)


def test_a_vocabulary_is_made_once_and_let_go_with_its_users() -> None:
    tokenizer = fast_byte_level()
    vocabulary = Vocabulary.of(tokenizer)
    assert Vocabulary.of(tokenizer) is vocabulary
    known = weakref.ref(tokenizer)
    del tokenizer, vocabulary
    gc.collect()
    assert known() is None


def test_fingerprints_tell_tokens_and_encodings_apart() -> None:
    def fingerprint(tokens: list[bytes], encode: Any = lambda text: [0], **given: Any) -> str:
        return Vocabulary(tokens, encode=encode, **given).fingerprint

    base = fingerprint([b"a", b"bc"])
    others = [
        fingerprint([b"ab", b"c"]),
        fingerprint([b"a", b"bc"], special_ids=[1]),
        fingerprint([b"a", b"bc"], stop_ids=[1]),
        fingerprint([b"a", b"bc"], encode=lambda text: [0, 1]),
    ]
    assert base == fingerprint([b"a", b"bc"])
    assert len({base, *others}) == 5
    assert fingerprint([b"x"], fingerprint="mine") == "mine"


def test_what_fits_no_vocabulary_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"^a vocabulary without tokens"):
        Vocabulary([], encode=list)
    with pytest.raises(ProgramError, match=r"^the special id 3 is outside of the 2 tokens"):
        Vocabulary([b"a", b"b"], special_ids=[3], encode=list)


def test_the_real_vocabulary_lacks_these_bytes() -> None:
    assert real_vocabulary().missing_bytes[:6] == bytes([4, 6, 19, 20, 22, 29])
    assert real_vocabulary().stop_ids == real_tokenizer().stop_ids
    assert re.fullmatch("<Vocabulary of 49,152 tokens, [0-9a-f]{12}>", repr(real_vocabulary()))
