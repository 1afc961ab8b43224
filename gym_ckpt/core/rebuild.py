"""From rows and staged arrays back to conversations, believing neither.

Every row of a lineage is checked against its parent's row and its own staged call: places, digests, chain and
cumulative hashes, and whose capture key it bears (INV-64). What holds is exactly prompt, generated and tool text of the
row's own chain (INV-4). The first thing that does not hold is refused with its reason and the call.

Pure: knows no file and no token store; the staged calls are handed in.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from gym_ckpt.core.lineage import LedgerRow, Poison, Reason, belongs
from gym_ckpt.errors import GymCkptError
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire.digests import InvalidStaging, StagedCall, chain_hash, cumulative_hash, staging_digest


class LineageInvalid(GymCkptError):
    """A lineage is not what its rows say, or must not be trained on."""

    def __init__(self, reason: Reason, call_id: str, detail: str = "") -> None:
        super().__init__(f"{reason} at model call {call_id!r:.200}" + (f": {detail}" if detail else ""))
        self.reason = reason
        self.call_id = call_id


@dataclass(frozen=True, slots=True)
class Conversation:
    """The tokens of one conversation up to and including a call's answer; the three arrays are equally long."""

    call_ids: tuple[str, ...]
    """From the root."""
    token_ids: tuple[int, ...]
    mask: tuple[float, ...]
    log_probabilities: tuple[float, ...]


def rebuild(
    episode: EpisodeId,
    rows: Sequence[LedgerRow],
    staged: Mapping[str, StagedCall],
    poison: Iterable[Poison] = (),
    *,
    tip: str | None = None,
) -> Conversation:
    """The conversation that ends with call `tip` (the last row's, unless given), every call on its way verified.

    `staged` holds the staged calls by staging key; more than needed does no harm. Calls beside the chain are not
    looked at, except that poison anywhere makes the whole rollout unusable.

    Raises:
        LineageInvalid: with the reason and the call.
    """
    for entry in poison:
        raise LineageInvalid(Reason.POISONED, entry.model_call_id, entry.reason)
    chain = _chain(rows, tip)
    made = Conversation((), (), (), ())
    for parent, row in zip([None, *chain], chain, strict=False):
        made = _extend(episode, made, parent, row, staged.get(row.staging_key))
    return made


def verify(
    episode: EpisodeId, rows: Sequence[LedgerRow], staged: Mapping[str, StagedCall], poison: Iterable[Poison] = ()
) -> dict[str, Conversation]:
    """Verify every row, branches included; the conversations of the calls that nothing continues, by call id.

    Raises:
        LineageInvalid: with the reason and the call, the first in the order of the ledger.
    """
    steps = verifying(episode, rows, staged, poison)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("dict[str, Conversation]", end.value)


def verifying(
    episode: EpisodeId, rows: Sequence[LedgerRow], staged: Mapping[str, StagedCall], poison: Iterable[Poison] = ()
) -> Generator[None, None, dict[str, Conversation]]:
    """As `verify`, yielding after each row: each costs time in proportion to the whole conversation before it."""
    for entry in poison:
        raise LineageInvalid(Reason.POISONED, entry.model_call_id, entry.reason)
    by_id = _by_id(rows)
    waiting = {row.model_call_id: 0 for row in rows}
    for row in rows:
        if row.parent_call_id in waiting:
            waiting[row.parent_call_id] += 1
    open_ends: dict[str, Conversation] = {}
    kept: dict[str, Conversation] = {}
    for row in rows:
        before = Conversation((), (), (), ())
        parent = None
        if row.parent_call_id is not None:
            if row.parent_call_id not in kept:
                raise LineageInvalid(
                    Reason.MISSING_PARENT, row.model_call_id, f"no {row.parent_call_id!r:.200} before it"
                )
            parent, before = by_id[row.parent_call_id], kept[row.parent_call_id]
            waiting[row.parent_call_id] -= 1
            if not waiting[row.parent_call_id]:
                del kept[row.parent_call_id]  # nobody else continues it: hold one prefix per open branch, not per call
        made = _extend(episode, before, parent, row, staged.get(row.staging_key))
        (kept if waiting[row.model_call_id] else open_ends)[row.model_call_id] = made
        yield
    return open_ends


