"""Routes of the capture ledger for the framework that trains on it, behind the control token.

    POST /ng-control/v1/ledger/manifest   what the ledger holds, of some capture keys or of all
    POST /ng-control/v1/ledger/verify     whether lineages are what their rows say, token by token
    POST /ng-control/v1/ledger/retire     fence attempts and all earlier ones, and remove what they left
    POST /ng-control/v1/ledger/delete     remove exactly these attempts, once they have been used
    POST /ng-control/v1/ledger/sweep      remove staged tokens that neither a row nor the caller names

All but verify answer 409 while a checkpoint is open; none opens before a retire or a delete is done, or a piece of a
sweep (INV-47): otherwise it could hold an episode without its lineage. Any server that shares the ledger answers for
all of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import anyio
import msgspec

from gym_ckpt.core.lineage import LedgerRow, Reason
from gym_ckpt.core.rebuild import Conversation, LineageInvalid, verifying
from gym_ckpt.errors import DeadlineExceeded, InvalidCheckpointState, Unavailable
from gym_ckpt.limits import CONTROL_BODY_MAX_BYTES, LEDGER_PIECE
from gym_ckpt.participants.captured import LedgerBook, in_turns
from gym_ckpt.runtime.asgi import Answer, Request, Route, answer
from gym_ckpt.runtime.control import ControlPlane
from gym_ckpt.runtime.install import CONTROL_ROOT
from gym_ckpt.storage.ledger import Lineage, Listed
from gym_ckpt.storage.tokens import StagedDamaged, StagedMissing
from gym_ckpt.types import EpisodeId, keys
from gym_ckpt.wire.digests import StagedCall, cumulative_hash
from gym_ckpt.wire.messages import EpisodeRef, RetireRequest, SweepRequest, decode, plain, scope_of
from gym_ckpt.words import counted

T = TypeVar("T")
LEDGER_ROOT = CONTROL_ROOT + "v1/ledger/"


class ManifestRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`episode_ids`: all that there are, when left out. `after`: the capture key that an answer before ended with."""

    episode_ids: list[EpisodeRef] | None = None
    after: str | None = None


class VerifyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    episode_ids: list[EpisodeRef]


class Tip(msgspec.Struct, frozen=True):
    """One conversation: its last call, its tokens' number and their cumulative hash."""

    model_call_id: str
    tokens: int
    generated: int
    cumulative_hash: str


class Verified(msgspec.Struct, frozen=True):
    """`reason`, `model_call_id`, `detail`: of the first thing that does not hold; `tips` when everything does."""

    capture_key: str
    rows: int
    usable: bool
    tips: tuple[Tip, ...] = ()
    reason: str | None = None
    model_call_id: str | None = None
    detail: str | None = None


class VerifyReply(msgspec.Struct, frozen=True):
    lineages: tuple[Verified, ...]


class ChangedReply(msgspec.Struct, frozen=True):
    """Capture keys that were asked for."""

    done: tuple[str, ...]


class SweepReply(msgspec.Struct, frozen=True):
    """Staged calls: removed, still needed, and passed over because their rollout was being written: sweep again."""

    removed: int
    kept: int
    busy: int


