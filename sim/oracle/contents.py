"""What a published checkpoint holds (INV-6, 17, 18, 40, 41, 52)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gym_ckpt.invariants import one_owner, only_started, within_scope
from gym_ckpt.types import Kind
from sim.oracle.files import Archive, Contents
from sim.oracle.findings import Check, Findings, Handler, episodes
from sim.trace import Row

TOKENS = re.compile(rb'"(?:prompt_)?token_ids"|[\[,](?:\d+,){31}')
"""Token arrays by their names, or as long lists of integers under any other."""


class Scope(Check):
    """INV-40: records are of the scope. INV-41: a continued episode has one environment record. INV-52: no tokens."""

    def __init__(self, findings: Findings, archive: Archive) -> None:
        super().__init__(findings)
        self._archive = archive
        self._scopes: dict[str, list[str]] = {}
        """By checkpoint: what was committed. More than is continued: an episode whose environment died is in it."""

    def handlers(self) -> Mapping[str, Handler]:
        return {"commit.exported": self._exported, "collector.published": self._published}

    def _exported(self, row: Row) -> None:
        scope = row.fields["scope"]
        self._scopes[row.fields["checkpoint_id"]] = scope
        self.look(40, within_scope(episodes(row.fields["episodes"]), episodes(scope)), row.node)

    def _published(self, row: Row) -> None:
        continued = episodes(row.fields["continued"])
        scope = episodes(self._scopes.get(row.fields["checkpoint_id"], []))
        contents = self._archive.contents(row.fields["checkpoint_id"])
        for member, records in contents.records.items():
            self.look(40, within_scope(records, scope), "/".join(member))
            tokens = TOKENS.search(contents.raw[member])
            self.look(52, "token ids are in a checkpoint file" if tokens else None, "/".join(member))
        owned = [each for (kind, _), held in contents.records.items() if kind == Kind.ENVIRONMENT for each in held]
        self.look(41, one_owner(continued, owned), row.node)


class Delivered(Check):
    """INV-17, INV-18: a call is in a checkpoint only if its answer had started when its server exported. One that was
    held by then had not, whatever has been said of it since.

    INV-6: an attempt that continues a checkpoint does not repeat the calls that its session holds.
    """

    def __init__(self, findings: Findings, archive: Archive) -> None:
        super().__init__(findings)
        self._archive = archive
        self._started: dict[str, None] = {}
        """Calls whose answer started, over all lives, in order."""
        self._at_export: dict[str, int] = {}
        """By checkpoint: how many had when the first model server exported."""
        self._closed: set[str] = set()
        """Model servers that admit nothing."""
        self._held: dict[str, set[str]] = {}
        """By model server: calls that wait there to be delivered."""
        self._undelivered: dict[str, set[str]] = {}
        """By checkpoint: those of all model servers when some of them exported."""
        self._done: dict[str, int] = {}
        """By capture key of a restored attempt: calls that its session holds."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._opened,
            "admission.opened": self._opened,
            "admission.closed": self._shut,
            "gate.held": self._hold,
            "gate.started": self._start,
            "commit.exported": self._exported,
            "collector.published": self._published,
            "collector.restored": self._restored,
        }

    def _opened(self, row: Row) -> None:
        self._closed.discard(row.node)
        self._held.pop(row.node, None)

    def _shut(self, row: Row) -> None:
        self._closed.add(row.node)

    def _hold(self, row: Row) -> None:
        if row.fields["call"] not in self._started:  # of a copy, too, which may have been delivered
            self._held.setdefault(row.node, set()).add(row.fields["call"])

    def _start(self, row: Row) -> None:
        call = row.fields["call"]
        if row.node not in self._closed:
            for held in self._held.values():
                held.discard(call)
        self._started.setdefault(call)
        done = self._done.get(row.fields["episode"])
        number = number_of(call)
        if done is not None and number is not None:
            self.look(6, f"call {call} was made again after a restore" if number < done else None, row.node)

    def _exported(self, row: Row) -> None:
        if row.fields["kind"] == Kind.MODEL:
            self._at_export.setdefault(row.fields["checkpoint_id"], len(self._started))
            self._undelivered.setdefault(row.fields["checkpoint_id"], set()).update(*self._held.values())

    def _published(self, row: Row) -> None:
        checkpoint_id = row.fields["checkpoint_id"]
        started = list(self._started)
        contents = self._archive.contents(checkpoint_id)
        held = self._undelivered.pop(checkpoint_id, set())
        self.look(17, only_started(_calls(contents), [call for call in started if call not in held]))
        before = started[: self._at_export.get(checkpoint_id, len(started))]
        self.look(18, only_started(model_calls(contents), before))

    def _restored(self, row: Row) -> None:
        installed = set(row.fields["installed"])  # a checkpoint may hold more: a row that failed since starts anew
        for (kind, _), held in self._archive.contents(row.fields["checkpoint_id"]).records.items():
            if kind == Kind.AGENT:
                calls = {each.next().key: len(state["state"]["calls"]) for each, state in held.items()}
                self._done.update({key: count for key, count in calls.items() if key in installed})


def model_calls(contents: Contents) -> list[str]:
    """Calls in the model servers' records."""
    held = [state for (kind, _), states in contents.records.items() if kind == Kind.MODEL for state in states.values()]
    return [row["model_call_id"] for state in held for row in state["rows"]]


def _calls(contents: Contents) -> list[str]:
    """Calls in any record."""
    held = [state for (kind, _), states in contents.records.items() if kind == Kind.AGENT for state in states.values()]
    return [*model_calls(contents), *(call["model_call_id"] for state in held for call in state["state"]["calls"])]


def number_of(call: str) -> int | None:
    """Which call of its session it is, as the shipped agent names its calls: `<capture key>.c<number>.<try>`."""
    _, _, rest = call.rpartition(".c")
    number = rest.partition(".")[0]
    return int(number) if number.isdigit() else None