def _by_id(rows: Sequence[LedgerRow]) -> dict[str, LedgerRow]:
    by_id: dict[str, LedgerRow] = {}
    for row in rows:
        if by_id.setdefault(row.model_call_id, row) is not row:
            raise LineageInvalid(Reason.DUPLICATE_CALL, row.model_call_id)
    return by_id


def _chain(rows: Sequence[LedgerRow], tip: str | None) -> list[LedgerRow]:
    """From the root to the tip. A parent stands before its children in the ledger, so no chain is endless."""
    by_id = _by_id(rows)
    order = {row.model_call_id: at for at, row in enumerate(rows)}
    if not rows or (tip is not None and tip not in by_id):
        raise LineageInvalid(Reason.UNKNOWN_CALL, tip or "", "it has no row")
    at = rows[-1] if tip is None else by_id[tip]
    chain = [at]
    while at.parent_call_id is not None:
        parent = by_id.get(at.parent_call_id)
        if parent is None or order[parent.model_call_id] >= order[at.model_call_id]:
            raise LineageInvalid(Reason.MISSING_PARENT, at.model_call_id, f"no {at.parent_call_id!r:.200} before it")
        chain.append(parent)
        at = parent
    return chain[::-1]


def _extend(
    episode: EpisodeId, before: Conversation, parent: LedgerRow | None, row: LedgerRow, call: StagedCall | None
) -> Conversation:
    """The conversation with one more call, once everything said of that call is verified."""

    def refuse(reason: Reason, detail: str = "") -> LineageInvalid:
        return LineageInvalid(reason, row.model_call_id, detail)

    if not belongs(row.capture_key, episode):
        raise refuse(Reason.FOREIGN_CAPTURE_KEY, f"{row.capture_key!r:.220} in {episode.key}")
    if parent is not None and not belongs(parent.capture_key, EpisodeId.from_key(row.capture_key)):
        raise refuse(Reason.ATTEMPT_ORDER, f"{parent.capture_key} comes after {row.capture_key}")
    if row.prev_len != len(before.token_ids):
        raise refuse(Reason.NOT_CONTIGUOUS, f"it begins at {row.prev_len}, its parent ends at {len(before.token_ids)}")
    if call is None:
        raise refuse(Reason.MISSING_STAGED, row.staging_key)
    try:
        digest = staging_digest(call)
    except InvalidStaging as error:
        raise refuse(Reason.INVALID_STAGING, str(error)) from None
    if digest != row.staging_digest:
        raise refuse(Reason.DIGEST_MISMATCH)
    wrong = [name for name, said, staged in _compared(row, call) if said != staged]
    if wrong:
        raise refuse(Reason.ROW_MISMATCH, ", ".join(wrong))
    if row.chain_hash != chain_hash(None if parent is None else parent.chain_hash, call.delta):
        raise refuse(Reason.CHAIN_MISMATCH)
    token_ids = before.token_ids + call.delta
    if row.cumulative_hash != cumulative_hash(token_ids):
        raise refuse(Reason.CUMULATIVE_MISMATCH)
    return Conversation(
        (*before.call_ids, row.model_call_id),
        token_ids,
        before.mask + call.mask,
        before.log_probabilities + call.log_probabilities,
    )


def _compared(row: LedgerRow, call: StagedCall) -> tuple[tuple[str, object, object], ...]:
    """What a row and its staged call both say."""
    shared = (
        "model_call_id", "parent_call_id", "prev_len", "delta_len", "cum_len", "weight_version", "mode",
        "chain_hash", "cumulative_hash",
    )  # fmt: skip
    pairs = tuple((name, getattr(row, name), getattr(call, name)) for name in shared)
    return (*pairs, ("capture_key", row.capture_key, call.rollout_id))
