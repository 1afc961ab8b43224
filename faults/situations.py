"""Situations: a few faults that belong together, and the setup in which they mean something.

Each is a way into a corner of the protocol that faults drawn one by one hardly ever reach: a call that is retired while
its row is being written, a copy of a commit at a server's next life. Seeds take turns (`situation_of`): every other
seed is put into one of them, each as often as any other, beside a fault or two of its ordinary ones. The other seeds
are left as they are drawn.

Long because each situation has its few lines here. Must not know how faults are carried out, or what must hold.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, get_args

import msgspec

from faults import catalogue as faults
from faults.catalogue import EVERYTHING, At, Fault, OnPhase, OnRow, Restart
from faults.draw_others import full
from faults.plan import Setup
from sim.workload import CONTROLLER, WORKLOADS, workload

if TYPE_CHECKING:
    from faults.draw import _Drawing as Drawing

Faults = tuple[Fault, ...]
ALL = tuple(range(WORKLOADS))
CAPTURED = tuple(number for number in ALL if workload(number).captured)
CAPTURABLE = tuple(number for number in ALL if not workload(number).restarts)
"""Whose sessions are in checkpoints."""
RESTARTING = tuple(number for number in ALL if workload(number).restarts)
"""Whose sessions are in none, and whose verifications are waited for."""
PASSED_ON = tuple(number for number in ALL if workload(number).stream and not workload(number).captured)
"""Streams that reach the agent while they are made."""
OFTEN: Mapping[str, float | None] = {"every_s": 1.3}
QUEUED = tuple(number for number in ALL if workload(number).concurrency < len(workload(number).tasks))
"""In which rows wait for others to end."""
TOOLS = ("add_item", "count_items", "take_item")
BESIDE = (0, 0, 1, 2)
"""How many of its ordinary faults a seed keeps beside its situation: few, or they hide it."""


@dataclass(frozen=True, slots=True)
class Situation:
    """`make` draws its faults. `workloads`: in which it can come about; `setup`: what it needs of the setup."""

    make: Callable[[Drawing], Faults]
    workloads: tuple[int, ...] = ALL
    setup: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.make.__name__.removeprefix("_")


def situation_of(seed: int) -> Situation | None:
    """The one that this seed is put into, if any."""
    return SITUATIONS[seed // 2 % len(SITUATIONS)] if seed % 2 else None


def placed(setup: Setup, situation: Situation | None, chance: random.Random) -> Setup:
    """The setup in which the situation can come about."""
    if situation is None:
        return setup
    return msgspec.structs.replace(setup, workload=chance.choice(situation.workloads), **situation.setup)


def _between(d: Drawing, low: float, high: float) -> float:
    return round(d.chance.uniform(low, high), 3)


def _all_lost(d: Drawing, k: int = 0) -> Fault:
    """Everything dies once there is a checkpoint, and is restored."""
    return faults.Crash(
        (EVERYTHING,), OnRow("collector.published", k or d.chance.randint(1, 2)), Restart("whole", 0.01)
    )


# ------------------------------------------------------------------------------------------------- calls


def _keep_alives(d: Drawing) -> Faults:
    """Every stream begins with keep-alives."""
    by_s, each = _between(d, 0.01, 1.0), d.chance.randint(1, 3)
    return tuple(faults.SlowWorker(by_s, 1, 24, each, worker) for worker in d.workers)


def _broken_off(d: Drawing) -> Faults:
    """Workers are lost in the middle of streams that have begun."""
    how: faults.Loss = d.chance.choice(("mid_reply", "in_frame"))
    k, chunks = d.chance.randint(1, 12), d.chance.randint(1, 3)
    return tuple(faults.Lose(worker, "completions", how, k, 2, chunks) for worker in d.workers)


def _overloaded(d: Drawing) -> Faults:
    """Every worker is full for some seconds, longer than a checkpoint may take, and one is asked for meanwhile."""
    at_s, for_s = _between(d, 0.1, 0.8), _between(d, 1.0, 5.0)
    asked = faults.Signal("SIGUSR1", At(round(at_s + 0.6, 3)))
    return *(full(d, At(at_s), for_s, worker) for worker in d.workers), asked


def _no_answer(d: Drawing) -> Faults:
    """The inference workers die as a gate closes, and their calls have no answer while it is closed, for long."""
    back = Restart("alone", _between(d, 0.0, 0.5))
    long = faults.Delay(EVERYTHING, "commit", 1, 24, _between(d, 0.3, 1.0), 0.0)
    closes = OnPhase("preparing", d.chance.randint(1, 2), d.policy())
    gone = [faults.Crash((each,), closes, back) for each in d.workers]
    slow = [faults.SlowWorker(_between(d, 0.1, 0.6), 1, 30, node=each) for each in d.workers]
    return *slow, *gone, long


def _not_staged(d: Drawing) -> Faults:
    """Tokens of a call cannot be staged."""
    chance = d.chance
    step = chance.choice(("files.create", "files.write", "files.fsync"))
    found = [
        faults.DiskError(policy, chance.choice(("ENOSPC", "EIO")), chance.randint(1, 10), chance.choice((1, 2)), step)
        for policy in d.policies
    ]
    return tuple(found)


def _not_undone(d: Drawing) -> Faults:
    """A call's row stands and is not durable, and cannot be cut off again either."""
    return tuple(
        faults.DiskError(policy, "EIO", d.chance.randint(1, 8), d.chance.choice((1, 2)), "ledger.fsync", calls=3)
        for policy in d.policies
    )


