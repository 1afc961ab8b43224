"""The run directory on the disk: after every crash, whenever somebody says that something is durable, and as soon as a
pointer is, since the next crash may come before anything else is written.

INV-48, 49, 50, 51. Two pictures are looked at: what reads now, and what would be left had everything unsynced been
lost at this instant.
"""

from __future__ import annotations

from collections.abc import Mapping

from gym_ckpt.errors import InvalidCheckpointState
from gym_ckpt.invariants import unchanged
from gym_ckpt.storage import layout
from gym_ckpt.storage.pointer import Pointer, read_pointer
from gym_ckpt.words import counted
from sim.disk import SimFileSystem
from sim.oracle.files import Picture, Tree, incomplete
from sim.oracle.findings import Check, Findings, Handler
from sim.oracle.known import Known
from sim.trace import Row


class RunDirectory(Check):
    """INV-48, 49, 51."""

    def __init__(self, findings: Findings, disk: SimFileSystem, run_dir: str, keep: int, writer: str) -> None:
        super().__init__(findings)
        self._disk = disk
        self.run_dir = run_dir
        self._keep = keep
        self._writer = writer
        """Who writes the pointer."""
        self._latest = layout.latest(run_dir)
        self._pointed: bytes | None = None
        """The durable pointer when it was last looked at."""
        self._held: list[str] = []
        """What must be restorable: the newest published checkpoints, at most `keep`, newest first."""
        self._named: set[str] = set()
        """Every checkpoint that a pointer has ever named."""
        self._acknowledged: str | None = None
        """The newest checkpoint of which the controller said that it is published for certain."""
        self._manifests: dict[str, dict[str, bytes]] = {}
        """Participants' directories with a durable manifest, as first seen."""
        self._sound: dict[str, dict[str, bytes]] = {}
        """By checkpoint: its files when it was last found complete."""
        self._seen: tuple[Tree, Tree] = ({}, {})
        self.mislaid = False
        """Somebody has moved the checkpoints away, and will put them back: there is nothing to look at."""
        self.rotten: set[str] = set()
        """Checkpoints in which the disk has changed a bit by itself: nobody can be blamed for those."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.crashed": self._crashed,
            "collector.published": self._published,
            "disk.flipped": self._flipped,
            "disk.mislaid": self._mislaid,
            "disk.put_back": self._mislaid,
            "disk.step": self._step,
        }

    def _step(self, row: Row) -> None:
        """The step before this one may have made a pointer durable."""
        if row.node != self._writer:
            return
        pointer = self._disk.durable_tree(self._latest).get(self._latest)
        if pointer != self._pointed:
            self._pointed = pointer
            self.inspect("at a new pointer")

    def _mislaid(self, row: Row) -> None:
        self.mislaid = row.event == "disk.mislaid"

    def _flipped(self, row: Row) -> None:
        self.rotten.add(row.fields["checkpoint_id"])

    def _crashed(self, row: Row) -> None:
        self.inspect(f"after the crash of {row.node}")

    def _published(self, row: Row) -> None:
        if row.fields["certain"]:
            self._acknowledged = row.fields["checkpoint_id"]
        self.inspect("at a publication")

    def inspect(self, when: str) -> None:
        """Look at everything, unless nothing has changed since."""
        live, durable = self._disk.tree(self.run_dir), self._disk.durable_tree(self.run_dir)
        if (live, durable) == self._seen or self.mislaid:
            self.look(48, None)
            return
        self._seen = (live, durable)
        for what, tree in (("what reads", live), ("what is durable", durable)):
            self._pointer(tree, f"{when}, {what}")
        self._restorable(live, durable, when)
        self._unchanged(durable)

    def _pointer(self, tree: Tree, when: str) -> None:
        try:
            pointer = read_pointer(Picture(tree), self.run_dir)
        except InvalidCheckpointState as error:
            self.look(48, f"{when}: {error.detail}")
            return
        if self._acknowledged is not None and (pointer is None or self._acknowledged not in pointer.published):
            names = pointer.checkpoint_id if pointer else "nothing"
            self.look(48, f"{when}: the pointer names {names}, and {self._acknowledged} was published before")
        if pointer is not None:
            self._named.update(pointer.published)
            why = self._incomplete(tree, pointer.checkpoint_id)
            self.look(48, None if why is None else f"{when}: the pointer names a checkpoint of which {why}")

    def _restorable(self, live: Tree, durable: Tree, when: str) -> None:
        """INV-51: whatever failed since, what was published is still there.

        Published is what the durable pointer names: one that reads new and is not synced yet may be taken back.
        """
        try:
            pointer = read_pointer(Picture(durable), self.run_dir)
        except InvalidCheckpointState:
            return  # seen above
        if pointer is not None:
            self._renew(pointer, when)
        for checkpoint_id in self._held:
            why = self._incomplete(live, checkpoint_id)
            self.look(51, None if why is None else f"{when}: {checkpoint_id} cannot be restored any more: {why}")

    def _renew(self, pointer: Pointer, when: str) -> None:
        if self._held and self._held[0] not in pointer.published:
            self.look(51, f"{when}: {self._held[0]} was published, and the pointer knows nothing of it")
        self._held = pointer.published[: self._keep]

    def _incomplete(self, tree: Tree, checkpoint_id: str) -> str | None:
        root = layout.checkpoint_dir(self.run_dir, checkpoint_id) + "/"
        if checkpoint_id in self.rotten:
            return None
        files = {path: data for path, data in tree.items() if path.startswith(root)}
        if self._sound.get(checkpoint_id) == files:
            return None
        why = incomplete(files, self.run_dir, checkpoint_id)
        if why is None:
            self._sound[checkpoint_id] = files
        return why

    def _unchanged(self, durable: Tree) -> None:
        now = participants(durable)
        for directory, before in list(self._manifests.items()):
            if any(f"/{name}/" in directory for name in self.rotten):
                continue
            if layout.MANIFEST in now.get(directory, {}):
                self.look(49, _named(directory, unchanged(before, now[directory])))
            else:
                del self._manifests[directory]  # pruned
        for directory, files in now.items():
            if layout.MANIFEST in files:
                self._manifests.setdefault(directory, files)

    def kept(self) -> None:
        """INV-51, at rest: exactly `keep` published checkpoints are left, or all there ever were. One that failed right
        before its pointer was written is none, and stays until another one is taken."""
        live = self._disk.tree(self.run_dir)
        suffix = "/" + layout.COLLECTION
        there = [name for name in self._named if layout.checkpoint_dir(self.run_dir, name) + suffix in live]
        wanted = len(self._held)
        self.look(
            51, None if len(there) == wanted else f"{counted(len(there), 'published checkpoint')} there, not {wanted}"
        )


class Written(Check):
    """INV-48: who says committed has its records durable. INV-50: after a resume no manifest appears."""

    def __init__(self, findings: Findings, known: Known, disk: SimFileSystem, run_dir: str) -> None:
        super().__init__(findings)
        self._known = known
        self._disk = disk
        self._run_dir = run_dir
        self._resumed: set[str] = set()
        """Participants' directories that had no manifest when they were resumed."""

    def handlers(self) -> Mapping[str, Handler]:
        return {"phase": self._phase, "resume.done": self._resume}

    def _directory(self, node: str) -> str | None:
        server = self._known.server(node)
        if server.opened is None:
            return None
        root = layout.checkpoint_dir(self._run_dir, server.opened)
        return layout.join(root, layout.GYM, server.kind, server.instance)

    def _phase(self, row: Row) -> None:
        self.after_all()
        if row.fields["now"] != "committed":
            return
        directory = self._directory(row.node)
        assert directory is not None, "what is committed was opened"
        files = self._disk.durable_tree(directory)
        there = layout.join(directory, layout.MANIFEST) in files and len(files) >= 2
        self.look(48, None if there else "committed, and its records are not durable", row.node)

    def _resume(self, row: Row) -> None:
        server = self._known.server(row.node)
        directory = self._directory(row.node)
        if directory is None or server.opened != row.fields["checkpoint_id"] or server.committed:
            return
        if layout.join(directory, layout.MANIFEST) not in self._disk.tree(directory):
            self._resumed.add(directory)

    def after_all(self) -> None:
        """Look at all that were resumed in the middle of a write."""
        for directory in sorted(self._resumed):
            late = layout.join(directory, layout.MANIFEST) in self._disk.tree(directory)
            self.look(50, f"{directory}: a manifest appeared after the resume" if late else None)


def participants(tree: Tree) -> dict[str, dict[str, bytes]]:
    """Participants' directories of all checkpoints with their lasting files by name."""
    found: dict[str, dict[str, bytes]] = {}
    for path, data in tree.items():
        directory, _, name = path.rpartition("/")
        if f"/{layout.GYM}/" in directory and (name == layout.MANIFEST or layout.is_records(name)):
            found.setdefault(directory, {})[name] = data
    return found


def _named(directory: str, reason: str | None) -> str | None:
    return None if reason is None else f"{directory}: {reason}"
