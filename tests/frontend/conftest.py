"""The language's tests run twice: over their backends here, and over these behind a real server.

a run here   ── ScriptedBackend                      ╮ what the test asserts, and all that the
a run served ── RuntimeEndpoint ── HTTP ── the same  ╯ run logs tell, are the same
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import lmlang as lm
from lmlang.backends import retries
from lmlang.frontend import defaults, draws, run, snapshot
from lmlang.protocol import Backend
from lmlang.testing import RandomBackend, ScriptedBackend
from tests.backends.served import Site, site

MODULES = (
    "async", "batches", "body_errors", "constraints", "draws", "dsl_reasoning", "dsl_settings",
    "error_places", "failures", "forks", "gen", "handled_errors", "journal", "limits",
    "meta_info", "preview", "programs", "runlog", "scopes", "select", "sglang_programs", "state",
    "streams",
)  # fmt: skip
"""Those of test_exit ask servers of their own, from other processes; test_outside asks none."""
MOMENT = "it looks at its backend at one moment, and requests and cancels are on their way to it"
THREADS = "it counts threads, of which a server and a connection have some"
MANY = "it makes hundreds of runs to see chance or scale, which are not the line's"
AHEAD = "how many rows run ahead of a lazy batch's reader is a matter of time"
NOT_SENT = "what it gives its backend crosses no border: pictures, functions, used up iterators"
OTHERS = "an error that is no error of lmlang stays in the server's log, and crosses as its own"
AGAIN = "what says that it may be retried is asked for again, until it may not be"
ORDER = "it is scripted by the order in which requests arrive, which on a line is any"
HERE_ONLY = {
    "test_a_backend_that_raises_or_returns_nonsense_fails_the_operation": OTHERS,
    "test_a_backends_exception_that_cannot_be_changed_arrives_as_itself": OTHERS,
    "test_a_batch_equals_its_single_runs_and_equal_rows_differ": MANY,
    "test_a_forked_program_makes_the_prompts_of_the_unforked_ones": MANY,
    "test_a_function_of_logits_needs_logits": NOT_SENT,
    "test_a_hundred_nested_forks_behind_a_pending_parent": MOMENT,
    "test_a_log_has_the_text_so_far_of_what_is_under_way": MOMENT,
    "test_a_log_tells_of_every_operation_and_its_usage_is_the_runs": MANY,
    "test_a_program_generates_as_many_tokens_as_it_may": MANY,
    "test_a_progress_bar_counts_rows_on_the_error_stream_without_a_thread": THREADS,
    "test_a_raised_error_cancels_the_rows_that_wait": MOMENT,
    "test_a_read_on_the_dispatcher_thread_raises_instead_of_waiting_for_itself": MOMENT,
    "test_a_script_that_is_an_iterator_may_end": OTHERS,
    "test_above_zero_the_choice_is_drawn_with_the_seed": MANY,
    "test_alarms_ring_when_they_are_due_and_cancelled_ones_are_forgotten": MOMENT,
    "test_an_error_in_an_async_body_is_its_own_and_ends_the_run": MOMENT,
    "test_an_error_in_the_body_cancels_what_is_under_way": MOMENT,
    "test_an_error_of_one_sample_is_the_generations_and_cancels_the_others": MOMENT,
    "test_an_error_of_the_user_s_own_kind_stays_what_it_is_and_cancels_forks": MOMENT,
    "test_an_error_that_is_not_ours_passes_as_itself": OTHERS,
    "test_an_error_that_the_program_gets_over_stays_in_the_log": ORDER,
    "test_an_interrupt_keeps_the_finished_rows_and_cancels_the_others": MOMENT,
    "test_an_interrupt_while_waiting_ends_the_run": MOMENT,
    "test_an_undefined_name_raises_at_once_with_near_misses": MOMENT,
    "test_appending_never_waits": MOMENT,
    "test_async_readers_take_no_threads": THREADS,
    "test_cancel_from_another_thread_ends_the_run_and_keeps_what_was_finished": MOMENT,
    "test_cancelling_a_fork_ends_it_and_the_forks_below_it_alone": MOMENT,
    "test_choices_may_be_whatever_gives_them_in_an_order": NOT_SENT,
    "test_closing_the_backend_ends_programs_that_wait_for_it": MOMENT,
    "test_concatenating_join_appends_each_childs_own_tokens": ORDER,
    "test_each_sample_thinks_by_itself_and_errors_and_cancelling_arrive": MOMENT,
    "test_errors_of_a_lazy_batch_come_in_their_turn": AHEAD,
    "test_errors_of_forks_are_raised_in_program_order_whatever_failed_first": MOMENT,
    "test_errors_of_others_are_told_within_limits": OTHERS,
    "test_events_are_one_record_of_text_and_what_is_known_of_it": MOMENT,
    "test_every_reader_gets_a_copy_of_its_own": AGAIN,
    "test_every_sample_is_split": ORDER,
    "test_image_question_answering": NOT_SENT,
    "test_join_waits_for_children_but_not_for_the_parent": MOMENT,
    "test_lazy_batches_have_a_journal_too": AHEAD,
    "test_lazy_rows_are_taken_as_states_are_and_keep_their_order": AHEAD,
    "test_leaving_a_lazy_batch_cancels_its_rows_and_leaves_no_thread": THREADS,
    "test_no_thread_is_left": THREADS,
    "test_no_thread_is_left_by_async_runs": THREADS,
    "test_no_thread_is_left_by_streams": THREADS,
    "test_of_several_samples_the_first_is_streamed": ORDER,
    "test_readers_hear_what_interrupted_a_backend": OTHERS,
    "test_repr_names_the_variables_and_waits_for_nothing": MOMENT,
    "test_rows_run_side_by_side_up_to_num_threads_and_leave_no_thread": THREADS,
    "test_samples_are_a_list_and_the_state_goes_on_with_the_first": ORDER,
    "test_samples_scopes_calls_pictures_and_values_as_text": ORDER,
    "test_samples_share_everything_but_their_draws": MOMENT,
    "test_shuffled_rows_keep_their_outputs": MANY,
    "test_ten_thousand_forks_need_no_threads_of_their_own": MANY,
    "test_text_inside_scopes_copies_calls_and_inline_programs_is_the_plain_text": MANY,
    "test_the_draw_is_the_argmax_of_scores_and_keyed_noise": MANY,
    "test_the_draw_keys_are_those_that_the_backend_was_given": MOMENT,
    "test_the_metadata_of_samples_is_the_firsts_with_that_of_each": ORDER,
    "test_the_order_of_completions_does_not_matter": MANY,
    "test_unnamed_generations_after_a_join_do_not_hide_the_gathered_ones": ORDER,
    "test_what_a_log_says_of_a_run": ORDER,
    "test_what_is_appended_after_the_run_can_be_cancelled_too": MOMENT,
    "test_what_is_streamed_is_what_there_is_in_the_end": MANY,
    "test_with_a_failure_at_any_call_every_accessor_ends": MANY,
    "test_with_a_failure_at_any_call_every_accessor_of_a_streaming_run_ends": MANY,
}
"""Tests that run here alone, and why."""
CUT_ANYWHERE = {
    "test_a_deadline_ends_every_wait_in_a_program",
    "test_a_deadline_ends_every_wait_outside",
    "test_forks_share_the_budget",
    "test_with_a_failure_at_any_call_all_accessors_end_one_after_the_other",
    "test_with_a_failure_at_any_call_async_programs_end",
}
"""Tests whose runs end wherever they are, so that their logs differ from time to time."""
ITS_OWN = {
    *("run_id", "model", "began", "seconds", "queued", "submitted", "first_token", "finished"),
    "spelling",  # of which a server is not asked
}
"""Parts of a run log that are the run's own."""
OUTCOMES = {"status", "usage", "samples", "choices", "text", "error"}
"""Parts that depend, where a body has failed, on how far its operations had come."""
UNSURE = {"over": set(), "failed": OUTCOMES, "left": OUTCOMES | {"operations", "recording"}}
"""What a test does not settle of its run logs if all runs are over, one has failed, or was left."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test of the modules has two places."""
    name = metafunc.module.__name__.removeprefix("tests.frontend.test_")
    if name in MODULES and metafunc.function.__name__ not in HERE_ONLY:
        metafunc.parametrize("where_backends_are", ["here", "served"], indirect=True)


