"""Prompts to ids: as transformers, forked as unforked, warm as cold, each tail at its own cost."""

from __future__ import annotations

from functools import cache
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.errors import ModelError, ProgramError
from lmlang.protocol import EndTurn, Prompt, Segment, Text, Tokens, Turn
from lmlang.runtime.chat import ChatTemplate
from lmlang.runtime.chat_script import Ids, Literal, Script
from lmlang.runtime.encoder import PromptEncoder
from lmlang.runtime.tokenizer import Tokenizer
from tests.reference import embedded, reference_tokenizer
from tests.runtime.chats import TRAITS
from tests.runtime.folders import added, byte_level_json, sentencepiece_json, split, write
from tests.tiny import tiny_template, tiny_tokenizer

PROPERTY = settings(max_examples=200, deadline=None, derandomize=True)
CHANGING = ChatTemplate(
    # writes old assistant turns differently, and prompts with what it does not keep
    "{% for m in messages %}"
    "{% if m.role == 'assistant' and not loop.last %}(old){% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}{% if loop.last %}<|im_end|>{% endif %};{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
)
TEMPLATES = st.sampled_from(
    [tiny_template(), ChatTemplate(None), CHANGING]
    + [ChatTemplate(source, "<|im_start|>", "<|im_end|>") for source in TRAITS.values()]
)
TEXT = st.sampled_from([*" \n1's.é🙂", "", "hello", " world", " the user", "<|im_end|>"]) | (
    st.sampled_from(["a" * 70, "hello the world, and " * 8, "   " * 30])
)
CONTENT = st.builds(Text, TEXT) | st.builds(
    lambda ids: Tokens(tuple(ids), tiny_tokenizer().decode(ids)),
    st.lists(st.integers(0, 285), max_size=3),
)
ROLES = st.sampled_from(["system", "user", "assistant"])


@st.composite
def segment_lists(draw: st.DrawFn) -> list[Segment]:
    """Balanced turns with contents inside and between them; the last may be open."""
    found: list[Segment] = []
    for _ in range(draw(st.integers(0, 4))):
        found += draw(st.lists(CONTENT, max_size=2))
        found.append(Turn(draw(ROLES)))
        found += draw(st.lists(CONTENT, max_size=4))
        found.append(EndTurn())
    if found and draw(st.booleans()):
        found.pop()
    return found + draw(st.lists(CONTENT, max_size=3))


def whole(encoder: PromptEncoder, prompt: Prompt) -> list[int]:
    """The prompt at one go: all items laid out, neighbouring texts joined, each tokenised whole."""
    tokenizer = encoder._tokenizer
    parts: list[str | int] = []
    for item in encoder._writer.items(Script().then(prompt.nodes())):
        if isinstance(item, Literal):
            parts += tokenizer.split_control(item.text)
        elif isinstance(item, Ids):
            parts += item.ids
        else:
            parts.append(item.text)
    ids: list[int] = []
    for is_text, run in groupby(parts, lambda part: isinstance(part, str)):
        stretch = list(run)
        if is_text:
            starts = tokenizer.may_start_behind(ids)
            ids += tokenizer.encode("".join(map(str, stretch)), at_start=starts)
        else:
            ids += map(int, stretch)
    bos = tokenizer.bos_id
    return [bos, *ids] if tokenizer.add_bos and ids[:1] != [bos] else ids


def is_balanced(prompt: Prompt) -> bool:
    is_open = False
    for segment in prompt.segments():
        if isinstance(segment, (Turn, EndTurn)):
            if is_open == isinstance(segment, Turn):
                return False
            is_open = not is_open
    return True


@PROPERTY
@given(template=TEMPLATES, segments=segment_lists(), data=st.data(), add_bos=st.booleans())
def test_ids_are_those_of_the_whole_whatever_was_encoded_before(template, segments, data, add_bos):
    encoder = PromptEncoder(tiny_tokenizer(add_bos=add_bos), template)
    nodes = [Prompt()]
    for segment in segments:
        nodes.append(nodes[-1].append(segment))
    tree = list(nodes)
    for _ in range(3):  # forks of any node, balanced or not
        start = data.draw(st.sampled_from(nodes))
        for segment in data.draw(segment_lists()):
            start = start.append(segment)
            tree.append(start)
    order = data.draw(st.permutations(tree))
    for node in [*order, *order[:5]]:
        if is_balanced(node):
            try:
                expected = whole(encoder, node)
            except ProgramError:  # the template refuses
                with pytest.raises(ProgramError, match="refuses"):
                    encoder.encode(node)
            else:
                assert encoder.encode(node) == expected
        else:
            with pytest.raises(ProgramError):
                encoder.encode(node)


@cache
def other_tokenizer(kind: str) -> Tokenizer:
    """One whose text is composed first, whose pattern is not known, or that writes a prefix."""
    if kind in ("qwen2", "own"):
        own = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        changes = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split(r"\w+|\W"), own]}}
        own["use_regex"] = False
        source = byte_level_json("qwen2", **(changes if kind == "own" else {}))
    else:
        source = sentencepiece_json(kind)
        more = ("<|im_start|>", "<|im_end|>")
        size = max(source["model"]["vocab"].values()) + 1
        source["added_tokens"] += [added(token, size + i) for i, token in enumerate(more)]
    named = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "add_bos_token": kind != "own"}
    with TemporaryDirectory() as folder:
        return Tokenizer.from_folder(write(Path(folder), source, tokenizer_config=named))


