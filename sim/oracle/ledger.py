"""The capture ledger on the disk, beside what the gate says (INV-16, 19, 20, 42, 43, 44, 46, 62, 63, 65).

Rows are read from the files themselves, as they are and as a power cut would leave them. Ids of calls begin with the
capture key under which the shipped agent made them, so a row tells under which key its call was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gym_ckpt.types import EpisodeId, Kind
from gym_ckpt.wire import json
from sim.disk import SimFileSystem
from sim.oracle.files import Archive
from sim.oracle.findings import Check, Findings, Handler, episode, episodes, key_of
from sim.oracle.gate import GENERATES
from sim.trace import Row

ROWS, POISON, FENCE, STARTED = (f".lineage.{ending}" for ending in ("jsonl", "poison", "fence", "started"))


class Shelf:
    """A ledger's directory as an onlooker reads it; a line that is torn is none."""

    def __init__(self, disk: SimFileSystem, directory: str) -> None:
        self._disk = disk
        self.directory = directory

    def lines(self, name: str, *, durable: bool = False) -> list[dict[str, Any]]:
        path = f"{self.directory}/{name}"
        tree = self._disk.durable_tree(path) if durable else self._disk.tree(path)
        data = tree.get(path, b"")
        return [json.loads(line) for line in data.split(b"\n")[:-1] if b"\0" not in line]

    def rows(self, key: str, *, durable: bool = False) -> list[dict[str, Any]]:
        """Without those that poison hides."""
        hidden = self.hidden(key)
        return [row for row in self.lines(key + ROWS, durable=durable) if row["model_call_id"] not in hidden]

    def hidden(self, key: str) -> set[str]:
        return {entry["model_call_id"] for entry in self.lines(key + POISON) if entry["reason"] == "row_write_failed"}

    def has(self, name: str, *, durable: bool = False) -> bool:
        path = f"{self.directory}/{name}"
        return path in (self._disk.durable_tree(path) if durable else self._disk.tree(path))

    def names(self) -> list[str]:
        """Files of capture keys, sorted."""
        start = len(self.directory) + 1
        return [path[start:] for path in self._disk.tree(self.directory) if ".lineage." in path]


class Writing(Check):
    """INV-16: a row comes after the leave to begin, and is durable before the answer's head is sent.

    INV-19: an answer whose row failed is not sent. INV-36: nothing is written once the attempt is fenced. INV-20: no
    checkpoint is ready and no retire done before a row that is being written is there. INV-43: by the time a restored
    attempt's call is held or begins, its marker stands.
    """

    def __init__(self, findings: Findings, shelf: Shelf, models: frozenset[str]) -> None:
        super().__init__(findings)
        self._models = models
        self._shelf = shelf
        self._calls: dict[int, tuple[str, str]] = {}
        """Exchanges that are gated calls, with their capture keys and ids, until their answer's head."""
        self._begun: dict[str, set[str]] = {}
        """By capture key: calls of this execution that had leave to begin."""
        self._unstaged: dict[str, set[str]] = {}
        """... that were delivered without a row, because they could not be staged"""
        self._writing: dict[str, dict[str, str]] = {}
        """By node, by call: the capture key of each that has begun and whose row is not there yet."""
        self._restored: set[str] = set()
        self._fenced: set[tuple[str, str]] = set()
        """Server and call: begun although the attempt's fence stood, so that no row may come of it."""
        self.failed: dict[str, str] = {}
        """Calls whose row failed, with their capture keys."""
        self.begun: set[str] = set()

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._new_life,
            "net.request": self._request,
            "net.duplicate": self._request,
            "net.head": self._head,
            "gate.held": self._marked,
            "gate.not_captured": self._not_captured,
            "gate.started": self._begin,
            "gate.row": self._written,
            "gate.withdrawn": self._withdrawn,
            "phase": self._phase,
            "retire.freeing": self._retired,
            "restore.installed": self._installed,
            "collector.restored": self._restore,
        }

    def _new_life(self, row: Row) -> None:
        self._writing.pop(row.node, None)

    def _request(self, row: Row) -> None:
        path = row.fields["path"]
        if "call" in row.fields and path.endswith(GENERATES) and (key := key_of(path)):
            self._calls[row.fields["x"]] = key, row.fields["call"]

    def _head(self, row: Row) -> None:
        key, call = self._calls.pop(row.fields["x"], ("", ""))
        if not key or row.node not in self._models or row.fields["status"] >= 400:
            return
        if row.fields.get("stream") and call not in self._begun.get(key, ()):
            return  # keep-alives
        if self._shelf.has(key + FENCE):
            return  # whoever looks after its files has retired it; the answer's server is about to
        there = call in self._unstaged.get(key, ()) or any(
            each["model_call_id"] == call for each in self._shelf.rows(key, durable=True)
        )
        self.look(16, None if there else f"the answer of {call} is sent, whose row is not durable", row.node)

    def _not_captured(self, row: Row) -> None:
        self._unstaged.setdefault(row.fields["episode"], set()).add(row.fields["call"])

    def _begin(self, row: Row) -> None:
        key, call = row.fields["episode"], row.fields["call"]
        self._marked(row)
        early = call not in self.begun and any(each["model_call_id"] == call for each in self._shelf.rows(key))
        self.look(16, f"call {call} had its row before it began" if early else None, row.node)
        self.begun.add(call)
        self._begun.setdefault(key, set()).add(call)
        self._writing.setdefault(row.node, {})[call] = key
        if self._shelf.has(key + FENCE):
            self._fenced.add((row.node, call))
            self.look(36, None, row.node)

    def _marked(self, row: Row) -> None:
        key = row.fields["episode"]
        if key in self._restored and not self._shelf.has(key + FENCE):
            stands = self._shelf.has(key + STARTED)
            self.look(43, None if stands else f"a call of {key} is at the gate, and it does not count as started")

    def _written(self, row: Row) -> None:
        self._over(row)
        late = (row.node, row.fields["call"]) in self._fenced
        self.look(36, f"call {row.fields['call']} has a row, and its attempt was fenced" if late else None, row.node)

    def _over(self, row: Row) -> None:
        self._writing.get(row.node, {}).pop(row.fields["call"], None)

    def _withdrawn(self, row: Row) -> None:
        self._over(row)
        if row.fields["failed"]:
            self.failed[row.fields["call"]] = row.fields["episode"]

    def _phase(self, row: Row) -> None:
        if row.fields["now"] == "prepared":
            left = sorted(self._writing.get(row.node, ()))
            self.look(20, f"ready, and the row of {left[0]} is being written" if left else None, row.node)

    def _retired(self, row: Row) -> None:
        """All work of these attempts has left."""
        highest = {each.rollout_id: each.attempt for each in episodes(row.fields["episodes"])}
        for call, key in self._writing.get(row.node, {}).items():
            at = episode(key)
            late = at.attempt <= highest.get(at.rollout_id, -1)
            self.look(20, f"{key} is retired, and the row of {call} is being written" if late else None, row.node)

    def _installed(self, row: Row) -> None:
        """What an earlier execution of the same attempt left is gone with its rows, and its ids come again."""
        for each in episodes(row.fields["scope"]):
            self._begun.pop(each.next().key, None)
            self._unstaged.pop(each.next().key, None)

    def _restore(self, row: Row) -> None:
        self._restored.update(row.fields["installed"])