def _on_the_wire(d: Drawing) -> Faults:
    """Answers are long on their way, and a checkpoint comes right after another: of calls that were parked in the
    first, some are answered by the second."""
    when = OnRow("collector.checkpoint_closed", d.chance.randint(1, 2))
    late_s = _between(d, 0.1, 0.6)
    slow = [faults.Delay(policy, "completions", 1, 60, 0.0, late_s) for policy in d.policies]
    return *slow, faults.Signal("SIGUSR1", when, _between(d, 0.02, 0.2))


def _asked_in_checkpoint(d: Drawing) -> Faults:
    """A checkpoint is asked for while one is being taken."""
    when = d.chance.choice(("commit.exported", "collector.checkpoint_opened", "collector.scope", "admission.closed"))
    return faults.Signal("SIGUSR1", At(_between(d, 0.1, 0.8))), faults.Signal("SIGUSR1", OnRow(when, 1))


def _gone_waiting(d: Drawing) -> Faults:
    """An agent goes on for a while when the model servers have closed, and dies with its calls waiting there."""
    slow = [faults.Delay("inventory", each, 1, 30, 0.0, _between(d, 0.2, 0.5)) for each in TOOLS]
    late = faults.Delay("agent", "prepare", 1, 8, _between(d, 0.6, 1.2), 0.0)
    gone = OnPhase("preparing", d.chance.randint(1, 2), "agent")
    return *slow, late, faults.Crash(("agent",), gone, Restart("alone", _between(d, 0.0, 0.3)))


def _late_reply(d: Drawing) -> Faults:
    """Tools are so slow that a checkpoint gives their rows up, whose replies come when the next attempt is at work."""
    route = d.chance.choice(("add_item", "count_items", "take_item", "verify", "seed_session"))
    slow = faults.Delay("inventory", route, d.chance.randint(1, 3), d.chance.choice((1, 3)), 0.0, _between(d, 1.5, 4.0))
    return slow, faults.Delay("environment", "run", 1, 24, 0.0, _between(d, 0.5, 3.0))


def _judged_twice(d: Drawing) -> Faults:
    """Replies of verifications that have effects are lost, and copies of the calls come while they run, or later."""
    lost: faults.Loss = d.chance.choice(("after", "mid_reply"))
    return (
        faults.Lose("inventory", "verify", lost, d.chance.randint(1, 4), d.chance.randint(1, 3)),
        faults.Duplicate("inventory", "verify", 1, 24, _between(d, 0.0, 0.4)),
    )