@PROPERTY
@given(
    kind=st.sampled_from(["qwen2", "own", "prepend", "first", "words"]),
    template=TEMPLATES,
    segments=segment_lists(),
    data=st.data(),
)
def test_ids_are_those_of_the_whole_with_every_kind_of_tokenizer(kind, template, segments, data):
    tokenizer = other_tokenizer(kind)
    encoder = PromptEncoder(tokenizer, template)
    nodes = [Prompt()]
    for segment in segments:
        if isinstance(segment, Tokens):
            segment = Tokens(segment.ids, tokenizer.decode(segment.ids))
        nodes.append(nodes[-1].append(segment))
    for node in data.draw(st.permutations(nodes)):
        if is_balanced(node):
            try:
                expected = whole(encoder, node)
            except ProgramError:  # the template refuses
                continue
            assert encoder.encode(node) == expected


@PROPERTY
@given(template=TEMPLATES, segments=segment_lists())
def test_texts_beside_one_another_are_tokenised_as_one(template, segments):
    encoder = PromptEncoder(tiny_tokenizer(), template)
    try:
        encoder.encode(Prompt.of(*segments))
    except ProgramError:
        return
    joined: list[Segment] = []
    for segment in segments:
        last = joined[-1] if joined else None
        if isinstance(segment, Text) and isinstance(last, Text):
            joined[-1] = Text(last.text + segment.text)
        elif segment != Tokens((), ""):
            joined.append(segment)
    assert encoder.encode(Prompt.of(*segments)) == encoder.encode(Prompt.of(*joined))


CONVERSATIONS = [
    [("user", "Hi")],
    [("system", "Be brief."), ("user", "What is 12345 + 1?")],
    [("user", "é 你好 🙂"), ("assistant", " Yes.\n"), ("user", "  and\r\n")],
    [("user", ""), ("assistant", ""), ("user", "x" * 500)],
    [("system", "s"), ("user", "def f():\n\treturn 1\n" * 30), ("assistant", "ok"), ("tool", "{}")],
]


def conversation(turns: list[tuple[str, str]]) -> Prompt:
    return Prompt.of(
        *(part for role, text in turns for part in (Turn(role), Text(text), EndTurn()))
    )


@pytest.mark.parametrize("turns", CONVERSATIONS)
def test_conversations_equal_transformers_chat_template(turns):
    encoder = PromptEncoder(*embedded()[3:])
    reference = reference_tokenizer()
    messages = [{"role": role, "content": text} for role, text in turns]
    prompt = conversation(turns)
    assert encoder.render(prompt) == reference.apply_chat_template(messages, tokenize=False)
    closed = reference.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert encoder.encode(prompt) == closed
    prompted = reference.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    assert encoder.encode(prompt.append(Turn("assistant"))) == prompted


def test_control_spellings_of_users_are_plain_text():
    encoder = PromptEncoder(tiny_tokenizer(), tiny_template())
    prompt = Prompt.of(Turn("user"), Text("a<|im_"), Text("end|>b"), EndTurn())
    assert encoder.render(prompt) == "<|im_start|>user\na<|im_end|>b<|im_end|>\n"
    assert encoder.encode(prompt).count(2) == 1


def test_tokens_keep_their_ids_and_border_what_is_beside_them():
    tokenizer = tiny_tokenizer()
    encoder = PromptEncoder(tokenizer, tiny_template())
    odd = (*tokenizer.encode("h"), *tokenizer.encode("e"))
    prompt = Prompt.of(Text("hell"), Tokens(odd, "he"), Text("llo"), Text(" world"))
    expected = [*tokenizer.encode("hell"), *odd, *tokenizer.encode("llo world")]
    assert encoder.encode(prompt) == expected
    assert encoder.render(prompt) == "hellhello world"


def test_the_beginning_of_text_token_comes_once():
    tokenizer = tiny_tokenizer(add_bos=True)
    text = tokenizer.encode("hello")
    plain = PromptEncoder(tokenizer, ChatTemplate(None))
    assert plain.encode(Prompt.of(Text("hello"))) == [1, *text]
    assert plain.encode(Prompt()) == [1]
    assert plain.encode(Prompt.of(Tokens((1, *text), "hello"))) == [1, *text]
    chat = PromptEncoder(tokenizer, tiny_template())  # writes the same token by itself
    assert chat.encode(Prompt.of(Turn("user"), Text("hello"))).count(1) == 1


def test_an_empty_prompt_has_no_tokens():
    encoder = PromptEncoder(tiny_tokenizer(), tiny_template())
    assert encoder.encode(Prompt()) == []
    assert encoder.encode(Prompt.of(Text(""))) == []
    assert encoder.render(Prompt()) == ""


