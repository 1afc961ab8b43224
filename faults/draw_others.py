"""Draws the faults that `faults.draw` does not: stopped processes, broken links, workers, authors, strangers.

As in `faults.draw`, which puts them among the others. Must not know how faults are carried out.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, get_args

from faults import catalogue as faults
from faults.catalogue import EVERYTHING, At, Fault, OnPhase, OnRow, Restart, When
from sim.workload import CONTROLLER

if TYPE_CHECKING:
    from faults.draw import _Drawing as Drawing

Maker = Callable[["Drawing"], Fault | tuple[Fault, ...]]
Kind = tuple[str, str, Maker, float]
ROUTES = (
    ("policy", "completions", 24), ("environment", "run", 10), ("agent", "responses", 10), ("inventory", "add_item", 5),
    ("inventory", "take_item", 5), ("inventory", "verify", 8), ("verifier", "verify", 8), ("worker", "completions", 24),
    ("agent", "agent_sessions", 10), ("inventory", "seed_session", 10),
)  # fmt: skip


def draw_beside(chance: random.Random) -> Fault:
    """Another collector comes, or somebody who has told this one to stop tells it again, since it does not end at once.

    Drawn from a stream of its own, so that it moves no other fault.
    """
    if chance.random() < 0.5:
        return faults.Rival(chance.choice(get_args(faults.RivalDoes)), chance.randint(1, 12))
    open_at = OnRow("collector.checkpoint_opened", chance.randint(1, 2))
    return faults.Signal("SIGTERM", open_at, round(chance.choice((0.001, 0.01, chance.uniform(0.1, 0.5))), 3))


def draw_ungated(chance: random.Random) -> Fault:
    """Somebody makes a mistake in the configuration. Drawn from a stream of its own, too."""
    return faults.Ungated(chance.choice(get_args(faults.UngatedBy)), At(round(chance.uniform(0.0, 2.0), 3)))


def _open(d: Drawing) -> When:
    """Some moment while a checkpoint is open."""
    chance = d.chance
    if chance.random() < 0.6:
        return OnPhase(chance.choice(("preparing", "prepared", "committed")), chance.randint(1, 12))
    return OnRow(chance.choice(("commit.exported", "gate.held", "collector.checkpoint_opened")), chance.randint(1, 4))


def _route(d: Drawing) -> tuple[str, str, int]:
    dst, route, count = d.chance.choice(ROUTES)
    return d.one_of(dst), route, d.chance.randint(1, count)


def _host(d: Drawing) -> Fault:
    return faults.CrashHost(d.chance.choice(("head", "cpu", "gpu")), d.when(), d.restart(whole=0.6))


def _silently(d: Drawing) -> Fault:
    """A server's host is gone, and back before anybody has noticed: who asked it waits, and its state is not there."""
    node = d.chance.choice(("environment", *d.participants))
    return faults.Crash((node,), d.when(), Restart("alone", round(d.chance.uniform(0.01, 0.5), 3)), silent=True)


def _at_message(d: Drawing) -> Fault:
    chance = d.chance
    node = chance.choice(d.nodes)
    side: faults.Side = chance.choice(("sent", "arrived", "answering", "answered"))
    return faults.CrashAtMessage(node, side, chance.randint(1, 120), d.restart(whole=0.5, healing=False))


def _pause(d: Drawing) -> Fault:
    chance = d.chance
    lease_s = d.setup.timeout_s + d.setup.grace_s
    for_s = chance.choice((chance.uniform(0.05, 1.0), chance.uniform(1.0, 5.0), lease_s + chance.uniform(-1.0, 4.0)))
    return faults.Pause(chance.choice(d.nodes), d.when() if chance.random() < 0.5 else _open(d), round(for_s, 3))


def _at_point(d: Drawing) -> Fault:
    point, k = d.point()
    chance = d.chance
    by_s = chance.choice((chance.uniform(0.01, 0.5), chance.uniform(0.5, 4.0), d.overrun()))
    return faults.DelayAtProbe(point, round(max(0.01, by_s), 3), k)


def _disconnect(d: Drawing) -> Fault:
    dst, route, k = _route(d)
    after_s = d.chance.choice((0.0, d.chance.uniform(0.001, 0.01), d.chance.uniform(0.01, 1.5)))
    return faults.Disconnect(dst, route, round(after_s, 4), k, d.chance.choice((1, 1, 2, 5)))


def _slow_reader(d: Drawing) -> Fault:
    dst, route, k = _route(d)
    return faults.SlowReader(dst, route, round(d.chance.uniform(0.01, 0.8), 3), k, d.chance.choice((1, 3, 8)))