def _broken_tool(d: Drawing) -> Faults:
    """Tools break off after their effect while a checkpoint is being taken, and then their sessions are restored; or
    they have had it, and their replies are on the wire."""
    slow = [faults.Delay("inventory", each, 1, 30, _between(d, 0.2, 0.5), _between(d, 0.0, 0.5)) for each in TOOLS]
    return *slow, faults.ToolFails("inventory", d.chance.randint(2, 4), 2), _all_lost(d, 1)


def _copied(d: Drawing) -> Faults:
    """Calls come twice, and the disk fails now and then as the row of one, or of its copy, is to be written."""
    found: list[Fault] = []
    for each in d.policies:
        found.append(faults.Duplicate(each, "completions", 1, 60, _between(d, 0.01, 0.3)))
        found += [faults.DiskError(each, "EIO", k, 1, "ledger.check") for k in d.chance.sample(range(2, 40), 8)]
    return tuple(found)


# ------------------------------------------------------------------------------------------------- rows


def _retired_in_write(d: Drawing) -> Faults:
    """Rows are written slowly; their callers leave, and a retire comes twice meanwhile."""
    policy = d.policy()
    step = d.chance.choice(("ledger.write", "ledger.fsync", "ledger.check"))
    gone = OnRow("gate.started", d.chance.randint(1, 14))
    return (
        faults.SlowDisk(policy, _between(d, 0.1, 1.5), 1, 60, step),
        faults.Crash(("environment",), gone, Restart("alone", _between(d, 0.0, 0.05))),
        faults.Duplicate(policy, "retire", 1, 20, _between(d, 0.0, 0.3)),
    )


def _survivors(d: Drawing, late_s: float) -> Faults:
    """The controller dies; its heir's retire reaches one model server late, where copies of calls are at work."""
    _, late = d.chance.sample(d.policies, 2)
    when = OnRow("gate.admitted", d.chance.randint(1, 14))
    return (
        faults.Crash((CONTROLLER,), when, Restart("alone", _between(d, 0.0, 0.3))),
        faults.Duplicate(late, "completions", 1, 24, when=OnRow("retire.marked", 2)),
        faults.Delay(late, "retire", 1, 30, late_s, 0.0),
    )


def _fenced(d: Drawing) -> Faults:
    """One model server fences attempts whose calls are at work on the other, which may not see each fence at once."""
    unseen = [faults.NotThere(policy, "exists", 1, 400) for policy in d.policies]
    return *_survivors(d, _between(d, 0.3, 3.0)), *unseen


def _locked(d: Drawing) -> Faults:
    """... and holds the lock for long, so that rows wait for it when their calls are retired: again and again."""
    step, late_s = d.chance.choice(("ledger.fence", "ledger.remove")), _between(d, 0.4, 1.2)
    slow = [faults.SlowDisk(policy, _between(d, 1.0, 2.0), 1, 60, step) for policy in d.policies]
    again = [
        faults.Crash((CONTROLLER,), OnRow("gate.admitted", d.chance.randint(low, low + 8)), Restart("alone", 0.05))
        for low in (20, 36, 52)
    ]
    late = [faults.Duplicate(policy, "completions", 1, 80, _between(d, 0.3, 1.2)) for policy in d.policies]
    return (*_survivors(d, late_s), *slow, *again, *late)


def _failed_before(d: Drawing) -> Faults:
    """First attempts fail, so that nobody retires them, and the second are restored."""
    chance = d.chance
    bad: Fault = chance.choice((
        faults.JudgeFails("inventory", "raises", 1, 3),
        faults.ToolFails("inventory", chance.randint(1, 3), 3),
        faults.FailedReply("agent", "responses", 500, chance.randint(1, 3), 3),
    ))  # fmt: skip
    return bad, _all_lost(d, chance.choice((1, 2, 2)))