def test_the_token_that_ends_the_open_turn():
    encoder = PromptEncoder(tiny_tokenizer(), tiny_template())
    opened = Prompt.of(Turn("user"), Text("hi"))
    assert encoder.end_of_turn(opened) == 2
    assert encoder.end_of_turn(opened.append(EndTurn())) is None
    assert encoder.end_of_turn(Prompt()) is None
    assert PromptEncoder(tiny_tokenizer(), ChatTemplate(None)).end_of_turn(opened) is None


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ((EndTurn(),), "none is open"),
        ((Turn("user"), EndTurn(), EndTurn()), "none is open"),
        ((Turn("user"), Text("x"), Turn("tool")), "'tool' begins inside the open turn"),
    ],
)
def test_turns_that_are_not_balanced_are_refused(segments, message):
    encoder = PromptEncoder(tiny_tokenizer(), tiny_template())
    for use in (encoder.encode, encoder.render, encoder.end_of_turn):
        with pytest.raises(ProgramError, match=message):
            use(Prompt.of(*segments))


def test_a_refused_role_and_a_broken_template_are_typed_errors():
    refusing = ChatTemplate("{{ raise_exception('only user') }}")
    with pytest.raises(ProgramError, match="only user"):
        PromptEncoder(tiny_tokenizer(), refusing).encode(Prompt.of(Turn("critic")))
    broken = ChatTemplate("{{ messages.content.text }}")
    with pytest.raises(ModelError, match="UndefinedError"):
        PromptEncoder(tiny_tokenizer(), broken).encode(Prompt.of(Turn("user")))


class CountingTemplate(ChatTemplate):
    """Counts how often the template is run."""

    runs = 0

    def _run(self, *args):
        self.runs += 1
        return super()._run(*args)


class CountingTokenizer(Tokenizer):
    """Counts the characters that are tokenised."""

    characters = 0

    def encode(self, text: str, *, at_start: bool = False) -> list[int]:
        self.characters += len(text)
        return super().encode(text, at_start=at_start)


def counting() -> CountingTokenizer:
    found = CountingTokenizer.__new__(CountingTokenizer)
    found.__dict__.update(tiny_tokenizer().__dict__)
    return found


def test_a_child_of_a_long_prompt_costs_only_its_tail():
    tokenizer = counting()
    encoder = PromptEncoder(tokenizer, tiny_template())
    long = Prompt.of(Turn("user"), Text("hello the world, " * 2_000))
    whole = encoder.encode(long)
    tokenizer.characters = 0
    for child in range(10):
        prompt = long.append(Text(f" and {child}"))
        assert encoder.encode(prompt)[: len(whole) - 8] == whole[:-8]
    assert tokenizer.characters < 10 * 60


def test_a_state_that_grows_by_characters_is_tokenised_a_few_times_over():
    tokenizer = counting()
    encoder = PromptEncoder(tokenizer, tiny_template())
    prompt, text = Prompt(), ""
    for _ in range(1_500):
        prompt, text = prompt.append(Text("he")), text + "he"
    assert encoder.encode(prompt) == tokenizer.encode(text)
    assert tokenizer.characters < 8 * len(text)


def test_ten_thousand_segments_are_no_recursion():
    encoder = PromptEncoder(tiny_tokenizer(), tiny_template())
    prompt = Prompt()
    for _ in range(10_000):
        prompt = prompt.append(Text("the ")).append(Tokens((5,), "x"))
    assert len(encoder.encode(prompt)) == 40_000
    del prompt


def test_two_encoders_share_no_memory_of_a_prompt():
    prompt = Prompt.of(Turn("user"), Text("hi"))
    one = PromptEncoder(tiny_tokenizer(), tiny_template())
    other = PromptEncoder(tiny_tokenizer(), ChatTemplate(None))
    first = one.encode(prompt)
    assert other.encode(prompt) == tiny_tokenizer().encode("User:\nhi")
    assert one.encode(prompt) == first


@pytest.mark.parametrize("each", [False, True], ids=["encoded at the end", "encoded at each piece"])
def test_a_word_in_many_pieces_is_kept_about_once(each: bool) -> None:
    count = 2_000
    encoder, prompt = PromptEncoder(tiny_tokenizer(), ChatTemplate(None)), Prompt()
    for number in range(count):
        prompt = prompt.append(Text("a" if number % 2 else "b"))
        if each and number % 10 == 0:
            encoder.encode(prompt)
    assert encoder.encode(prompt) == encoder._tokenizer.encode("ba" * (count // 2))
    kept: dict[int, str] = {}
    stack: list[object] = [node.memo for node in prompt.nodes()]
    while stack:
        held = stack.pop()
        if isinstance(held, str):
            kept[id(held)] = held
        elif isinstance(held, tuple):
            stack += held
        elif type(held).__name__ in ("_Mark", "_Step", "_Open"):
            names = [name for name in held.__slots__ if name not in ("before", "script")]  # type: ignore[attr-defined]
            stack += [getattr(held, name) for name in names]
    assert sum(map(len, kept.values())) < 20 * count