def _half_open(d: Drawing) -> Fault:
    one, other = d.chance.choice(d.pairs)
    when = d.when() if d.chance.random() < 0.6 else _open(d)
    return faults.HalfOpen(one, other, when, round(d.chance.choice((0.0, d.chance.uniform(0.1, 6.0))), 3))


def _lease(d: Drawing) -> Fault:
    lease_s = d.setup.timeout_s + d.setup.grace_s + d.chance.uniform(0.0, 3.0)
    phase = d.chance.choice(("preparing", "prepared", "committed", "restoring", "restored"))
    return faults.LeaseExpiry(d.chance.choice(d.participants), phase, round(lease_s, 3), d.chance.randint(1, 2))


def _late_timers(d: Drawing) -> Fault:
    return faults.LateTimers(
        d.chance.choice(d.nodes), d.time(), round(d.chance.uniform(0.2, 4.0), 3), round(d.chance.uniform(0.005, 0.2), 3)
    )


def _not_there(d: Drawing) -> Fault:
    chance = d.chance
    node = CONTROLLER if chance.random() < 0.6 else chance.choice(d.participants)
    return faults.NotThere(node, chance.choice(get_args(faults.Look)), chance.randint(1, 12), chance.choice((1, 2, 20)))


def _bit_flip(d: Drawing) -> tuple[Fault, ...]:
    """A bit flips, and then somebody has to read it."""
    chance = d.chance
    k = chance.randint(2, 3)
    flip = faults.BitFlip(OnRow("collector.published", k), chance.randrange(64), chance.randrange(1 << 16))
    crash = faults.Crash((EVERYTHING,), OnRow("disk.flipped"), Restart("whole", 0.05))
    return (flip, crash) if chance.random() < 0.8 else (flip,)


def _slow_worker(d: Drawing) -> Fault:
    chance = d.chance
    by_s = round(chance.choice((chance.uniform(0.05, 1.0), chance.uniform(1.0, 20.0))), 3)
    k, n, keep_alives = chance.randint(1, 20), chance.choice((1, 2, 6)), chance.choice((0, 1, 3))
    return faults.SlowWorker(by_s, k, n, keep_alives, d.one_of("worker"))


def _stuck_worker(d: Drawing) -> Fault:
    k, n, chunks = d.chance.randint(1, 20), d.chance.choice((1, 1, 2)), d.chance.randint(0, 3)
    return faults.StuckWorker(k, n, chunks, d.one_of("worker"))


def _overload(d: Drawing) -> Fault:
    """Seconds, most often; the pause that is asked for is longer than the agents' own first one."""
    chance = d.chance
    for_s = round(chance.choice((chance.uniform(0.2, 2.0), chance.uniform(2.0, 8.0))), 3)
    return full(d, d.when(), for_s, d.one_of("worker"))


def full(d: Drawing, when: When, for_s: float, worker: str) -> Fault:
    """An inference worker is full, and says so in one of the ways in which engines do."""
    chance = d.chance
    says: faults.AsksIn = chance.choice(get_args(faults.AsksIn))
    pause_s = 0.0
    if says:
        pause_s = chance.randint(1, 5) if says == "retry-after" else round(chance.uniform(1.0, 5.0), 3)
    return faults.Overload(when, for_s, chance.choice(get_args(faults.RefusesWith)), says, float(pause_s), worker)


def _failed_reply(d: Drawing) -> Fault:
    chance = d.chance
    dst, route, k = _route(d)
    by_s = round(chance.choice((0.0, chance.uniform(0.1, 10.0))), 3)
    return faults.FailedReply(dst, route, chance.choice((500, 502, 503, 504)), k, chance.choice((1, 1, 2)), by_s)


def _tool_fails(d: Drawing) -> Fault:
    return faults.ToolFails("inventory", d.chance.randint(1, 10), d.chance.choice((1, 1, 3)))


def _judge_fails(d: Drawing) -> Fault:
    node = d.chance.choice(("inventory", "verifier"))
    return faults.JudgeFails(node, d.chance.choice(("raises", "late")), d.chance.randint(1, 8), d.chance.choice((1, 2)))


def _bad_state(d: Drawing) -> Fault:
    how: faults.StateIs = d.chance.choice(("huge", "unserializable", "raises"))
    return faults.BadState("inventory", how, d.chance.randint(1, 12), d.chance.choice((1, 2, 8)))


def _gym_changed(d: Drawing) -> tuple[Fault, ...]:
    """A gym is changed while everything is down."""
    lost = faults.Crash((EVERYTHING,), OnRow("collector.published", d.chance.randint(1, 2)), Restart("whole", 0.01))
    return lost, faults.GymChanged(d.chance.choice(("inventory", "verifier")), d.chance.randint(1, 3), 1)