def _poisoned(d: Drawing) -> Faults:
    """A restored attempt's rows cannot be written, and everything dies again: there is but one checkpoint."""
    chance = d.chance
    bad = [
        faults.DiskError(each, "EIO", chance.randint(4, 9), chance.randint(10, 30), "tokens.rename")
        for each in d.policies
    ]
    again = faults.Crash((EVERYTHING,), OnRow("gate.withdrawn", chance.randint(3, 6)), Restart("whole", 0.01))
    late = faults.Crash((EVERYTHING,), OnRow("gate.row", chance.randint(9, 14)), Restart("whole", 0.01))
    lost = chance.choice((_all_lost(d, 1), late, late))
    return faults.Signal("SIGUSR1", At(_between(d, 0.5, 1.0))), lost, *bad, again


# ------------------------------------------------------------------------------------------------- restores


def _gone_on(d: Drawing) -> Faults:
    """The rows of the only checkpoint go on for some calls, and then everything dies; and once more."""
    first = d.chance.randint(8, 12)
    lost = [
        faults.Crash((EVERYTHING,), OnRow("gate.row", k), Restart("whole", 0.01))
        for k in (first, first + d.chance.randint(2, 5))
    ]
    return faults.Signal("SIGUSR1", At(_between(d, 0.4, 1.0))), *lost


def _left_out(d: Drawing) -> Faults:
    """Restored rows are lost before their first call; a checkpoint leaves them out and cannot delete what was restored
    of them, and another one follows before they are retired."""
    return (
        _all_lost(d, 1),
        faults.Crash(("environment",), OnPhase("idle", 1, "environment"), Restart("alone", 0.02)),
        faults.Signal("SIGUSR1", OnRow("collector.lost", d.chance.randint(1, 3)), _between(d, 0.002, 0.02)),
        *(faults.DiskError(policy, "EIO", 1, d.chance.choice((2, 8)), "ledger.discard") for policy in d.policies),
    )


def _dies_restored(d: Drawing) -> Faults:
    """An environment dies between a restore and its first `/run`, with episodes whose agents have ended already."""
    return (
        _all_lost(d),
        faults.Crash(("environment",), OnRow("collector.restored"), Restart("alone", _between(d, 0.0, 0.02))),
        faults.Delay(EVERYTHING, "resume", 1, 60, _between(d, 0.05, 0.1), 0.0),
        faults.Delay(EVERYTHING, "verify", 1, 24, 0.0, _between(d, 0.4, 0.9)),
    )


def _over_restored(d: Drawing) -> Faults:
    """Episodes whose agents have ended already are restored, and end without another model call: a checkpoint comes
    while they are there, and one when they are not."""
    asked = faults.Signal("SIGUSR1", OnRow("collector.restored"), _between(d, 0.8, 1.3))
    return _all_lost(d), faults.Delay(EVERYTHING, "verify", 1, 24, 0.0, _between(d, 0.5, 0.9)), asked


def _waits_at_restore(d: Drawing) -> Faults:
    """Model servers die with agent and controller; copies of calls of their last life come while they restore, and
    wait. Some imports outlast their restore. Where nobody can retire the calls, leases end it."""
    chance, last = d.chance, "ledger.import" if d.policies[1:] else "records.read"
    found: list[Fault] = []
    if chance.random() < 0.8:
        found += [faults.Lose(each, "retire", "refuse", 1, 400) for each in d.participants]
    if chance.random() < 0.7:
        found += [faults.SlowDisk(policy, _between(d, 2.0, 4.5), 1, 2, last) for policy in d.policies]
    for policy in d.policies:
        found.append(faults.SlowDisk(policy, _between(d, 0.1, 1.0), 1, 4, "records.read_manifest"))
        found.append(faults.Duplicate(policy, "completions", 1, 60, when=OnPhase("restoring", 1, policy)))
    gone = OnRow("collector.checkpoint_closed", 1)
    return faults.Crash((*d.policies, "agent", CONTROLLER), gone, Restart("alone", 0.0)), *found