class Behind:
    """What a server asks: the backend of whichever test runs now."""

    def __init__(self) -> None:
        self.now: Any = None

    def __getattr__(self, name: str) -> Any:
        if not hasattr(ScriptedBackend, name):
            raise AttributeError(name)
        return lambda *given: getattr(self.now, name)(*given)  # of now, whoever keeps it


class Servers:
    """Servers on one port, which tests use again and again."""

    def __init__(self, made: Site) -> None:
        self._site = made
        self._made: list[tuple[Behind, str]] = []

    def take(self, count: int) -> tuple[Behind, str]:
        """What the server of this number asks, and its address."""
        from lmlang.server.app import make_app
        from lmlang.server.config import ServerConfig

        while len(self._made) <= count:
            behind = Behind()
            wide: Any = behind
            app = make_app(wide, ServerConfig(max_choices=100_000, max_samples=1_024))
            self._made.append((behind, self._site.add(app)))
        return self._made[count]


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    pytest.importorskip("fastapi")
    with site() as made:
        yield Servers(made)


@pytest.fixture(scope="session")
def logs_here() -> dict[str, tuple[str, list[Any]]]:
    """Of tests that have run here, and not yet over a server."""
    return {}


@pytest.fixture(autouse=True)
def where_backends_are(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    logs_here: dict[str, tuple[str, list[Any]]],
) -> Iterator[None]:
    """Where the backends of a test are; behind the test its run logs are compared."""
    where = getattr(request, "param", None)
    if where is None:
        yield
        return
    seeds = itertools.count(1)
    monkeypatch.setattr(draws, "fresh_seed", lambda: next(seeds))
    runs = _remembered(monkeypatch)
    with ExitStack() as stack:
        if where == "served":
            monkeypatch.setattr(retries, "FIRST_PAUSE", 0.001)
            _serve(request.getfixturevalue("servers"), monkeypatch, stack)
        yield
        logs = _end_of(runs), [json.loads(snapshot.run_log(each).to_json()) for each in runs]
    name = request.node.nodeid.replace(where, "")
    if request.node.originalname in CUT_ANYWHERE:
        return
    if where == "here":
        logs_here[name] = logs
    elif name in logs_here:
        here = logs_here.pop(name)
        unsure = UNSURE[here[0]] | UNSURE[logs[0]]
        assert _alike(logs[1], unsure) == _alike(here[1], unsure)


