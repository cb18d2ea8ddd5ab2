"""Server-sent events are read whatever pieces they come in."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmlang as lm
from lmlang.wire.sse import EventReader

STREAM = (
    b': hello\ndata: {"a":1}\n\r\ndata:b\r\ndata:  c\r\n\nid: 4\nevent: x\n\n\n\ndata: [DONE]\n\n'
)
EVENTS = [b'{"a":1}', b"b\n c", b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=8).map(sorted))
def test_events_are_the_same_in_all_pieces(cuts):
    reader = EventReader()
    borders = [0, *cuts, len(STREAM)]
    found = []
    for start, end in pairwise(borders):
        found += reader.feed(STREAM[start:end])
    assert found == EVENTS


def test_what_has_not_ended_is_no_event():
    reader = EventReader()
    assert reader.feed(b"data: a\n") == []
    assert reader.feed(b"\n") == [b"a"]


@pytest.mark.parametrize("piece", [b"data: 0123456789" * 3, b": 0123456789" * 3, b"data: 0\n" * 9])
def test_events_without_end_are_refused(piece):
    reader = EventReader(20)
    with pytest.raises(lm.WireError, match="more than 20 bytes"):
        reader.feed(piece)
    assert EventReader(20).feed(b"data: 01234567\n\n" * 9) == [b"01234567"] * 9