def _lapsed(d: Drawing) -> Faults:
    """What everybody has restored is resumed so late that leases may have ended it."""
    return _all_lost(d), faults.DelayAtProbe("collector.restore_installed", _between(d, 3.0, 6.0))


def _changed(d: Drawing) -> Faults:
    """A gym is changed while everything is down, and will not have the first session that a checkpoint holds."""
    return _all_lost(d), faults.GymChanged("inventory", 1, 1)


def _mislaid(d: Drawing) -> Faults:
    """Somebody has moved the run's checkpoints away when everything comes back."""
    asked = faults.Signal("SIGUSR1", At(_between(d, 0.2, 0.8)))
    return asked, faults.Mislaid(OnRow("collector.checkpoint_closed", 1), d.chance.random() < 0.9)


def _read_late(d: Drawing) -> Faults:
    """A thread still reads what is restored when its restore has been given up, by everybody or by its lease."""
    node, times = d.chance.choice(d.participants), d.chance.randint(1, 2)
    found = _all_lost(d), faults.SlowDisk(node, _between(d, 1.4, 9.0), 1, times, "records.read")
    cut = faults.Lose(node, d.chance.choice(("retire", "resume")), "refuse", 1, d.chance.choice((2, 400)))
    return (*found, cut) if d.chance.random() < 0.5 else found


def _closed_late(d: Drawing) -> Faults:
    """Sessions are closed after a checkpoint that holds them, and everything dies; copies of the calls that closed them
    come when the sessions go on."""
    lost = faults.Crash((EVERYTHING,), OnRow("session.closed", d.chance.randint(1, 6)), Restart("whole", 0.01))
    again = faults.Duplicate("inventory", "close_session", 1, 24, when=OnRow("collector.restored", 1))
    return lost, again, faults.Delay("inventory", "close_session", 1, 60, 0.0, _between(d, 0.1, 0.5))


def _rotten(d: Drawing) -> Faults:
    """A bit flips in the records of the second checkpoint, with most rows in it, and somebody has to read them."""
    chance = d.chance
    asked = [faults.Signal("SIGUSR1", At(_between(d, low, low + 0.3))) for low in (0.2, 0.7)]
    bit = 8 * chance.randrange(1 << 13) + chance.randrange(3)  # a low one: JSON of other content, as often as not
    flip = faults.BitFlip(OnRow("collector.published", 2), chance.choice((2, 2, 4)), bit)
    return *asked, flip, faults.Crash((EVERYTHING,), OnRow("disk.flipped"), Restart("whole", 0.05))


def _not_there(d: Drawing) -> Faults:
    """A network file system says once of each name that there is nothing, from some time on; two checkpoints are taken,
    and then everything dies and is restored."""
    chance = d.chance
    looks = chance.sample(get_args(faults.Look), chance.randint(3, 5))
    nodes = (CONTROLLER, *d.policies, chance.choice(d.participants))
    found = [faults.NotThere(node, look, chance.randint(1, 6), 400) for node in dict.fromkeys(nodes) for look in looks]
    asked = [faults.Signal("SIGUSR1", At(_between(d, low, low + 0.3))) for low in (0.2, 0.7)]
    return *found, *asked, _all_lost(d, 2)


# ------------------------------------------------------------------------------------------------- checkpoints


def _export_again(d: Drawing) -> Faults:
    """An export fails, and its commit comes again before the checkpoint is given up."""
    chance = d.chance
    node = chance.choice(d.participants)
    bad: Fault = faults.BadState("inventory", chance.choice(("raises", "unserializable")), chance.randint(1, 6), 2)
    if node != "inventory" or chance.random() < 0.5:
        step = chance.choice(("records.create", "records.write", "records.fsync", "records.rename"))
        bad = faults.DiskError(node, chance.choice(("EIO", "ENOSPC")), chance.randint(1, 3), 1, step)
    again = faults.Duplicate(node, "commit", 1, 12, _between(d, 0.0, 0.5))
    return bad, again, faults.Delay(node, "resume", 1, 30, _between(d, 0.3, 1.0), 0.0)


