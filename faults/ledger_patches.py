"""Patches of the gate's capture and of the ledger, behind `faults.bugs`; as `faults.patches` otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from faults.patches import Bug, Patches, mutated
from gym_ckpt.core.lineage import LedgerRow, Link, find_parent
from gym_ckpt.participants import capture
from gym_ckpt.participants.captured import LedgerBook
from gym_ckpt.participants.environment import EnvironmentParticipant
from gym_ckpt.participants.gate import Delivery, GatedCall
from gym_ckpt.runtime.ledger import CaptureLedger
from gym_ckpt.storage import ledger, tokens
from gym_ckpt.storage.ledger import restoring, retiring, rows
from gym_ckpt.types import EpisodeId


def row_at_staging() -> Patches:
    old = '        await self.ports.probe("gate.staged")\n'
    new = """        await self.ports.probe("gate.staged")
        if entry.captured is not None:
            await self.book.ledger.append(self.episode, entry.captured)
"""
    return [(GatedCall, "start_captured", mutated(GatedCall.start_captured, old, new))]


def row_after_first_chunk() -> Patches:
    old = "            await self._gate.start_captured(answer if whole else None, head.content_type)\n"
    new = """            if not head.streamed:
                await self._gate.work.begin()
                self.sent = True
                await respond(self._send, Answer(answer, head.status, head.headers, head.content_type))
                await self._gate.start_captured(answer, head.content_type)
                return
            await self._gate.start_captured(answer, head.content_type)
"""
    return [(Delivery, "_gathered", mutated(Delivery._gathered, old, new))]


def answer_failed_write() -> Patches:
    old = 'raise Unavailable(f"the row of call {entry.call_id} could not be written: {error}") from None'
    return [(LedgerBook, "book", mutated(LedgerBook.book, old, "return"))]


def cut_row_write_short() -> Patches:
    return [
        (LedgerBook, "book", mutated(LedgerBook.book, "shield=True", "shield=False")),
        (CaptureLedger, "_unlocked", mutated(CaptureLedger._unlocked, "shield=shield", "shield=False")),
    ]


def silent_capture_failure() -> Patches:
    old = "return Entry(episode, row, poison=(_poison(call_id, Reason.CAPTURE_FAILED, error),))"
    return [(LedgerBook, "stage", mutated(LedgerBook.stage, old, "return Entry(episode, row)"))]


def consume_parents() -> Patches:
    """A row that was found as a parent once is not found again."""
    used: set[tuple[str, str]] = set()

    def find(rows: Sequence[LedgerRow], call: Any, prompt_ids: Any = None) -> Link:
        link = find_parent([row for row in rows if (row.capture_key, row.model_call_id) not in used], call, prompt_ids)
        if link.parent is not None:
            used.add((link.parent.capture_key, link.parent.model_call_id))
        return link

    return [(capture, "find_parent", find)]


def no_marker() -> Patches:
    async def admit(self: LedgerBook, episode: EpisodeId) -> None:
        return

    return [(LedgerBook, "admit", admit)]


def marker_not_checked() -> Patches:
    old = "if there(fs, path_of(directory, episode, Ending.STARTED)):"
    return [(ledger, "discard_unstarted", mutated(retiring.discard_unstarted, old, "if False:"))]


def fence_not_cleared() -> Patches:
    old = "if attempt > episode.attempt:"
    new = "if attempt > episode.attempt and ending is not Ending.FENCE:"
    return [(restoring, "_clear", mutated(restoring._clear, old, new))]


def rows_without_records_not_cleared() -> Patches:
    old = "for attempt, ending in work.found[episode.rollout_id]:"
    new = "for attempt, ending in work.found[episode.rollout_id] if episode in work.records else ():"
    return [(restoring, "_clear", mutated(restoring._clear, old, new))]


def no_fences_at_restore() -> Patches:
    return [(restoring, "_retire", mutated(restoring._retire, "if attempt not in fenced:", "if False:"))]


def restamp_carried_rows() -> Patches:
    old = "[row.encode()"
    new = "[msgspec.structs.replace(row, capture_key=target.key).encode()"
    return [(restoring, "_import", mutated(restoring._import, old, new))]


def everybody_owns() -> Patches:
    return [(LedgerBook, "_owns", lambda self, rollout_id: True)]


def tokens_not_synced() -> Patches:
    return [(tokens, "keep", mutated(tokens.keep, "fs.fsync_dir(parent_of(path))", "pass"))]


def fences_stay() -> Patches:
    async def forget(self: CaptureLedger, episodes: Iterable[EpisodeId]) -> None:
        return

    return [(CaptureLedger, "forget", forget)]


def restored_not_exported() -> Patches:
    """Restored attempts that nobody has called are left out of the next checkpoint."""
    real = CaptureLedger.export

    async def export(self: CaptureLedger, scope: Iterable[EpisodeId]) -> Any:
        return await real(self, [episode for episode in scope if episode not in self.pending])

    return [(CaptureLedger, "export", export)]


def held_tokens_left() -> Patches:
    async def unstage(self: LedgerBook, entry: Any) -> None:
        return

    return [(LedgerBook, "unstage", unstage)]


def dead_servers_tokens_left() -> Patches:
    return [(tokens, "_empty", lambda fs, directory: iter(()))]


def no_claim() -> Patches:
    async def claim(self: EnvironmentParticipant, episode: EpisodeId) -> None:
        return

    return [(EnvironmentParticipant, "_claim", claim)]


def copy_tried() -> Patches:
    stage = mutated(LedgerBook.stage, "if any(each.model_call_id == call_id for each in lineage.rows):", "if False:")
    book = mutated(LedgerBook.book, "if self.has(entry.episode, entry.call_id):", "if False:")
    return [(LedgerBook, "stage", stage), (LedgerBook, "book", book)]


def retire_not_synced() -> Patches:
    return [(retiring, "_durably", mutated(retiring._durably, "fs.fsync_dir(directory)", "pass"))]


def restore_not_synced() -> Patches:
    old = "fs.fsync_dir(work.directory)"
    return [(ledger, "continue_restore", mutated(restoring.continue_restore, old, "pass"))]


def failed_rows_exported() -> Patches:
    old = " if row.model_call_id not in hidden"
    return [(rows, "lineage_of", mutated(rows.lineage_of, old, ""))]


def hole_left() -> Patches:
    return [(ledger, "append_row", mutated(rows.append_row, "scan.end = end", "pass"))]


BUGS: tuple[Bug, ...] = (
    Bug(
        "hole-before-the-next-row",
        "what a row left that could be neither synced nor undone stays before the next one",
        "INV-16",
        hole_left,
    ),
    Bug(
        "failed-rows-exported",
        "a row that stands though its write failed is exported like any other",
        "INV-19",
        failed_rows_exported,
    ),
    Bug(
        "fences-of-a-retire-not-durable",
        "a retire answers before its fences are durable",
        "INV-36",
        retire_not_synced,
    ),
    Bug(
        "fences-of-a-restore-not-durable",
        "a restore answers before its fences are durable",
        "INV-63",
        restore_not_synced,
    ),
    Bug(
        "copy-poisons-the-original",
        "a copy of a delivered call is written like any other, and its failure poisons the row that stands",
        "INV-42",
        copy_tried,
    ),
)
