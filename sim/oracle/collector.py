"""The controller: what it dispatches, commits, retires and when (INV-2, 38, 90, 91, 92, 93, 94)."""

from __future__ import annotations

from collections.abc import Mapping

from gym_ckpt.types import EpisodeId
from sim.oracle.findings import Check, Findings, Handler, episode, episodes
from sim.oracle.known import Known
from sim.trace import Row


class Dispatching(Check):
    """INV-38: attempts of a rollout only grow. INV-90, 91, 93, 94: what a checkpoint means for rows. INV-2: one row."""

    def __init__(self, findings: Findings, controller: str) -> None:
        super().__init__(findings)
        self._controller = controller
        self._last: dict[str, int] = {}
        """Highest attempt of each rollout that was sent, over all lives."""
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
        self._scope: tuple[list[EpisodeId], set[EpisodeId]] | None = None

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._new_life,
            "collector.checkpoint_opened": self._opened,
            "collector.checkpoint_closed": self._closed,
            "collector.dispatch": self._dispatch,
            "collector.settled": self._settled,
            "collector.retire": self._retire,
            "collector.restored": self._continued,
            "collector.scope": self._commit,
            "collector.row": self._row,
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
        self._last[sent.rollout_id] = max(last, sent.attempt)
        self._sent = True
        self._restored.discard(sent)
        self._in_flight.add(sent)

    def _settled(self, row: Row) -> None:
        ended = episode(row.fields["episode"])
        self._in_flight.discard(ended)
        if row.fields["outcome"] != "Lost":
            self._replied.add(ended)

    def _retire(self, row: Row) -> None:
        given_up = set(episodes(row.fields["episodes"]))
        self.look(93, "attempts are retired while a checkpoint is open" if self._open else None, row.node)
        answered = sorted(given_up & self._replied)
        self.look(93, f"{answered[0]} has replied and is retired" if answered else None, row.node)
        self._in_flight -= given_up
        self._restored -= given_up

    def _continued(self, row: Row) -> None:
        self.look(94, "a row was sent before the restore was decided" if self._sent else None, row.node)
        self._restored = set(episodes(row.fields["installed"]))

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

    def _row(self, row: Row) -> None:
        rollout_id = episode(row.fields["episode"]).rollout_id
        self.look(2, f"a second row of {rollout_id} was written" if rollout_id in self._rows else None, row.node)
        self._rows.add(rollout_id)


class Stops(Check):
    """INV-92: what was committed in order to stop is never resumed."""

    def __init__(self, findings: Findings, known: Known) -> None:
        super().__init__(findings)
        self._known = known
        self._stopping = False
        self._stopped: set[str] = set()

    def handlers(self) -> Mapping[str, Handler]:
        return {"collector.scope": self._scope, "collector.published": self._published, "phase": self._phase}

    def _scope(self, row: Row) -> None:
        self._stopping = row.fields["stop"]

    def _published(self, row: Row) -> None:
        if self._stopping:
            self._stopped.add(row.fields["checkpoint_id"])
            self.look(92, None, row.node)

    def _phase(self, row: Row) -> None:
        if self._stopped and row.fields["why"] == "Resume":
            ended = self._known.server(row.node).opened
            self.look(92, f"{ended}, taken to stop, is resumed" if ended in self._stopped else None, row.node)
