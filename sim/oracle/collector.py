"""The controller: what it dispatches, commits, retires and when (INV-2, 38, 90 … 94, 96). Whose the directory
is stands in `sim.oracle.owning`."""

from __future__ import annotations

from collections.abc import Mapping

from gym_ckpt.types import EpisodeId
from sim.oracle.findings import Check, Findings, Handler, episode, episodes, key_of
from sim.oracle.known import Known
from sim.trace import Row

ANSWER_S = 120.0
"""Beyond the time of the checkpoint that was under way and of the one asked for: retires, resumes, slow nodes."""
ROUNDS = 2
"""Who sends rows may be sending some, and may have queued for more, before the next checkpoint gets its turn."""


class Dispatching(Check):
    """INV-38: attempts of a rollout only grow. INV-90, 91, 93, 94: what a checkpoint means for rows. INV-2: one row."""

    def __init__(self, findings: Findings, controller: str) -> None:
        super().__init__(findings)
        self._controller = controller
        self._last: dict[str, int] = {}
        """Highest attempt of each rollout that was sent, over all lives."""
        self._begun: dict[str, int] = {}
        """... that was begun from its input."""
        self._over: dict[str, int] = {}
        """Highest attempt of each rollout that has replied or was retired, over all lives: it runs nowhere."""
        self._rows: set[str] = set()
        """Rollouts whose row is durable."""
        self._fresh()

    def _fresh(self) -> None:
        """What a life of the controller knows."""
        self._open = False
        self._sent = False
        self._in_flight: set[EpisodeId] = set()
        self._restored: set[EpisodeId] = set()
        self._replied: set[EpisodeId] = set()
        self._given_up: set[EpisodeId] = set()
        """Attempts that a retire was begun for."""
        self._unwritten: set[EpisodeId] = set()
        """Finished, and their rows are not written yet."""
        self._asked: dict[int, str] = {}
        """Exchanges that ask an environment to run an attempt, with its capture key."""
        self._answered: set[str] = set()
        """Attempts of which one of these has ended, in whatever way."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._new_life,
            "net.request": self._request,
            **dict.fromkeys(("net.replied", "net.failed", "net.left"), self._answer),
            "collector.checkpoint_opened": self._opened,
            "collector.checkpoint_closed": self._closed,
            "collector.dispatch": self._dispatch,
            "collector.settled": self._settled,
            "collector.retire": self._retire,
            "collector.restored": self._continued,
            "coordination.restore_lapsed": self._lapsed,
            "collector.scope": self._commit,
            "collector.published": self._published,
            "collector.row": self._row,
            "collector.forget": self._forget,
        }

    def _new_life(self, row: Row) -> None:
        if row.node == self._controller:
            self._fresh()

    def _opened(self, row: Row) -> None:
        self._open = True

    def _closed(self, row: Row) -> None:
        self._open = False

    def _dispatch(self, row: Row) -> None:
        sent = episode(row.fields["episode"])
        self.look(90, f"{sent} was sent while a checkpoint was open" if self._open else None, row.node)
        done = sent.rollout_id in self._rows
        self.look(94, f"{sent} was sent although the rollout has its row" if done else None, row.node)
        last = self._last.get(sent.rollout_id, -1)
        again = sent.attempt < last or (sent.attempt == last and sent not in self._restored)
        self.look(38, f"{sent} was sent after attempt {last}" if again else None, row.node)
        alive = sent not in self._restored and last > self._over.get(sent.rollout_id, -1)
        self.look(38, f"{sent} was sent, and attempt {last} may still run" if alive else None, row.node)
        self._last[sent.rollout_id] = max(last, sent.attempt)
        if sent not in self._restored:
            self._begun[sent.rollout_id] = sent.attempt
        self._sent = True
        self._restored.discard(sent)
        self._in_flight.add(sent)

    def _request(self, row: Row) -> None:
        if row.node == self._controller and row.fields["path"].endswith("/run"):
            self._asked[row.fields["x"]] = key_of(row.fields["path"])

    def _answer(self, row: Row) -> None:
        key = self._asked.pop(row.fields["x"], None)
        if key is not None:
            self._answered.add(key)

    def _settled(self, row: Row) -> None:
        ended = episode(row.fields["episode"])
        early = ended.key not in self._answered and ended.key in self._asked.values()
        self.look(38, f"{ended} is settled, and its own reply has not come" if early else None, row.node)
        if row.fields["outcome"] == "Finished" and ended in self._in_flight:
            self._unwritten.add(ended)
        self._in_flight.discard(ended)
        if row.fields["outcome"] != "Lost":
            self._replied.add(ended)
            self._ended(ended)

    def _ended(self, ended: EpisodeId) -> None:
        self._over[ended.rollout_id] = max(ended.attempt, self._over.get(ended.rollout_id, -1))

    def _retire(self, row: Row) -> None:
        given_up = set(episodes(row.fields["episodes"]))
        self.look(93, "attempts are retired while a checkpoint is open" if self._open else None, row.node)
        # A retire that is repeated names what its first try has stopped: that refusal was the attempt's reply.
        answered = sorted((given_up - self._given_up) & self._replied)
        self._given_up |= given_up
        self.look(93, f"{answered[0]} has replied and is retired" if answered else None, row.node)
        for each in sorted(given_up):
            self._ended(each)
        self._in_flight -= given_up
        self._restored -= given_up

    def _continued(self, row: Row) -> None:
        self.look(94, "a row was sent before the restore was decided" if self._sent else None, row.node)
        self._restored = set(episodes(row.fields["installed"]))
        older = sorted(each for each in self._restored if self._begun.get(each.rollout_id, -1) >= each.attempt)
        self.look(38, f"{older[0]} continues what was given up: it was begun from its input since" if older else None)

    def _lapsed(self, _: Row) -> None:
        """Nothing of it is left: its rows begin again."""
        self._restored.clear()

    def _commit(self, row: Row) -> None:
        restarts = set(episodes(row.fields["restarts"]))
        wanted = sorted((self._in_flight | self._restored) - restarts)
        scope = episodes(row.fields["scope"])
        if scope == wanted:
            self.look(91, None, row.node)
        else:
            odd = sorted(set(scope).symmetric_difference(wanted))
            what = "is" if odd[0] in scope else "is not"
            self.look(91, f"{odd[0]} {what} in the scope of a commit", row.node)

    def _published(self, row: Row) -> None:
        # One that is in it may have ended since: its servers' leases run out while a slow disk publishes.
        lost = sorted(self._unwritten.difference(episodes(row.fields["continued"])))
        self.look(
            91, f"{lost[0]} has finished, and is neither in the checkpoint nor written" if lost else None, row.node
        )

    def _row(self, row: Row) -> None:
        written = episode(row.fields["episode"])
        self._unwritten.discard(written)
        rollout_id = written.rollout_id
        self.look(2, f"a second row of {rollout_id} was written" if rollout_id in self._rows else None, row.node)
        self._rows.add(rollout_id)

    def _forget(self, row: Row) -> None:
        """Forgotten, late calls of its attempts are let in again; a row that a crash takes back would meet them."""
        early = sorted(self._unwritten.intersection(episodes(row.fields["episodes"])))
        self.look(38, f"{early[0]} is forgotten, and its row is not durable" if early else None, row.node)


class Stops(Check):
    """INV-92: what was committed in order to stop is never resumed; what a failed checkpoint closed is."""

    def __init__(self, findings: Findings, known: Known) -> None:
        super().__init__(findings)
        self._known = known
        self._stopping = False
        self._stopped: set[str] = set()
        self._entered: dict[str, str] = {}
        """Servers that entered a checkpoint since the collector opened its last one, and which."""
        self._unreachable: set[str] = set()
        """Servers that could not be told to resume from it."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "collector.checkpoint_opened": self._opened,
            "collector.checkpoint_failed": self._failed,
            "collector.scope": self._scope,
            "collector.published": self._published,
            "coordination.resume_failed": self._not_resumed,
            "phase": self._phase,
        }

    def _opened(self, row: Row) -> None:
        self._entered.clear()
        self._unreachable.clear()

    def _not_resumed(self, row: Row) -> None:
        self._unreachable.add(row.fields["server"])

    def _failed(self, row: Row) -> None:
        for name, entered in sorted(self._entered.items()):
            server = self._known.server(name)
            stays = server.alive and server.phase != "idle" and server.opened == entered
            if name not in self._unreachable:
                why = f"{entered} failed, and {name} is still {server.phase} in it" if stays else None
                self.look(92, why, row.node)

    def _scope(self, row: Row) -> None:
        self._stopping = row.fields["stop"]

    def _published(self, row: Row) -> None:
        if self._stopping:
            self._stopped.add(row.fields["checkpoint_id"])
            self.look(92, None, row.node)

    def _phase(self, row: Row) -> None:
        if row.fields["now"] in ("preparing", "prepared"):
            self._entered[row.node] = row.fields["checkpoint_id"]
        if self._stopped and row.fields["why"] == "Resume":
            ended = self._known.server(row.node).opened
            self.look(92, f"{ended}, taken to stop, is resumed" if ended in self._stopped else None, row.node)


