"""The controller and servers that do not answer: how many rows they cost (INV-93), how long they hold up a stop
(INV-96)."""

from __future__ import annotations

from collections.abc import Mapping

from gym_ckpt.errors import PeerUnreachable
from gym_ckpt.limits import STOP_REST_S
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire.messages import CONTROL_PREFIX
from sim.oracle.findings import Check, Findings, Handler, episode, episodes
from sim.trace import Row

SLACK_S = 1.0
"""Calls that are cut off, and what goes on at once."""


class Unreached(Check):
    """INV-93: a row whose call reached nobody is retired before any other is sent, which would reach nobody either.

    A batch that was being logged meanwhile is sent all the same. It was taken while those rows were in flight: together
    they are no more than may be.
    """

    def __init__(self, findings: Findings, controller: str, concurrency: int) -> None:
        super().__init__(findings)
        self._controller = controller
        self._concurrency = concurrency
        self._fresh()

    def _fresh(self) -> None:
        self._waiting: set[EpisodeId] = set()
        """Attempts that reached nobody and are not retired yet."""
        self._sent: dict[EpisodeId, float] = {}
        """What was sent since, and when."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._new_life,
            "collector.lost": self._lost,
            "collector.dispatch": self._dispatch,
            "retire.done": self._retired,
        }

    def _new_life(self, row: Row) -> None:
        if row.node == self._controller:
            self._fresh()

    def _lost(self, row: Row) -> None:
        if row.fields["reason"].startswith(PeerUnreachable.__name__):
            self._waiting.add(episode(row.fields["episode"]))

    def _retired(self, row: Row) -> None:
        """By one server: the others follow, or it is not over. Rows may be sent again soon."""
        self._waiting.difference_update(episodes(row.fields["episodes"]))
        if not self._waiting:
            self._sent.clear()

    def _dispatch(self, row: Row) -> None:
        if not self._waiting:
            return
        sent = episode(row.fields["episode"])
        self._sent[sent] = row.t
        again = len(set(self._sent.values())) > 1 or len(self._waiting | self._sent.keys()) > self._concurrency
        why = f"{sent} was sent, and {min(self._waiting)}, which reached nobody, is not retired yet"
        self.look(93, why if again else None, row.node)


class Stopping(Check):
    """INV-96: a controller that was told to stop waits for servers as long as its checkpoint may take, and a short rest
    each time that something has to be undone; its own disk may be as slow as it likes."""

    def __init__(self, findings: Findings, controller: str, timeout_s: float) -> None:
        super().__init__(findings)
        self._controller = controller
        self._bound_s = timeout_s + STOP_REST_S + SLACK_S
        self._fresh()

    def _fresh(self) -> None:
        self._told = False
        self._held_up = False
        """It does not do at once what it would."""
        self._asked: set[int] = set()
        """Exchanges of control calls that it waits for."""
        self._since = 0.0
        self._waited_s = 0.0
        """How long it has waited for any since it was told to stop, but for the time from `_since` on."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._new_life,
            "node.stopped": self._hold_up,
            "node.lagging": self._hold_up,
            "net.request": self._ask,
            **dict.fromkeys(("net.replied", "net.failed", "net.left"), self._answered),
            "collector.signal": self._tell,
            "collector.exit": self._exit,
        }

    def _new_life(self, row: Row) -> None:
        if row.node == self._controller:
            self._fresh()

    def _hold_up(self, row: Row) -> None:
        if row.node == self._controller:
            self._held_up = True

    def _ask(self, row: Row) -> None:
        path = row.fields["path"]
        # A renewal goes on beside what is waited for.
        if row.node == self._controller and path.startswith(CONTROL_PREFIX) and not path.endswith("/renew"):
            if not self._asked:
                self._since = row.t
            self._asked.add(row.fields["x"])

    def _answered(self, row: Row) -> None:
        if row.fields["x"] in self._asked:
            self._asked.discard(row.fields["x"])
            if self._told and not self._asked:
                self._waited_s += row.t - self._since

    def _tell(self, row: Row) -> None:
        if row.fields["signal"] == "SIGTERM" and not self._told:
            self._told, self._since = True, row.t

    def _exit(self, row: Row) -> None:
        if self._told and not self._held_up:
            waited_s = self._waited_s + (row.t - self._since if self._asked else 0.0)
            late = waited_s > self._bound_s
            self.look(96, f"it waited {waited_s:.3f} s for servers after SIGTERM" if late else None, row.node)
