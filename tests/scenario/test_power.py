"""Every scenario of gate, ledger and proxy can fail: with a bug planted, the test that tells it does.

Most of the bugs are those that the campaign hunts (`faults.bugs`). The others are slips of the same kind whose effect
no world shows by chance; they stand here, beside the story that goes straight to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from faults.bugs import planted
from faults.patches import Patches, mutated
from gym_ckpt.core.admission import AdmissionBook
from gym_ckpt.errors import TransportError
from gym_ckpt.participants import backends, model
from gym_ckpt.participants.backends import Backends
from gym_ckpt.participants.captured import LedgerBook
from gym_ckpt.participants.completions import _Logprobs
from gym_ckpt.participants.gate import Delivery, GatedCall
from gym_ckpt.runtime.asgi import Refused, Request
from gym_ckpt.runtime.control import ControlPlane
from gym_ckpt.storage.ledger import restoring
from tests.scenario import gate as gate_words
from tests.scenario import test_bookkeeping as books
from tests.scenario import test_gate as gate
from tests.scenario import test_leaving as leaving
from tests.scenario import test_ledger as ledger
from tests.scenario import test_proxy as proxy

# -------------------------------------------------------------------------------------------------------------- slips


def generations_outlive_their_callers() -> Patches:
    async def while_connected(self: Request, work: Callable[[], Any]) -> Any:
        return await work()

    return [(Request, "while_connected", while_connected)]


def disconnects_hidden() -> Patches:
    """As a middleware hides them that passes bodies on and nothing else."""

    async def never(self: Request, scope: anyio.CancelScope) -> None:
        await anyio.sleep_forever()

    return [(Request, "_cancel_on_disconnect", never)]


def losses_told_while_closed() -> Patches:
    async def refuse(self: GatedCall) -> None:
        return

    return [(GatedCall, "refuse", refuse)]


def engines_named_after_callers() -> Patches:
    return [(model, "PASSED_ON", model.PASSED_ON | {b"x-request-id"})]


def blockers_unnamed() -> Patches:
    return [(AdmissionBook, "blockers", lambda self: set())]


def prepare_beyond_its_deadline() -> Patches:
    old, new = "with anyio.move_on_at(until):", "with anyio.move_on_at(until + 60):"
    return [(ControlPlane, "prepare", mutated(ControlPlane.prepare, old, new))]


def resume_unnoticed() -> Patches:
    old = "not self._open(request.checkpoint_id) or (settled.done and book.quiet)"
    return [(ControlPlane, "prepare", mutated(ControlPlane.prepare, old, "settled.done and book.quiet"))]


def submitted_for_nobody() -> Patches:
    """What waits to be sent to an engine is not given up."""
    real = Backends._reach

    async def reach(self: Backends, *of: Any) -> Any:
        with anyio.CancelScope(shield=True):
            return await real(self, *of)

    return [(Backends, "_reach", reach)]


def asked_again_after_a_loss() -> Patches:
    return [(backends, "PeerUnreachable", TransportError)]


def errors_flattened() -> Patches:
    real = Delivery.run

    async def run(self: Delivery, upstream: Any) -> None:
        if upstream.status >= 400:
            raise Refused(502, "the inference worker failed")
        await real(self, upstream)

    return [(Delivery, "run", run)]


def sessions_take_turns() -> Patches:
    real = Backends.order
    return [(Backends, "order", lambda self, session: real(self, None))]


def nan_is_zero() -> Patches:
    def values(self: _Logprobs) -> list[float]:
        found = [each.logprob for each in self.content or ()]
        return [value if value == value else 0.0 for value in found]

    return [(_Logprobs, "values", values)]


def lookalikes_belong_to_it() -> Patches:
    def clear(fs: Any, work: Any, episode: Any) -> None:
        for name in fs.listdir(work.directory):
            if name.startswith(episode.rollout_id) and ".lineage." in name and not name.startswith(f"{episode.key}."):
                fs.unlink(f"{work.directory}/{name}")

    return [(restoring, "_clear", clear)]


def safe_once_admitted() -> Patches:
    return [(LedgerBook, "has", lambda self, episode, call_id: True)]


def kept_where_nobody_forgets() -> Patches:
    real = LedgerBook.__init__

    def init(self: LedgerBook, *of: Any, **how: Any) -> None:
        real(self, *of, **(how | {"checkpointed": True}))

    return [(LedgerBook, "__init__", init)]


# -------------------------------------------------------------------------------------------------------------- table

Bug = str | Callable[[], Patches]
ONE, TWO = "policy", "policy2"
STORIES: list[tuple[int, Bug, Callable[..., None], tuple[Any, ...]]] = [
    (40, generations_outlive_their_callers, proxy.test_a_caller_that_leaves_after_any_chunk_of_a_stream, (3, False)),
    (40, generations_outlive_their_callers, proxy.test_a_caller_that_leaves_after_any_part_of_an_answer, (2, False)),
    (40, "undelivered-call-exported", proxy.test_a_caller_that_leaves_after_any_part_of_an_answer, (3, True)),
    (
        40,
        "waiting-calls-outlive-callers",
        leaving.test_a_call_of_the_model_leaves_the_books_with_its_caller,
        (gate_words.CHAT,),
    ),
    (41, engines_named_after_callers, proxy.test_an_abort_of_one_attempt_leaves_the_next_although_both_have_one_id, ()),
    (42, "row-write-cut-short", ledger.test_a_caller_that_leaves_while_its_row_waits_for_a_lock, ()),
    (43, disconnects_hidden, proxy.test_a_caller_that_leaves_after_any_chunk_of_a_stream, (0, False)),
    (44, blockers_unnamed, gate.test_a_stream_that_never_ends_fails_its_prepare_in_time_and_is_named, ()),
    (44, prepare_beyond_its_deadline, gate.test_a_stream_that_never_ends_fails_its_prepare_in_time_and_is_named, ()),
    (45, submitted_for_nobody, proxy.test_a_caller_that_leaves_before_an_engine_was_reached_starts_nothing_later, ()),
    (46, resume_unnoticed, gate.test_a_resume_that_arrives_while_a_drain_is_waited_for_ends_the_wait_only, ()),
    (47, "keep-alive-starts-answer", gate.test_headers_and_keep_alives_start_nothing, (5,)),
    (48, asked_again_after_a_loss, proxy.test_an_engine_that_may_have_run_the_call_hands_it_to_no_other, (False, True)),
    (
        60,
        nan_is_zero,
        ledger.test_an_answer_that_cannot_be_staged_is_served_and_poisons_its_rollout,
        (ledger.WITH_NAN,),
    ),
    (80, lookalikes_belong_to_it, ledger.test_two_servers_restore_into_one_directory_and_lookalikes_are_untouched, ()),
    (81, safe_once_admitted, ledger.test_a_held_call_is_in_no_checkpoint_and_its_repetition_finds_its_parent, ()),
    (82, "restore-without-fences", ledger.test_two_servers_restore_into_one_directory_and_lookalikes_are_untouched, ()),
    (83, "parent-consumed", ledger.test_a_held_call_is_in_no_checkpoint_and_its_repetition_finds_its_parent, ()),
    (84, "delete-without-marker-check", ledger.test_a_commit_deletes_only_what_no_server_has_begun, (TWO, "call")),
    (84, "started-without-marker", ledger.test_a_commit_deletes_only_what_no_server_has_begun, (TWO, "held")),
    (
        85,
        "fence-not-cleared",
        ledger.test_what_a_dead_execution_left_at_the_target_goes_and_restored_rows_are_written,
        (),
    ),
    (
        86,
        "ledger-changed-in-checkpoint",
        ledger.test_the_framework_takes_no_ledger_out_of_an_open_checkpoint,
        ("retire",),
    ),
    (
        87,
        "fences-outlive-forget",
        ledger.test_nothing_of_a_forgotten_rollout_is_left_but_the_rows_of_its_last_attempt,
        (),
    ),
    (87, kept_where_nobody_forgets, books.test_without_checkpoints_nothing_is_kept_of_a_rollout_in_memory, (True,)),
    (87, "held-tokens-left", books.test_a_call_that_leaves_while_it_is_held_leaves_no_tokens, (False,)),
    (87, "dead-servers-tokens-left", books.test_what_a_killed_server_had_staged_goes_and_what_a_row_names_stays, ()),
    # The proxy's own promises.
    (0, errors_flattened, proxy.test_an_engines_error_is_passed_on_with_its_retry_after_and_asked_once, (429, True)),
    (
        0,
        losses_told_while_closed,
        gate.test_the_loss_of_an_inference_worker_is_told_once_admission_is_open,
        (True, b""),
    ),
    (0, sessions_take_turns, proxy.test_a_session_keeps_to_its_engine_and_all_engines_have_some, ()),
]
SCENARIOS = {*range(40, 49), 60, *range(80, 88)}


@pytest.mark.parametrize(
    ("bug", "story", "how"),
    [row[1:] for row in STORIES],
    ids=[f"{number}-{bug if isinstance(bug, str) else bug.__name__}" for number, bug, *_ in STORIES],
)
def test_a_story_fails_once_its_bug_is_planted(bug: Bug, story: Callable[..., None], how: tuple[Any, ...]) -> None:
    with planted(bug) if isinstance(bug, str) else put(bug()), pytest.raises(AssertionError):
        story(*how)


def test_every_scenario_of_the_gate_and_the_ledger_is_told_and_has_a_bug() -> None:
    assert {number for number, *_ in STORIES} - {0} == SCENARIOS


@contextmanager
def put(patches: Patches) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patching:
        for owner, name, value in patches:
            patching.setattr(owner, name, value)
        yield