def _serve(servers: Servers, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> None:
    """Have every run ask its backend over a server."""
    known: dict[int, tuple[Backend, lm.RuntimeEndpoint]] = {}
    resolved = defaults.resolve

    def resolve(backend: Backend | None) -> Backend:
        found = resolved(backend)
        if not isinstance(found, (ScriptedBackend, RandomBackend)):
            return found
        if id(found) not in known:
            behind, url = servers.take(len(known))
            behind.now = found
            known[id(found)] = found, stack.enter_context(lm.RuntimeEndpoint(url))
        return known[id(found)][1]

    monkeypatch.setattr(defaults, "resolve", resolve)


def _remembered(monkeypatch: pytest.MonkeyPatch) -> list[run.Run]:
    """All runs of a test, as they are made; traces are none."""
    runs: list[run.Run] = []
    init = run.Run.__init__

    def remember(self: run.Run, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if isinstance(self.backend, (ScriptedBackend, RandomBackend, lm.RuntimeEndpoint)):
            runs.append(self)

    monkeypatch.setattr(run.Run, "__init__", remember)
    return runs


def _end_of(runs: list[run.Run]) -> str:
    """How the worst of some runs has ended."""
    if any(isinstance(each.ended, lm.Cancelled) or not each.over for each in runs):
        return "left"
    return "over" if all(each.finished for each in runs) else "failed"


def _alike(logs: list[Any], unsure: set[str]) -> list[str]:
    """What is settled of some run logs, in an order of its own."""

    def settled(value: Any) -> Any:
        if isinstance(value, dict):
            left = ITS_OWN | unsure
            return {name: settled(held) for name, held in value.items() if name not in left}
        return [settled(held) for held in value] if isinstance(value, list) else value

    return sorted(json.dumps(settled(log), sort_keys=True) for log in logs)