def _commit_again(d: Drawing) -> Faults:
    """A server dies when it has committed; copies of prepare and commit come at its next life."""
    node = d.chance.choice(d.participants)
    return (
        faults.Crash((node,), OnPhase("committed", 1, node), Restart("alone", _between(d, 0.0, 0.1))),
        faults.Duplicate(node, "prepare", 1, 1, when=OnRow("net.listening", len(d.servers) + 1)),
        faults.Duplicate(node, "commit", 1, 1, when=OnPhase("prepared", 3, node)),
    )


def _slow_write(d: Drawing) -> Faults:
    """A server's write takes so long that its checkpoint is given up and resumed meanwhile."""
    step = d.chance.choice(("records.create", "records.record", "records.write", "records.fsync", "records.rename"))
    node = d.chance.choice(("environment", "agent") if step == "records.record" else d.participants)  # who has records
    asked = faults.Signal("SIGUSR1", At(_between(d, 0.2, 0.6)))
    return asked, faults.SlowDisk(node, _between(d, 1.5, 2.2), 1, 1, step)


def _given_up(d: Drawing) -> Faults:
    """Rows of the only checkpoint are lost and started over, and then everything dies."""
    gone = OnRow("collector.checkpoint_closed", 1)
    return (
        faults.Signal("SIGUSR1", At(_between(d, 0.1, 0.6))),
        faults.Crash(("environment",), gone, Restart("alone", _between(d, 0.0, 0.05))),
        faults.Crash((EVERYTHING,), OnRow("collector.dispatch", d.chance.randint(9, 14)), Restart("whole", 0.01)),
    )


def _uncertain(d: Drawing) -> Faults:
    """The pointer to a checkpoint, or what the checkpoint consists of, is written and cannot be made durable."""
    # The first of these steps is at the start, then there are two for each checkpoint, of which the pointer's is last.
    k = d.chance.choice((2, 3, 3, 3, 5))
    asked = [faults.Signal("SIGUSR1", At(_between(d, low, low + 0.3))) for low in (0.1, 0.5)]
    return *asked, faults.DiskError(CONTROLLER, "EIO", k, 1, "files.sync_dir")


def _wall_clock(d: Drawing) -> Faults:
    """A wall clock is set back while a lease runs, and the controller dies."""
    node = d.chance.choice(d.participants)
    return (
        faults.ClockJump(node, -_between(d, 1000.0, 5000.0), OnPhase("prepared", 1, node)),
        faults.Crash((CONTROLLER,), OnPhase("committed", 1, node), Restart("alone", _between(d, 0.0, 0.3))),
    )


def _torn_logs(d: Drawing) -> Faults:
    """The controller dies again and again with lines of its logs unsynced, sometimes with its host."""
    crashes = [faults.CrashAtStep(CONTROLLER, d.chance.randint(3, 20), "log.fsync") for _ in range(4)]
    lost = [faults.Crash((CONTROLLER,), OnRow("collector.row", k), silent=True) for k in (d.chance.randint(1, 2), 4, 5)]
    return *crashes, *lost


def _failed_syncs(d: Drawing) -> Faults:
    """Logs fail to be synced, and go on; then the controller dies, and its heir reads what was saved of them."""
    chance = d.chance
    lost = [faults.DiskError(CONTROLLER, "EIO", k, 1, "log.fsync") for k in chance.sample(range(5, 20), 5)]
    when = chance.choice(
        (OnRow("collector.row", chance.randint(2, 8)), OnRow("collector.dispatch", chance.randint(6, 14)))
    )
    gone = chance.choice((((CONTROLLER,), Restart("alone", 0.01)), ((EVERYTHING,), Restart("whole", 0.01))))
    return *lost, faults.Crash(gone[0], when, gone[1])


