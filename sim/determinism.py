"""One deterministic run, and the death of tasks. With `sim.quicker` all that touches trio's private names.

Two private switches make trio's scheduling a function of the seed: `_run._r` and `_ALLOW_DETERMINISTIC_SCHEDULING`.
Tasks are ordered by `Task._counter`, the order of their creation. `check_private_names` fails loudly when a new trio
has moved any of it.

The dead: `Reaper` ends a tree of tasks at one virtual instant whatever they do about it. Each blocked task gets the
exception through its abort function, so shields do not count; each runnable one finds it where its result would be.
One that has swallowed it `PATIENCE` times is buried: its coroutine is replaced by an empty one and never runs again.

Must not know nodes, networks or faults.
"""

from __future__ import annotations

import contextvars
import ctypes
import gc
import inspect
import math
import types
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, NoReturn, Protocol, TypeVar, cast

import outcome
import trio
from trio._core import _run
from trio.lowlevel import Abort, Task

from sim import quicker
from sim.clock import Deadlock, Livelock, Stuck, VirtualClock
from sim.guard import guarded
from sim.streams import stream

T = TypeVar("T")

_IO_MANAGER: Any = vars(_run)["TheIOManager"]
PATIENCE = 50
"""Times that a dying task may swallow its death before it is buried."""
BATCHES_MAX = 200_000
"""Turns of the scheduler at one instant of virtual time that count as a livelock."""
TURNS_PER_LOOK = 64
"""Turns of the scheduler between two looks at the operating system's events."""
COLLECT_TURNS = 8_000
"""Turns of the scheduler after which a long run collects garbage: each life of a node leaves cycles of some 30 kB."""
_TASKS_NAMED = 20


class Policy(Protocol):
    """Decides which runnable tasks run, and in which order."""

    def shuffle(self, batch: list[Task]) -> None:
        """Reorder `batch` in place. It arrives in order of creation and has two or more; the last one runs first.

        Those that are taken out of it are held back: they are in the next batch again. One at least must stay.
        """
        ...


class Sieve(Protocol):
    """Takes runnable tasks out of a batch and keeps them; they run again by `run_again`."""

    @property
    def active(self) -> bool: ...

    def sift(self, batch: list[Task]) -> None: ...


def run_again(tasks: list[Task]) -> None:
    """Tasks that a sieve has kept are runnable again, in this order."""
    _run.GLOBAL_RUN_CONTEXT.runner.runq.extend(tasks)


class RunStopped(BaseException):
    """Thrown into whatever still runs when a stuck run is taken down."""


def check_private_names() -> None:
    """Raises `AssertionError` naming what this file relies on and this trio does not have."""
    source = _run.unrolled_run.__code__
    for name in ("_r", "_ALLOW_DETERMINISTIC_SCHEDULING", "_counter", "runq"):
        in_loop = name in source.co_names or any(name in getattr(c, "co_names", ()) for c in source.co_consts)
        assert in_loop, f"trio {trio.__version__}: its loop no longer uses {name}; mend sim/determinism.py"
    for name in ("_r", "_ALLOW_DETERMINISTIC_SCHEDULING"):
        assert hasattr(_run, name), f"trio {trio.__version__}: no trio._core._run.{name}; mend sim/determinism.py"
    assert hasattr(_IO_MANAGER, "get_events"), f"trio {trio.__version__}: no get_events; mend sim/determinism.py"
    for name in ("_counter", "_abort_func", "_next_send", "_next_send_fn", "_attempt_abort", "_activate_cancel_status"):
        assert hasattr(Task, name), f"trio {trio.__version__}: no Task.{name}; mend sim/determinism.py"


async def park() -> NoReturn:
    """Wait for ever; only cancellation or the reaper ends it."""
    await trio.lowlevel.wait_task_rescheduled(lambda _: Abort.SUCCEEDED)
    raise AssertionError("a parked task was woken")


def tree(root: Task) -> list[Task]:
    """`root` and every living task below it, in order of creation."""
    found, todo = [root], [root]
    while todo:
        for nursery in todo.pop().child_nurseries:
            children = nursery.child_tasks
            found.extend(children)
            todo.extend(children)
    return sorted(found, key=lambda task: task._counter)


def is_alive(task: Task) -> bool:
    """Whether the task has not exited yet."""
    return task.parent_nursery is not None and task in task.parent_nursery.child_tasks