def ledger_routes(book: LedgerBook, control: ControlPlane) -> tuple[Route, ...]:
    """The routes of one server."""

    async def manifest(request: Request) -> Answer:
        asked = decode(await request.body(CONTROL_BODY_MAX_BYTES), ManifestRequest)
        control.refuse_while_open()
        wanted = None if asked.episode_ids is None else scope_of(asked.episode_ids)
        after = None if asked.after is None else EpisodeId.from_key(asked.after)
        listed, more = await _readable(book.ledger.manifest(wanted, after))
        return answer({"lineages": [_listed(each) for each in listed], "more": more})

    async def verified(request: Request) -> Answer:
        asked = decode(await request.body(CONTROL_BODY_MAX_BYTES), VerifyRequest)
        return answer(VerifyReply(tuple([await _verified(book, each) for each in scope_of(asked.episode_ids)])))

    async def retire(request: Request) -> Answer:
        asked = decode(await request.body(CONTROL_BODY_MAX_BYTES), RetireRequest)
        episodes = scope_of(asked.episode_ids)
        async with control.between_checkpoints(control.deadline(asked), "retire of ledgers"):
            await _readable(book.ledger.retire(episodes))
        return answer(ChangedReply(tuple(keys(episodes))))

    async def delete(request: Request) -> Answer:
        asked = decode(await request.body(CONTROL_BODY_MAX_BYTES), RetireRequest)
        episodes = scope_of(asked.episode_ids)
        async with control.between_checkpoints(control.deadline(asked), "delete of ledgers"):
            await _readable(book.ledger.delete(episodes))
        return answer(ChangedReply(tuple(keys(episodes))))

    async def sweep(request: Request) -> Answer:
        asked = decode(await request.body(CONTROL_BODY_MAX_BYTES), SweepRequest)
        return answer(await _swept(book, control, asked))

    handlers = {"manifest": manifest, "verify": verified, "retire": retire, "delete": delete, "sweep": sweep}
    return tuple(Route("POST", LEDGER_ROOT + name, handler) for name, handler in handlers.items())


async def _swept(book: LedgerBook, control: ControlPlane, asked: SweepRequest) -> SweepReply:
    """Piece by piece, so that a checkpoint may open between two of them: it ends the sweep, and loses nothing by it,
    since what has a row by then was never among the candidates, or is looked at once more.

    The first piece is swept whatever the deadline, so that each repetition gets on.
    """
    until, doing = control.deadline(asked), "sweep of staged tokens"
    control.refuse_while_open()
    found = await _readable(book.unneeded(frozenset(asked.staging_keys)))
    removed, kept, busy = 0, found.kept, 0
    for begin in range(0, len(found.keys), LEDGER_PIECE):
        if begin and anyio.current_time() >= until:
            raise DeadlineExceeded(f"{doing}: {counted(removed, 'staged call')} removed in time, not all: repeat")
        async with control.between_checkpoints(max(until, anyio.current_time()), doing):
            swept = await _readable(book.sweep(found.keys[begin : begin + LEDGER_PIECE]))
        removed, kept, busy = removed + swept.removed, kept + swept.kept, busy + swept.busy
    return SweepReply(removed, kept, busy)


async def _readable(work: Awaitable[T]) -> T:
    try:
        return await work
    except OSError as error:
        raise Unavailable(f"the ledger's files: {error}: repeat") from None


def _listed(each: Listed) -> dict[str, Any]:
    return {
        "capture_key": each.episode.key,
        "rows": [row.plain() for row in each.rows],
        "poison": [plain(entry) for entry in each.poison],
        "fenced": each.fenced,
        "started": each.started,
    }


async def _verified(book: LedgerBook, episode: EpisodeId) -> Verified:
    """Rebuild every conversation of one lineage from its staged tokens."""
    rows: Sequence[LedgerRow] = ()
    try:
        lineage: Lineage = await _readable(book.ledger.read(episode))
        rows = lineage.rows
        staged = await _staged(book, rows)
        found = await in_turns(verifying(episode, rows, staged, lineage.poison))  # others' streams go on
    except LineageInvalid as error:
        return Verified(episode.key, len(rows), False, (), error.reason, error.call_id, str(error))
    except InvalidCheckpointState as error:
        return Verified(episode.key, 0, False, (), Reason.DAMAGED, None, error.detail)
    if not rows:
        return Verified(episode.key, 0, False, (), Reason.NO_ROWS, None, "the ledger has no row of this attempt")
    return Verified(episode.key, len(rows), True, tuple(_tip(call_id, each) for call_id, each in sorted(found.items())))


async def _staged(book: LedgerBook, rows: Sequence[LedgerRow]) -> dict[str, StagedCall]:
    """What is not there, or is not what was staged, is left out: the rebuild says so."""
    staged = {}
    for row in rows:
        try:
            staged[row.staging_key] = await _readable(book.tokens.get(row.staging_key))
        except (StagedMissing, StagedDamaged):
            continue
    return staged


def _tip(call_id: str, made: Conversation) -> Tip:
    return Tip(call_id, len(made.token_ids), sum(map(int, made.mask)), cumulative_hash(made.token_ids))
