"""An engine that is full for seconds: it is heeded, and costs neither an attempt nor a checkpoint (INV-25).

Judged by what reaches the agent: a refusal that is lost on its way is none. Faults never last as long as an agent's
patience (`MODEL_REFUSED_BUDGET_S`), so no attempt may fail of one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gym_ckpt.core.patience import REFUSED
from gym_ckpt.types import EpisodeId
from sim.oracle.findings import Check, Findings, Handler, caller, episode
from sim.trace import Row

GENERATION = "/completions"
PARKED_S = 0.4
"""Within so long of a refusal its session is parked, on whatever late node."""
ROUNDED_S = 0.0011
"""Pauses are asked for in whole milliseconds."""
_SAID = re.compile(r"/completions answered (\d+)")


class Refusals(Check):
    """INV-25: a refused call is made again, no sooner than was asked for; its session is parked; no attempt fails."""

    def __init__(self, findings: Findings, agents: frozenset[str]) -> None:
        super().__init__(findings)
        self._agents = agents
        self._call_of: dict[int, str] = {}
        """Exchanges with engines that were told whose call they carry."""
        self._asked: dict[str, float] = {}
        """The shortest pause that an engine has asked a call to make."""
        self._sent: dict[int, tuple[str, EpisodeId, str]] = {}
        """Calls of agents under way, by exchange: agent, episode, id of the call."""
        self._waits: dict[tuple[str, EpisodeId], tuple[float, float]] = {}
        """By agent and episode of a refused call: since when it waits, and until when at the least."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._new_life,
            "node.continued": self._again,
            "net.request": self._request,
            "net.turned_away": self._turned_away,
            "net.replied": self._replied,
            "prepare.replied": self._prepared,
            "collector.failure": self._failed,
        }

    def _new_life(self, row: Row) -> None:
        for waits in [each for each in self._waits if each[0] == row.node]:
            del self._waits[waits]

    def _again(self, row: Row) -> None:
        """It has not seen the refusal before now."""
        for waits, (_, until) in list(self._waits.items()):
            if waits[0] == row.node:
                self._waits[waits] = row.t, until

    def _request(self, row: Row) -> None:
        path, call = row.fields["path"], row.fields.get("call")
        if call is None or not path.endswith(GENERATION):
            return
        if row.node not in self._agents:
            self._call_of[row.fields["x"]] = call
            return
        whose = caller(path)
        if whose is None:
            return
        self._sent[row.fields["x"]] = row.node, whose, call
        waited = self._waits.pop((row.node, whose), None)
        if waited is not None:
            early_s = waited[1] - row.t
            why = f"{call} comes {early_s:.3f} s before it was asked to" if early_s > ROUNDED_S else None
            self.look(25, why, row.node)

    def _turned_away(self, row: Row) -> None:
        call = self._call_of.get(row.fields["x"])
        if call is not None:
            self._asked[call] = min(row.fields["asked_s"], self._asked.get(call, row.fields["asked_s"]))

    def _replied(self, row: Row) -> None:
        sent = self._sent.pop(row.fields["x"], None)
        if sent is not None and row.fields["status"] in REFUSED:
            node, whose, call = sent
            self._waits[node, whose] = row.t, row.t + self._asked.get(call, 0.0)

    def _prepared(self, row: Row) -> None:
        if row.node not in self._agents or row.fields["report"]["ready"]:
            return
        for key in row.fields["report"]["blockers"]:
            waits = self._waits.get((row.node, episode(key)))
            late = waits is not None and row.t - waits[0] > PARKED_S
            self.look(25, f"not ready because of {key}, whose call an engine has refused" if late else None, row.node)

    def _failed(self, row: Row) -> None:
        said = _SAID.search(row.fields["reason"])
        refused = said is not None and int(said[1]) in REFUSED
        self.look(25, f"{row.fields['episode']} failed of a refusal: {said[0] if said else ''}" if refused else None)