class Asked(Check):
    """INV-96: a signal leads to a checkpoint, to a word why there is none, or to the end of the process.

    A SIGUSR1 that comes while a checkpoint is being taken asks for another one, which begins right after it: rows are
    sent at most `ROUNDS` more times until then, unless attempts have to be retired first.
    """

    def __init__(self, findings: Findings, controller: str, timeout_s: float, one_sigterm_s: float) -> None:
        super().__init__(findings)
        self._controller = controller
        self._bound_s = 2 * timeout_s + ANSWER_S
        self._one_sigterm_s = one_sigterm_s
        self._told: float | None = None
        """When the first SIGTERM of this life came."""
        self._killed = False
        """A second one came, and not together with the first."""
        self._ending = False
        """It has said how it ended: what comes in that instant changes nothing."""
        self._asked: dict[str, float] = {}
        """Signals that nothing has come of yet, and since when."""
        self._open = False
        self._sending = False
        """Rows are being sent: the time runs from then on."""
        self._again = False
        """A SIGUSR1 came while a checkpoint was open."""
        self._rounds: list[float] = []
        """When rows were sent since that one was over."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._new_life,
            "node.crashed": self._new_life,
            "collector.signal": self._signal,
            "collector.dispatch": self._dispatch,
            "collector.checkpoint_opened": self._opened,
            "collector.checkpoint_closed": self._closed,
            "collector.retire": self._held_up,
            "collector.published": self._ended,
            "collector.checkpoint_failed": self._ended,
            "collector.exit": self._exit,
            "world.complete": self._over,
        }

    def _new_life(self, row: Row) -> None:
        if row.node == self._controller:
            self._asked.clear()
            self._open = self._sending = self._again = self._killed = self._ending = False
            self._told = None

    def _dispatch(self, row: Row) -> None:
        if not self._sending:
            self._sending = True
            self._asked = dict.fromkeys(self._asked, row.t)
        if self._again and not self._open and row.t not in self._rounds:
            self._rounds.append(row.t)
            late = len(self._rounds) > ROUNDS
            self.look(96, "SIGUSR1 came while a checkpoint was open, and none follows it" if late else None, row.node)

    def _signal(self, row: Row) -> None:
        if self._ending:
            return
        self._asked.setdefault(row.fields["signal"], row.t)
        self._again = self._again or (self._open and row.fields["signal"] == "SIGUSR1")
        if row.fields["signal"] == "SIGTERM":
            self._killed = self._told is not None and (self._killed or row.t - self._told >= self._one_sigterm_s)
            self._told = row.t if self._told is None else self._told

    def _held_up(self, row: Row) -> None:
        self._again = False

    def _opened(self, row: Row) -> None:
        self._open, self._again = True, False
        self._answer("SIGUSR1", row)

    def _closed(self, row: Row) -> None:
        self._open = False
        self._rounds.clear()

    def _ended(self, row: Row) -> None:
        self._answer("SIGTERM", row)

    def _answer(self, name: str, row: Row) -> None:
        since = self._asked.pop(name, None)
        if since is not None:
            late = row.t - since > self._bound_s
            self.look(96, f"{name} was answered after {row.t - since:.3f} s" if late else None, row.node)

    def _exit(self, row: Row) -> None:
        if self._asked:
            self.look(96, None if row.fields["message"] else "a stop says nothing", row.node)
        if self._killed:
            status = row.fields["status"]
            self.look(96, f"a second SIGTERM ended it with status {status}" if status != 143 else None, row.node)
        self._asked.clear()
        self._ending = True

    def _over(self, row: Row) -> None:
        left = sorted(self._asked)
        self.look(96, f"nothing came of {left[0]}" if left else None, self._controller)