def _mislaid(d: Drawing) -> Fault:
    return faults.Mislaid(d.when(), d.chance.random() < 0.7)


def _stranger(d: Drawing) -> tuple[Fault, ...]:
    """A few calls of people who are no part of the gym, often while a checkpoint is open."""
    chance = d.chance
    made: list[Fault] = []
    for _ in range(chance.randint(1, 3)):
        asks: faults.StrangerAsks = chance.choice(get_args(faults.StrangerAsks))
        dst = {"untagged_run": "environment", "malformed": chance.choice(d.participants)}.get(asks, d.policy())
        if asks.startswith("ledger") and not d.policies[1:]:
            asks = "malformed"
        when = _open(d) if asks != "malformed" else At(d.time())
        made.append(faults.Stranger(dst, asks, when, chance.randrange(256)))
    return tuple(made)


def _late_call(d: Drawing) -> Fault | tuple[Fault, ...]:
    """An attempt is given up and retired, its model server restarts, and then a call of it comes once more."""
    chance, policy = d.chance, d.policy()
    k = chance.randint(1, 6)
    late = faults.Duplicate(policy, "completions", k, 8, round(chance.uniform(0.2, 3.0), 3))
    how: faults.Loss = chance.choice(("after", "mid_reply", "hang_after"))
    given_up = faults.Lose("environment", "run", how, chance.randint(1, 4), chance.randint(1, 4))
    if chance.random() < 0.5:
        gone: Fault = faults.Crash(("environment",), OnRow("gate.admitted", k + 1), Restart("alone", 0.05))
    else:
        gone = given_up
    again = faults.Crash((policy,), OnRow("retire.done", chance.randint(1, 12)), Restart("alone", 0.05))
    return late, gone, again


def _left_out(d: Drawing) -> Fault | tuple[Fault, ...]:
    """Restored rows are lost before their first call, and a checkpoint that leaves them out cannot delete what was
    restored of them; the next one has to."""
    chance, policy = d.chance, d.policy()
    if not d.policies[1:]:
        return _bad_state(d)
    lost = faults.Crash((EVERYTHING,), OnRow("collector.published", chance.randint(1, 2)), Restart("whole", 0.01))
    moment: When = OnRow(chance.choice(("collector.restored", "collector.dispatch")), 1)
    if chance.random() < 0.7:
        moment = OnPhase("idle", chance.randint(1, 7), chance.choice(("environment", policy)))
    gone = faults.Crash(("environment",), moment, Restart("alone", 0.02))
    asked = faults.Signal("SIGUSR1", OnRow("collector.lost", chance.randint(1, 3)), round(chance.uniform(0.05, 0.5), 3))
    fails = faults.DiskError(policy, "EIO", 1, chance.choice((2, 6, 20)), "ledger.discard")
    return lost, gone, asked, fails


PLACES: tuple[Kind, ...] = (
    ("processes", "crash of a host", _host, 1.0),
    ("processes", "silent crash", _silently, 1.5),
    ("processes", "crash at a message", _at_message, 1.5),
    ("processes", "pause", _pause, 1.5),
    ("time", "delay at a named point", _at_point, 1.5),
    ("network", "disconnect", _disconnect, 2.0),
    ("network", "slow reader", _slow_reader, 0.5),
    ("network", "half-open links", _half_open, 1.0),
    ("time", "lease expiry", _lease, 1.5),
    ("time", "late timers", _late_timers, 0.7),
    ("disk", "bit flip", _bit_flip, 1.5),
    ("disk", "not there for once", _not_there, 1.0),
)
INFERENCE: tuple[Kind, ...] = (
    ("inference", "slow worker", _slow_worker, 2.0),
    ("inference", "stuck worker", _stuck_worker, 1.0),
    ("inference", "overload", _overload, 1.5),
)
OTHERS: tuple[Kind, ...] = (
    ("others", "failed reply", _failed_reply, 1.0),
    ("others", "tool fails after its effect", _tool_fails, 0.6),
    ("others", "judge fails", _judge_fails, 0.6),
    ("others", "bad state", _bad_state, 1.0),
    ("others", "gym changed", _gym_changed, 0.5),
    ("others", "checkpoints mislaid", _mislaid, 0.5),
    ("others", "stranger", _stranger, 1.6),
    ("others", "late call", _late_call, 0.8),
    ("others", "left out after a restore", _left_out, 0.8),
)
"""Area, kind, how to draw one, weight within the area."""