# ------------------------------------------------------------------------------------------------- nobody answers


def _silent(d: Drawing) -> Faults:
    """A server hangs in the middle of the first checkpoint, and the run is told to stop."""
    when = OnPhase(d.chance.choice(("preparing", "prepared", "committed")), d.chance.randint(1, 4))
    hangs = faults.Pause(d.chance.choice(d.participants), when, 60.0)
    return faults.Signal("SIGUSR1", At(_between(d, 0.1, 0.4))), hangs, faults.Signal("SIGTERM", when)


def _nobody_there(d: Drawing) -> Faults:
    """The environment dies as the first rows are sent, and is gone for a while; others wait to be sent."""
    when = OnRow("collector.dispatch", d.chance.randint(1, 4))
    return (faults.Crash(("environment",), when, Restart("alone", _between(d, 0.5, 3.0))),)


SITUATIONS: tuple[Situation, ...] = (
    Situation(_keep_alives, PASSED_ON),
    Situation(_left_out, CAPTURED, OFTEN),
    Situation(_overloaded, ALL, {**OFTEN, "timeout_s": 1.5}),
    Situation(_broken_off, PASSED_ON),
    Situation(_not_staged, CAPTURED),
    Situation(_not_undone, CAPTURED, OFTEN),
    Situation(_no_answer, ALL, OFTEN),
    Situation(_poisoned, CAPTURED, {"every_s": None}),
    Situation(_on_the_wire, ALL, OFTEN),
    Situation(_asked_in_checkpoint, tuple(number for number in ALL if number % 4 == 0), {"every_s": None}),
    Situation(_gone_waiting, ALL, OFTEN),
    Situation(_late_reply, ALL, {**OFTEN, "timeout_s": 1.5}),
    Situation(_judged_twice, RESTARTING),
    Situation(_broken_tool, ALL, OFTEN),
    Situation(_retired_in_write, CAPTURED),
    Situation(_fenced, CAPTURED),
    Situation(_locked, CAPTURED),
    Situation(_failed_before, CAPTURED, OFTEN),
    Situation(_gone_on, CAPTURED, {"every_s": None}),
    Situation(_dies_restored, ALL, OFTEN),
    Situation(_over_restored, CAPTURED, OFTEN),
    Situation(_waits_at_restore, (*CAPTURABLE, *CAPTURED), {**OFTEN, "timeout_s": 1.5, "grace_s": 2.0}),
    Situation(_lapsed, ALL, {**OFTEN, "timeout_s": 1.5, "grace_s": 2.0}),
    Situation(_read_late, CAPTURABLE, {**OFTEN, "timeout_s": 1.5, "grace_s": 2.0}),
    Situation(_closed_late, CAPTURABLE, OFTEN),
    Situation(_rotten, CAPTURABLE, {"every_s": None, "keep": 2}),
    Situation(_not_there, (*ALL, *CAPTURED), OFTEN),
    Situation(_changed, CAPTURABLE, OFTEN),
    Situation(_mislaid, ALL, {"every_s": None}),
    Situation(_export_again, ALL, OFTEN),
    Situation(_commit_again, ALL, OFTEN),
    Situation(_uncertain, ALL, OFTEN),
    Situation(_wall_clock, ALL, OFTEN),
    Situation(_torn_logs, ALL),
    Situation(_slow_write, ALL, {**OFTEN, "timeout_s": 1.5}),
    Situation(_given_up, ALL, {"every_s": None}),
    Situation(_copied, CAPTURED, OFTEN),
    Situation(_silent, ALL, {"every_s": None, "timeout_s": 1.5}),
    Situation(_nobody_there, QUEUED),
    Situation(_failed_syncs, ALL, {"every_s": 1.3, "timeout_s": 8.0}),
)
"""In the order in which seeds take turns."""