class Reaper:
    """Ends trees of tasks. `step` is called before every batch while `active`."""

    def __init__(self) -> None:
        self._groups: list[tuple[Task, BaseException, dict[Task, int], Callable[[], object] | None]] = []
        self.burials = 0
        """Tasks that would not die by exception. Each leaks what it refers to: see `_bury`."""

    @property
    def active(self) -> bool:
        return bool(self._groups)

    def condemn(self, root: Task, death: BaseException, done: Callable[[], object] | None = None) -> None:
        """End `root` and all below it, beginning now; `done` is called when none is left, at this instant still.

        The task that is running goes on until it waits next. `death` names the exception type and its arguments.
        """
        self._groups.append((root, death, {}, done))
        self.step()

    def step(self) -> None:
        """Strike every condemned task once."""
        running = trio.lowlevel.current_task() if trio.lowlevel.in_trio_task() else None
        finished = []
        for group in list(self._groups):
            root, death, strikes, _ = group
            if not is_alive(root):
                finished.append(group)
                continue
            for task in tree(root):
                if task is not running:
                    self._strike(task, death, strikes)
        for group in finished:
            self._groups.remove(group)
            if group[3] is not None:
                group[3]()

    def _strike(self, task: Task, death: BaseException, strikes: dict[Task, int]) -> None:
        if task.coro.cr_code is _corpse.__code__ or _is_leaving_nursery(task):
            return
        is_leaf = not any(nursery.child_tasks for nursery in task.child_nurseries)
        runnable = task._next_send_fn is not None
        if is_leaf or runnable or task._abort_func is not None:
            strikes[task] = strikes.get(task, 0) + 1
        unborn = runnable and task._next_send is None
        if unborn or (is_leaf and strikes[task] > PATIENCE):
            self._bury(task)
        elif task._abort_func is not None:
            task._attempt_abort(lambda: _raise(death))
        elif runnable and isinstance(task._next_send, outcome.Outcome):
            task._next_send = outcome.Error(_copy(death))

    def _bury(self, task: Task) -> None:
        runnable = task._next_send_fn is not None
        if task._abort_func is not None:
            task._abort_func(lambda: _raise(RunStopped()))
            task._abort_func = None
        old, task.coro = task.coro, cast("types.CoroutineType[Any, outcome.Outcome[object], Any]", _corpse())
        if runnable and task._next_send is None:
            _discard(old)
        else:
            # Never resumed and never freed: freeing a coroutine throws GeneratorExit into it, and one that swallows
            # everything would then spin for ever, since outside the run its waits fail at once.
            self.burials += 1
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(old))
        _leave_scopes(task)
        if runnable:
            task._next_send_fn, task._next_send = task.coro.send, None
        else:
            trio.lowlevel.reschedule(task, None)  # type: ignore[arg-type]  # a fresh coroutine takes only None


def _is_leaving_nursery(task: Task) -> bool:
    """It was woken to close a nursery whose children are all gone: trio does not expect an exception just there."""
    return task._next_send_fn is not None and bool(task._child_nurseries) and task._child_nurseries[-1]._closed


async def _corpse() -> None:
    """What runs instead of a buried task."""


def _discard(coro: types.CoroutineType[Any, Any, Any]) -> None:
    """Close a coroutine that never ran, and the one that anyio wrapped in it."""
    frame = coro.cr_frame
    inner = getattr(frame.f_locals.get("self"), "_coro", None) if frame is not None else None
    coro.close()
    if inspect.iscoroutine(inner):
        inner.close()


def _leave_scopes(task: Task) -> None:
    """Close the cancel scopes that a buried task never will: their deadlines must not hold up or move the clock."""
    task._child_nurseries.clear()
    nursery = task.parent_nursery
    outer = nursery._cancel_status if nursery is not None else None
    status = task._cancel_status
    task._activate_cancel_status(outer)
    while status is not outer and status is not None:
        parent = status.parent
        status._scope.deadline = math.inf
        status.close()
        if parent is None:
            break
        status = parent


def _copy(death: BaseException) -> BaseException:
    return type(death)(*death.args)


def _raise(death: BaseException) -> NoReturn:
    raise _copy(death)


class _Scheduler:
    """Stands in for trio's random object: called once per batch."""

    def __init__(
        self, seed: int, clock: VirtualClock, reaper: Reaper, policy: Policy | None, sieve: Sieve | None
    ) -> None:
        self._sieve = sieve
        self._random = stream(seed, "schedule")
        self._clock = clock
        self._reaper = reaper
        self._policy = policy
        self._jumps = -1
        self._batches = 0
        self._turns = 0

    def shuffle(self, batch: list[Task]) -> None:
        self._turns += 1
        if self._turns % COLLECT_TURNS == 0:
            gc.collect()  # at the same turn in every process, so that a finalizer runs at the same moment
        if self._reaper.active:
            self._reaper.step()
        if self._sieve is not None and self._sieve.active:
            self._sieve.sift(batch)
        if self._jumps != self._clock.jumps:
            self._jumps, self._batches = self._clock.jumps, 0
        self._batches += 1
        if self._batches == BATCHES_MAX and self._clock.stall is not None:
            names = ", ".join(task.name for task in batch[:_TASKS_NAMED])
            self._clock.stall(Livelock(f"{BATCHES_MAX} turns at {self._clock.current_time():.6f} s: {names}"))
        if batch:
            self._clock.progress()
        if len(batch) > 1:
            if self._policy is None or self._reaper.active:  # nobody is held back from dying
                self._random.shuffle(batch)
            else:
                self._choose(self._policy, batch)

    def _choose(self, policy: Policy, batch: list[Task]) -> None:
        runnable = list(batch)
        policy.shuffle(batch)
        assert batch, "a schedule must let somebody run"
        if len(batch) < len(runnable):
            now = set(batch)
            _run.GLOBAL_RUN_CONTEXT.runner.runq.extend(task for task in runnable if task not in now)

    def random(self) -> float:
        raise AssertionError("trio schedules by its other path: _ALLOW_DETERMINISTIC_SCHEDULING is off")