class Carried(Check):
    """What a checkpoint holds of the ledger, and what a restore makes of the ledger (INV-19, 42, 46, 62, 63, 65)."""

    def __init__(
        self,
        findings: Findings,
        archive: Archive,
        disk: SimFileSystem,
        shelf: Shelf,
        writing: Writing,
        models: frozenset[str],
    ) -> None:
        super().__init__(findings)
        self._models = models
        self._lost_power = False
        """Whether a model server's host has, since a restore began: what it imported was not synced."""
        self._archive = archive
        self._disk = disk
        self._shelf = shelf
        self._writing = writing
        self._given_up: set[str] = set()
        """Restores that some server has ended."""
        self._unstaged: dict[str, None] = {}

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "collector.published": self._published,
            "collector.restored": self._restored,
            "restore.ended": self._ended,
            "node.crashed": self._crashed,
            "phase": self._phase,
            "gate.not_captured": self._not_captured,
        }

    def _not_captured(self, row: Row) -> None:
        self._unstaged.setdefault(row.fields["call"])

    def _ended(self, row: Row) -> None:
        self._given_up.add(row.fields["restore_id"])

    def _phase(self, row: Row) -> None:
        if row.fields["now"] == "restoring":
            self._lost_power = False

    def _crashed(self, row: Row) -> None:
        self._lost_power = self._lost_power or row.node in self._models

    def _published(self, row: Row) -> None:
        records = self._archive.contents(row.fields["checkpoint_id"]).records
        held: dict[EpisodeId, list[dict[str, Any]]] = {}
        for (kind, name), states in records.items():
            if kind != Kind.MODEL:
                continue
            twice = sorted(held.keys() & states.keys())
            self.look(46, f"two servers hold rows of {twice[0]}" if twice else None, name)
            held.update({each: state["rows"] for each, state in states.items()})
        rows = [row for each in held.values() for row in each]
        failed = sorted(row["model_call_id"] for row in rows if row["model_call_id"] in self._writing.failed)
        self.look(19, f"call {failed[0]}, whose row failed, is in the checkpoint" if failed else None, row.node)
        keys = [key for each in rows for key in (*each["staging_chain"], each["staging_key"])]
        self.look(46, self._missing(keys), row.node)
        for (kind, _), states in records.items():
            if kind == Kind.AGENT:
                for each, state in states.items():
                    self._complete(each, state, held.get(each, []))

    def _missing(self, keys: Iterable[str]) -> str | None:
        for key in keys:
            path = f"{self._shelf.directory}/tokens/{key[:2]}/{key}"
            if path not in self._disk.durable_tree(path):
                return f"staged key {key} is in the checkpoint and not in the token store"
        return None

    def _complete(self, at: EpisodeId, session: Mapping[str, Any], rows: list[dict[str, Any]]) -> None:
        known = {row["model_call_id"] for row in rows} | self._unstaged.keys()
        lost = [call["model_call_id"] for call in session["state"]["calls"] if call["model_call_id"] not in known]
        self.look(42, f"call {lost[0]} of the session of {at} has no row in the checkpoint" if lost else None)

    def _restored(self, row: Row) -> None:
        if self._lost_power or row.fields["restore_id"] in self._given_up:
            return
        installed = episodes(row.fields["installed"])
        records = self._archive.contents(row.fields["checkpoint_id"]).records
        held = {
            each.next().key: (state["rows"], state["poison"])
            for (kind, _), states in records.items()
            if kind == Kind.MODEL
            for each, state in states.items()
        }
        attempts = {each.rollout_id: each.attempt for each in installed}
        there = [(name, *named(name)) for name in self._shelf.names()]
        for name, at, ending in there:
            target = attempts.get(at.rollout_id)
            if target is None:
                continue
            left = at.attempt > target or (at.attempt == target and ending in (FENCE, STARTED))
            left = left or (at.attempt < target and ending != FENCE)
            self.look(62, f"{name} is left over from a dead execution" if left else None)
        fenced = {at for _, at, ending in there if ending == FENCE}
        for each in installed:
            open_to = [n for n in range(each.attempt) if EpisodeId(each.rollout_id, n) not in fenced]
            self.look(63, f"attempt {open_to[0]} of {each.rollout_id} has no fence" if open_to else None)
            rows, poison = held.get(each.key, ([], []))
            same = self._shelf.lines(each.key + ROWS) == rows and self._shelf.lines(each.key + POISON) == poison
            self.look(65, None if same else f"the ledger of {each} is not what the checkpoint holds")


