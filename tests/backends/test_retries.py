"""After which pauses a request is sent again, and when it may begin."""

from datetime import datetime, timezone

import pytest

from lmlang.backends.retries import LONGEST_PAUSE, Again, Rate, Retries, seconds_of
from lmlang.errors import BackendError

LOST = BackendError("lost")


def pauses(most, *after, draw=lambda: 1.0, patience=60.0):
    retries = Retries(most, patience, draw)
    return [retries.pause(Again(LOST, wanted)) for wanted in after]


def test_pauses_grow_to_a_bound():
    assert pauses(9, *[None] * 8) == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, LONGEST_PAUSE, LONGEST_PAUSE]


def test_pauses_have_jitter():
    assert pauses(9, None, None, draw=lambda: 0.0) == [0.0, 0.0]
    found = [Retries(9, 60).pause(Again(LOST)) for _ in range(50)]
    assert all(0 <= pause <= 0.25 for pause in found)
    assert len(set(found)) > 40


def test_what_the_server_asks_for_is_waited_at_least():
    assert pauses(9, 3.0, 0.0, None, draw=lambda: 0.5) == [3.125, 0.25, 0.5]


def test_after_so_many_failures_in_a_row_the_error_is_raised():
    retries = Retries(2, 60.0, lambda: 1.0)
    for _ in range(3):
        assert retries.pause(Again(LOST)) == 0.25
        assert retries.pause(Again(LOST)) == 0.5
        with pytest.raises(BackendError, match="lost"):
            retries.pause(Again(LOST))
        retries.progressed()
    with pytest.raises(BackendError, match="lost"):
        pauses(0, None)


def test_a_server_that_wants_too_much_time_is_not_waited_for():
    with pytest.raises(BackendError, match="lost"):
        pauses(9, 60.1)


def test_so_many_requests_in_any_minute():
    rate = Rate(2)
    assert [rate.delay(now) for now in (0.0, 10.0, 20.0, 59.0)] == [0.0, 0.0, 40.0, 1.0]
    assert [rate.delay(now) for now in (60.0, 61.0, 70.0, 71.0)] == [0.0, 9.0, 0.0, 49.0]
    assert [Rate(None).delay(0.0) for _ in range(9)] == [0.0] * 9


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("-7", None),
        ("1.5", None),
        ("soon", None),
        ("²", None),
        ("9" * 5_000, 999_999_999.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 60.0),
        ("Wed, 21 Oct 2015 07:26:00 GMT", 0.0),
        ("Wed, 21 Oct 2015 07:28:00 -0000", 60.0),
    ],
)
def test_the_header_is_a_number_or_a_date(header, seconds):
    now = datetime(2015, 10, 21, 7, 27, tzinfo=timezone.utc)
    assert seconds_of(header, now) == seconds