def _seldom(ask: Callable[[Any, float], Any], clock: VirtualClock) -> Callable[[Any, float], Any]:
    """Asks the operating system for events now and then only: nothing in a run waits for any but abandoned generators,
    and asking costs as much as a turn of the scheduler. While nothing can run, each time."""
    turns = 0

    def get_events(manager: Any, timeout: float) -> Any:
        nonlocal turns
        turns += 1
        return ask(manager, timeout) if clock.idle or not turns % TURNS_PER_LOOK else []

    return get_events


def run_deterministic(
    async_fn: Callable[[], Awaitable[T]],
    seed: int,
    clock: VirtualClock,
    *,
    policy: Policy | None = None,
    reaper: Reaper | None = None,
    sieve: Sieve | None = None,
    guard: bool = True,
) -> T:
    """Run `async_fn` on trio so that everything that happens follows from `seed`; return its result.

    Garbage collection is off meanwhile (a finalizer must not run at an arbitrary moment), real clocks and real chance
    raise (`guard`), and all of it is as before afterwards.

    Raises:
        Deadlock, HorizonReached, Livelock: the run could not go on; every task was ended first.
        Anything that `async_fn` raises.
    """
    check_private_names()
    quicker.check()
    reaper = Reaper() if reaper is None else reaper
    with ExitStack() as stack:
        for name in ("_r", "_ALLOW_DETERMINISTIC_SCHEDULING"):
            stack.callback(setattr, _run, name, getattr(_run, name))
        setattr(_run, "_r", _Scheduler(seed, clock, reaper, policy, sieve))  # noqa: B010 - another type on purpose
        setattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)  # noqa: B010 - declared Final
        stack.callback(setattr, _IO_MANAGER, "get_events", _IO_MANAGER.get_events)
        setattr(_IO_MANAGER, "get_events", _seldom(_IO_MANAGER.get_events, clock))  # noqa: B010 - as above
        if gc.isenabled():
            gc.disable()
            stack.callback(gc.enable)
        quicker.install(stack)
        if guard:
            stack.enter_context(guarded())
        clock.hold = lambda: reaper.active
        return trio.run(_root, async_fn, clock, reaper, clock=clock)


async def _root(async_fn: Callable[[], Awaitable[T]], clock: VirtualClock, reaper: Reaper) -> T:
    """Runs `async_fn` in a child and waits where a stall can reach it, however the child is shielded."""
    root = trio.lowlevel.current_task()
    quicker.forget_instruments()
    result: list[outcome.Outcome[T]] = []
    waiting = True

    def wake(error: BaseException | None) -> None:
        nonlocal waiting
        if waiting:
            waiting = False
            trio.lowlevel.reschedule(root, outcome.Value(None) if error is None else outcome.Error(error))

    def stall(stuck: Stuck) -> None:
        if isinstance(stuck, Deadlock):
            stuck = Deadlock(f"{stuck}; blocked: {_where_all(root)}")
        wake(stuck)

    def give_up(_: object) -> Abort:
        nonlocal waiting
        waiting = False
        return Abort.SUCCEEDED

    async def body() -> None:
        try:
            result.append(outcome.Value(await async_fn()))
        except BaseException as exc:
            result.append(outcome.Error(exc))
        wake(None)

    clock.stall, clock.fault = stall, wake
    async with trio.open_nursery() as nursery:
        contextvars.Context().run(nursery.start_soon, body)
        try:
            await trio.lowlevel.wait_task_rescheduled(give_up)
        except BaseException as exc:
            result[:] = [outcome.Error(exc)]
            for task in sorted(nursery.child_tasks, key=lambda task: task._counter):
                reaper.condemn(task, RunStopped())
            with trio.CancelScope(shield=True):
                while nursery.child_tasks:
                    await trio.lowlevel.cancel_shielded_checkpoint()
            result[1:] = []
    while reaper.active:
        await trio.lowlevel.cancel_shielded_checkpoint()
    return result[0].unwrap()


def _where_all(root: Task) -> str:
    tasks = [task for task in tree(root) if task is not root]
    lines = [f"{task.name} ({_where(task)})" for task in tasks[:_TASKS_NAMED]]
    return "; ".join(lines) + ("" if len(tasks) <= _TASKS_NAMED else f"; and {len(tasks) - _TASKS_NAMED} more")


def _where(task: Task) -> str:
    """The innermost frame outside the libraries that the task waits in."""
    frames = [frame for frame, _ in task.iter_await_frames()]
    own = [frame for frame in frames if "site-packages" not in frame.f_code.co_filename]
    frame = (own or frames)[-1]
    return f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno} {frame.f_code.co_name}"