class Owed(Check):
    """INV-44: what a commit could not delete of restored attempts, the next commit tries again."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._owed: dict[str, set[str]] = {}
        self._now: dict[str, set[str]] = {}
        """By server: what the commit under way has to try."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._new_life,
            "ledger.discarded": self._discarded,
            "ledger.discard_failed": self._failed,
            "commit.exported": self._exported,
            "phase": self._phase,
            "admission.admitted": self._claimed,
            "retire.done": self._retired,
            "restore.installed": self._restored,
            "forget.done": self._forgotten,
        }

    def _new_life(self, row: Row) -> None:
        self._owed.pop(row.node, None)
        self._now.pop(row.node, None)

    def _discarded(self, row: Row) -> None:
        fields, owed = row.fields, self._owed.setdefault(row.node, set())
        self._now.get(row.node, set()).difference_update(fields["deleted"], fields["started"], fields["failed"])
        owed.difference_update(fields["deleted"], fields["started"])
        owed.update(fields["failed"])

    def _failed(self, row: Row) -> None:
        self._now.pop(row.node, None)

    def _exported(self, row: Row) -> None:
        if row.fields["kind"] == Kind.MODEL:
            self._now[row.node] = self._owed.get(row.node, set()).difference(row.fields["scope"])

    def _phase(self, row: Row) -> None:
        if row.fields["now"] == "committed" and row.node in self._now:
            left = sorted(self._now.pop(row.node) & self._owed.get(row.node, set()))
            self.look(44, f"{left[0]} could not be deleted, and is not tried again" if left else None, row.node)

    def _claimed(self, row: Row) -> None:
        for owed in self._owed.values():
            owed.discard(row.fields["episode"])

    def _retired(self, row: Row) -> None:
        highest = {each.rollout_id: each.attempt for each in episodes(row.fields["episodes"])}
        self._drop(row.node, lambda at: at.attempt <= highest.get(at.rollout_id, -1))

    def _restored(self, row: Row) -> None:
        rollouts = {each.rollout_id for each in episodes(row.fields["scope"])}
        self._drop(row.node, lambda at: at.rollout_id in rollouts)

    def _forgotten(self, row: Row) -> None:
        self._drop(row.node, lambda at: at.rollout_id in row.fields["rollouts"])

    def _drop(self, node: str, gone: Callable[[EpisodeId], bool]) -> None:
        owed = self._owed.get(node, set())
        owed.difference_update([key for key in owed if gone(episode(key))])


def named(name: str) -> tuple[EpisodeId, str]:
    key, _, ending = name.rpartition(".lineage.")
    return episode(key), f".lineage.{ending}"
