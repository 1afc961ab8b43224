"""What a simulated disk is made of: files and directories that know which of their changes would survive a crash.

An inode is durable bytes plus ordered unsynced writes; a directory is durable entries plus ordered unsynced changes;
`live` is what a reader sees. A change whose owner is None reached the disk in an earlier crash and waits only for its
turn behind others' unsynced ones.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Write:
    """An unsynced change of a file's bytes; `data` None cuts the file to `offset` bytes."""

    owner: str | None
    offset: int
    data: bytes | None
    doomed: bool = False
    """The kernel dropped the page after a failed fsync: readable for now, and no later fsync saves it."""

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            del content[self.offset :]
        if self.offset > len(content):
            content.extend(bytes(self.offset - len(content)))
        if self.data is not None:
            content[self.offset : self.offset + len(self.data)] = self.data


@dataclass(slots=True, eq=False)
class Inode:
    serial: int
    durable: bytearray = field(default_factory=bytearray)
    live: bytearray = field(default_factory=bytearray)
    pending: list[Write] = field(default_factory=list)

    def change(self, write: Write) -> None:
        write.apply(self.live)
        self.pending.append(write)

    def sync(self) -> None:
        for write in self.pending:
            if not write.doomed:
                write.apply(self.durable)
        self.pending = [write for write in self.pending if write.doomed]

    def evict(self, owner: str) -> None:
        """The process is gone that was told of the failed sync: others read what is on the disk."""
        kept = [write for write in self.pending if write.owner != owner or not write.doomed]
        if len(kept) < len(self.pending):
            self.pending = kept
            self.live = bytearray(self.durable)
            for write in kept:
                write.apply(self.live)

    def crash(self, owner: str, rng: random.Random, torn: bool) -> None:
        survivors: list[Write] = []
        for write in self.pending:
            if write.owner == owner:
                if write.doomed or not _survives(write, rng, torn):
                    continue
                write.owner = None
            survivors.append(write)
        while survivors and survivors[0].owner is None:
            survivors.pop(0).apply(self.durable)
        self.pending = survivors
        self.live = bytearray(self.durable)
        for write in survivors:
            write.apply(self.live)


def _survives(write: Write, rng: random.Random, torn: bool) -> bool:
    """Decide one unsynced write's fate; a torn one is changed in place."""
    fate = rng.choice(("lost", "kept", "prefix", "zeros", "suffix") if torn and write.data else ("lost", "kept"))
    if fate in ("lost", "kept") or write.data is None:
        return fate == "kept"
    cut = rng.randrange(len(write.data))
    if fate == "prefix":
        write.data = write.data[:cut]
    elif fate == "zeros":  # the size reached the disk, some of the data did not
        write.data = write.data[:cut] + bytes(len(write.data) - cut)
    else:
        write.data = bytes(cut) + write.data[cut:]
    return True


@dataclass(slots=True)
class Change:
    """An unsynced change of a directory: names bound, or unbound (None), all at once."""

    owner: str | None
    names: tuple[tuple[str, Node | None], ...]

    def apply(self, entries: dict[str, Node]) -> None:
        for name, node in self.names:
            if node is None:
                entries.pop(name, None)
            else:
                entries[name] = node


@dataclass(slots=True, eq=False)
class Directory:
    serial: int
    durable: dict[str, Node] = field(default_factory=dict)
    live: dict[str, Node] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)

    def change(self, change: Change) -> None:
        change.apply(self.live)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            change.apply(self.durable)
        self.pending = []

    def crash(self, owner: str, rng: random.Random, journalled: bool) -> None:
        mine = [change for change in self.pending if change.owner == owner]
        prefix = rng.randint(0, len(mine))
        kept = mine[:prefix] if journalled else [change for change in mine if rng.random() < 0.5]
        for change in kept:
            change.owner = None
        survivors = [change for change in self.pending if change.owner != owner]
        while survivors and survivors[0].owner is None:
            survivors.pop(0).apply(self.durable)
        self.pending = survivors
        self.live = dict(self.durable)
        for change in survivors:
            change.apply(self.live)


Node = Inode | Directory
