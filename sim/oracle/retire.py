"""Retire and forget on each server (INV-30 … 34, 37, 38)."""

from __future__ import annotations

from collections.abc import Mapping

from gym_ckpt.invariants import marked, may_forget, may_retire, none_left, only_up_to
from gym_ckpt.limits import FORGOTTEN_S
from sim.oracle.findings import Check, Findings, Handler, episode, episodes
from sim.oracle.known import Known
from sim.trace import Row


class Retiring(Check):
    """INV-30, 31, 32, 33, 34: when, whom, in which order, and that it waits."""

    def __init__(self, findings: Findings, known: Known) -> None:
        super().__init__(findings)
        self._known = known
        self._stopped: set[tuple[str, int, int]] = set()
        """Node, life, ticket: whatever was cancelled."""
        self._before: dict[str, list[str]] = {}

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "admission.stopped": self._stop,
            "retire.marked": self._marked,
            "retire.freeing": self._freeing,
            "gate.withdrawn": self._withdrawn,
            "retire.done": self._done,
        }

    def _stop(self, row: Row) -> None:
        asked = row.fields["asked"]
        server = self._known.server(row.node)
        open_to = [key for key, refused in zip(asked, row.fields["refused"], strict=True) if not refused]
        self.look(32, f"{open_to[0]} is stopped, and not refused yet" if open_to else None, row.node)
        self.look(31, only_up_to(episodes(asked), episodes([key for _, key in row.fields["stopped"]])), row.node)
        for number, key in row.fields["stopped"]:
            piece = (row.node, server.life, number)
            self.look(34, f"work of {key} was cancelled twice" if piece in self._stopped else None, row.node)
            self._stopped.add(piece)

    def _marked(self, row: Row) -> None:
        self.look(30, may_retire(self._known.server(row.node).phase), row.node)

    def _freeing(self, row: Row) -> None:
        self._before[row.node] = row.fields["live"]

    def _withdrawn(self, row: Row) -> None:
        """A server that holds nothing but this call's start of an attempt holds nothing of it any more."""
        held = self._before.get(row.node, [])
        self._before[row.node] = [key for key in held if key != row.fields["episode"]]

    def _done(self, row: Row) -> None:
        server = self._known.server(row.node)
        retired, live = episodes(row.fields["episodes"]), row.fields["live"]
        self.look(30, may_retire(server.phase), row.node)
        self.look(32, marked(row.fields["marks"], retired), row.node)
        self.look(33, none_left(row.fields["remaining"]), row.node)
        freed = set(self._before.pop(row.node, live)).difference(live)
        self.look(31, only_up_to(retired, episodes(sorted(freed))), row.node)
        marks = row.fields["marks"]
        wrong = sorted(name for name, mark in marks.items() if mark > server.marks.get(name, -1))
        self.look(31, f"{wrong[0]} is marked to attempt {marks[wrong[0]]}" if wrong else None, row.node)
        left = [key for key in live if only_up_to(retired, [episode(key)]) is None]
        self.look(33, f"state of {left[0]} outlived its retire" if left else None, row.node)


class Forgetting(Check):
    """INV-30, INV-37: forget happens while nothing is open, and its marks are gone."""

    def __init__(self, findings: Findings, known: Known) -> None:
        super().__init__(findings)
        self._known = known

    def handlers(self) -> Mapping[str, Handler]:
        return {"forget.done": self._done}

    def _done(self, row: Row) -> None:
        self.look(30, may_forget(self._known.server(row.node).phase), row.node)
        kept = sorted(set(row.fields["rollouts"]).intersection(row.fields["marks"]))
        self.look(37, f"the mark of {kept[0]} outlived a forget" if kept else None, row.node)


class Retired(Check):
    """INV-38: what was retired on a server has no effect there afterwards, and no output row anywhere.

    Nor has what was over and is forgotten there: a copy of one of its calls that comes within `FORGOTTEN_S` is refused.
    """

    EFFECTS = ("gate.started", "tool.effect", "admission.admitted", "episode.started", "session.closed")

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._gone: dict[str, dict[str, int]] = {}
        """By server, in its present life: highest attempt of each rollout whose retire has replied."""
        self._given_up: dict[str, int] = {}
        """... and whose retire the controller has asked for: no reply of them counts any more."""
        self._over: dict[str, dict[str, tuple[int, float]]] = {}
        """By server, in its present life: to which attempt a rollout was over when it was forgotten, and since when."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._new_life,
            "retire.done": self._done,
            "forget.done": self._forgotten,
            "restore.installed": self._restored,
            **dict.fromkeys(self.EFFECTS, self._effect),
            "admission.admitted": self._admitted,
            "collector.retire": self._asked,
            "collector.restored": self._continued,
            "collector.row": self._row,
        }

    def _new_life(self, row: Row) -> None:
        self._gone.pop(row.node, None)
        self._over.pop(row.node, None)

    def _done(self, row: Row) -> None:
        _raise(self._gone.setdefault(row.node, {}), row)

    def _asked(self, row: Row) -> None:
        _raise(self._given_up, row)

    def _forgotten(self, row: Row) -> None:
        for rollout_id in row.fields["rollouts"]:
            self._gone.get(row.node, {}).pop(rollout_id, None)
            if row.fields["ended"] is not None:
                self._over.setdefault(row.node, {})[rollout_id] = row.fields["ended"], row.t

    def _restored(self, row: Row) -> None:
        """A restore of N lifts a mark that an earlier one had left on N+1 (INV-62); its own is INV-63's."""
        for each in episodes(row.fields["scope"]):
            self._gone.get(row.node, {}).pop(each.rollout_id, None)

    def _continued(self, row: Row) -> None:
        self._given_up.update({each.rollout_id: each.attempt - 1 for each in episodes(row.fields["installed"])})

    def _admitted(self, row: Row) -> None:
        self._effect(row)
        at_work = episode(row.fields["episode"])
        over = self._over.get(row.node, {}).get(at_work.rollout_id)
        if over is not None:
            late = at_work.attempt <= over[0] and row.t < over[1] + FORGOTTEN_S
            self.look(38, f"a call of {at_work} is admitted, which is over and forgotten" if late else None, row.node)

    def _effect(self, row: Row) -> None:
        gone = self._gone.get(row.node)
        if gone:
            self._judge(gone, row)

    def _row(self, row: Row) -> None:
        self._judge(self._given_up, row)

    def _judge(self, gone: dict[str, int], row: Row) -> None:
        at_work = episode(row.fields["episode"])
        if at_work.rollout_id in gone:
            last = gone[at_work.rollout_id]
            late = at_work.attempt <= last
            self.look(38, f"{row.event} of {at_work}, retired to attempt {last}" if late else None, row.node)


def _raise(gone: dict[str, int], row: Row) -> None:
    for each in episodes(row.fields["episodes"]):
        gone[each.rollout_id] = max(each.attempt, gone.get(each.rollout_id, -1))
