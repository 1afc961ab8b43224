"""Restores: all or nothing, exactly what was exported, on clean ground, closed (INV-60, 62, 63, 65)."""

from __future__ import annotations

from collections.abc import Mapping

from gym_ckpt.invariants import marked, nothing_of, same_state
from sim.oracle.files import Archive, Member
from sim.oracle.findings import Check, Findings, Handler, episodes
from sim.oracle.known import Known
from sim.trace import Row


class Installing(Check):
    """INV-60, 65: what a server installs is what its checkpoint holds, each time. INV-62, 63: the ground is clean."""

    def __init__(self, findings: Findings, archive: Archive) -> None:
        super().__init__(findings)
        self._archive = archive
        self._installed: dict[tuple[str, Member, str], str] = {}
        """Digest of each state that was installed, by checkpoint, participant and attempt."""

    def handlers(self) -> Mapping[str, Handler]:
        return {"restore.installed": self._seen}

    def _seen(self, row: Row) -> None:
        fields = row.fields
        member = (fields["kind"], fields["instance"])
        scope = episodes(fields["scope"])
        held = self._archive.contents(fields["source"]).digests.get(member, {})
        exported = {each.next().key: held[each] for each in scope if each in held}
        self.look(60, same_state(exported, fields["digests"]), row.node)
        for key, digest in fields["digests"].items():
            before = self._installed.setdefault((fields["source"], member, key), digest)
            self.look(65, None if before == digest else f"{key} was restored with another state before", row.node)
        self._ground(row)

    def _ground(self, row: Row) -> None:
        scope, marks = episodes(row.fields["scope"]), row.fields["marks"]
        self.look(63, marked(marks, scope), row.node)
        rollouts = {each.rollout_id for each in scope}
        over = sorted(each.key for each in scope if marks.get(each.rollout_id, -1) > each.attempt)
        self.look(62, f"the attempt after {over[0]} is still refused" if over else None, row.node)
        live = {each.key for each in episodes(row.fields["live"]) if each.rollout_id in rollouts}
        stale, lost = sorted(live.difference(row.fields["digests"])), sorted(row.fields["digests"].keys() - live)
        self.look(62, f"{stale[0]} is left over" if stale else None, row.node)
        why = "its install did not keep it, or what dead attempts left was dropped after it"
        self.look(60, f"{lost[0]} was installed, and nothing of it is there: {why}" if lost else None, row.node)


class AllOrNothing(Check):
    """INV-60: a restore is confirmed when all have installed; otherwise nothing of N+1 is left once it has ended."""

    def __init__(self, findings: Findings, known: Known, archive: Archive) -> None:
        super().__init__(findings)
        self._known = known
        self._archive = archive
        self._confirmed: set[str] = set()
        self._installed: dict[str, set[Member]] = {}

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "restore.installed": self._seen,
            "collector.restored": self._restored,
            "restore.ended": self._ended,
        }

    def _seen(self, row: Row) -> None:
        members = self._installed.setdefault(row.fields["restore_id"], set())
        members.add((row.fields["kind"], row.fields["instance"]))

    def _restored(self, row: Row) -> None:
        restore_id, installed = row.fields["restore_id"], set(episodes(row.fields["installed"]))
        self._confirmed.add(restore_id)
        for member, held in self._archive.contents(row.fields["checkpoint_id"]).records.items():
            wanted = sorted(each for each in held if each.next() in installed)
            if wanted:
                there = member in self._installed.get(restore_id, ())
                self.look(60, None if there else f"{'/'.join(member)} never installed {wanted[0].next()}", row.node)

    def _ended(self, row: Row) -> None:
        if row.fields["restore_id"] in self._confirmed:
            return  # by resume it stays; by its lease it is discarded like any other
        targets = episodes(row.fields["targets"])
        self.look(60, nothing_of(targets, episodes(row.fields["live"])), row.node)
        self.look(60, marked(row.fields["marks"], targets), row.node)


class Lapsed(Check):
    """INV-60: whoever resumes a restore of which nothing is left is told so, and sends none of its attempts."""

    def __init__(self, findings: Findings, known: Known) -> None:
        super().__init__(findings)
        self._known = known
        self._gone: set[tuple[str, str]] = set()
        """Server, in its present life, and restore: its lease has ended it, or a retire has given it up."""
        self._installed: dict[str, set[str]] = {}
        self._told: dict[str, str] = {}
        """Attempts of restores that the controller knows to be gone, and which."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._new_life,
            "phase": self._phase,
            "resume.done": self._resumed,
            "collector.restored": self._restored,
            "coordination.restore_lapsed": self._lapsed,
            "collector.dispatch": self._sent,
        }

    def _new_life(self, row: Row) -> None:
        self._gone = {gone for gone in self._gone if gone[0] != row.node}

    def _phase(self, row: Row) -> None:
        restore_id = self._known.server(row.node).opened
        if row.fields["was"] in ("restoring", "restored") and row.fields["why"] in ("LeaseCheck", "Retire"):
            assert restore_id is not None, "what is restored was opened"
            self._gone.add((row.node, restore_id))

    def _resumed(self, row: Row) -> None:
        restore_id = row.fields["checkpoint_id"]
        gone = (row.node, restore_id) in self._gone
        self.look(60, f"{restore_id} is resumed as if it stood, and nothing of it is left" if gone else None, row.node)

    def _restored(self, row: Row) -> None:
        self._installed[row.fields["restore_id"]] = set(row.fields["installed"])
        for again in row.fields["installed"]:  # by servers that were restarted since
            self._told.pop(again, None)

    def _lapsed(self, row: Row) -> None:
        restore_id = row.fields["restore_id"]
        self._told.update(dict.fromkeys(self._installed.get(restore_id, ()), restore_id))

    def _sent(self, row: Row) -> None:
        sent = row.fields["episode"]
        gone = self._told.get(sent)
        self.look(60, f"{sent} is sent, and {gone} has lapsed" if gone else None, row.node)
