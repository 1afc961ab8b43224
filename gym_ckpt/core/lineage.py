"""The capture ledger's rows and what may be said of them without their tokens.

A row is the token-free record of one model call whose answer started. Rows are written once (identical again changes
nothing, different is refused) and link to their parent by the fingerprint of the conversation: looked up, never
consumed, so that a request that was refused or lost leaves its parent where it was (INV-67). A call whose parent cannot
be told is served, and makes its rollout unusable for training, with the reason. A carried row keeps the capture key of
its first staging (INV-64).

Pure: knows no file, no lock and no token store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gym_ckpt.core.fingerprints import Asked
from gym_ckpt.errors import GymCkptError, InvalidRolloutId
from gym_ckpt.limits import RESPONSE_ID_MAX_CHARS
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from gym_ckpt.wire.digests import StagedCall, chain_hash, cumulative_hash
from gym_ckpt.wire.messages import plain

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class LedgerRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One call whose answer started. `admitted_at`: seconds since the epoch by the clock of its server."""

    model_call_id: str
    parent_call_id: str | None
    staging_key: str
    prev_len: Count
    delta_len: Count
    cum_len: Count
    chain_hash: Digest
    cumulative_hash: Digest
    staging_digest: Digest
    admitted_at: float
    weight_version: Count
    mode: str
    response_id: str | None
    request_fingerprint: str
    """Of the messages that the call sent."""
    conversation_fingerprint: str
    """Of the conversation after its answer: what a call that continues it is looked up by."""
    staging_chain: tuple[str, ...]
    """Staging keys of the prefixes that this call's generation was continued from, oldest first (cuts)."""
    capture_key: str
    """The key under which the call was staged first, over any number of restores."""

    @property
    def staging_keys(self) -> tuple[str, ...]:
        """Every staged key that this row needs (INV-46)."""
        return (*self.staging_chain, self.staging_key)

    def encode(self) -> bytes:
        """One line of the ledger, without its newline: sorted keys, compact. Raises `NotLossless`."""
        return json.dumps(self.plain(), sort_keys=True)

    def plain(self) -> dict[str, Any]:
        """As JSON data; a restore encodes tens of thousands, so without looking for structs in it."""
        return msgspec.structs.asdict(self) | {"staging_chain": list(self.staging_chain)}


class Reason(StrEnum):
    """Why a rollout cannot be trained on, or why a lineage is not what its rows say."""

    # Found while the call is served.
    PARENT_UNRESOLVED = "parent_unresolved"
    PARENT_AMBIGUOUS = "parent_ambiguous"
    PREFIX_MISMATCH = "prefix_mismatch"
    """The prompt's tokens do not begin with the parent's: the history was rendered anew."""
    CAPTURE_FAILED = "capture_failed"
    """The call could not be staged; its answer was served."""
    ROW_WRITE_FAILED = "row_write_failed"
    """The row could not be written; no answer was sent (INV-19)."""
    # Found when the lineage is rebuilt.
    POISONED = "poisoned"
    DUPLICATE_CALL = "duplicate_call"
    MISSING_PARENT = "missing_parent"
    FOREIGN_CAPTURE_KEY = "foreign_capture_key"
    ATTEMPT_ORDER = "attempt_order"
    """A child was staged by an earlier attempt than its parent."""
    NOT_CONTIGUOUS = "not_contiguous"
    MISSING_STAGED = "missing_staged"
    INVALID_STAGING = "invalid_staging"
    DIGEST_MISMATCH = "digest_mismatch"
    ROW_MISMATCH = "row_mismatch"
    """The staged call is sound and not the one that the row describes."""
    CHAIN_MISMATCH = "chain_mismatch"
    CUMULATIVE_MISMATCH = "cumulative_mismatch"
    UNKNOWN_CALL = "unknown_call"
    # Found when its files are read.
    DAMAGED = "damaged"
    NO_ROWS = "no_rows"
    """Never served, retired or deleted: there is nothing to train on."""


class Poison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One reason why a rollout is unusable for training, and the call that it was found at."""

    model_call_id: str
    reason: str
    detail: str = ""

    def encode(self) -> bytes:
        """One line of a poison file, without its newline. Raises `NotLossless`."""
        return json.dumps(plain(self), sort_keys=True)


class RowConflict(GymCkptError):
    """This call has another row already: rows are written once."""

    def __init__(self, key: str, call_id: str) -> None:
        super().__init__(f"model call {call_id!r:.200} of {key} has another row already")
        self.call_id = call_id


def parse_row(value: Any) -> LedgerRow:
    """A row in plain data. Raises `msgspec.ValidationError`."""
    return msgspec.convert(value, LedgerRow)


def written_before(key: str, rows: Iterable[LedgerRow], row: LedgerRow) -> bool:
    """Whether `row` stands already.

    Raises:
        RowConflict: another row of its call does.
    """
    for there in rows:
        if there.model_call_id == row.model_call_id:
            if there != row:
                raise RowConflict(key, row.model_call_id)
            return True
    return False


# --------------------------------------------------------------------------------------------------- parents


@dataclass(frozen=True, slots=True)
class Link:
    """Where a call stands. `why` is set when that cannot be told: it is then staged as a root, and its rollout is
    unusable for training."""

    parent: LedgerRow | None
    why: Reason | None = None


def find_parent(rows: Sequence[LedgerRow], call: Asked, prompt_ids: Sequence[int] | None = None) -> Link:
    """The row that a call continues; a conversation in which the model has not spoken yet has none and needs none.

    `prompt_ids`, when known, must begin with the parent's tokens. Two calls that had the same answer, token for token,
    after the same conversation are one parent.
    """
    if call.continues is None:
        return Link(None)
    found = [row for row in rows if row.conversation_fingerprint == call.continues]
    if not found:
        return Link(None, Reason.PARENT_UNRESOLVED)
    if len({(row.chain_hash, row.cumulative_hash, row.weight_version) for row in found}) > 1:
        return Link(None, Reason.PARENT_AMBIGUOUS)
    parent = found[-1]  # the same tokens of the same weights, each time: an answer that was lost, and its repetition
    if prompt_ids is not None and cumulative_hash(prompt_ids[: parent.cum_len]) != parent.cumulative_hash:
        return Link(None, Reason.PREFIX_MISMATCH)
    return Link(parent)


def belongs(capture_key: str, episode: EpisodeId) -> bool:
    """Whether a row staged under this key may stand in the attempt's lineage: its own or an earlier one (INV-64)."""
    try:
        staged = EpisodeId.from_key(capture_key)
    except InvalidRolloutId:
        return False
    return staged.rollout_id == episode.rollout_id and staged.attempt <= episode.attempt


# -------------------------------------------------------------------------------------------- making a row


@dataclass(frozen=True, slots=True)
class Generated:
    """What a call sent and got: whole prompt, generated tokens with their log-probabilities, and the rest."""

    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    log_probabilities: Sequence[float]
    weight_version: int
    extras: Any = None


def stage(episode: EpisodeId, call_id: str, parent: LedgerRow | None, made: Generated) -> StagedCall:
    """The staged form of a call: the part of its prompt after its parent's tokens, and what it generated.

    Its rules are checked by `staging_digest`, which a token store calls before it keeps anything.

    Raises:
        InvalidStaging: a malformed token id.
    """
    prev_len = 0 if parent is None else parent.cum_len
    carried = len(made.prompt_ids) - prev_len
    assert carried >= 0, "find_parent has seen the prompt begin with the parent's tokens"
    delta = (*made.prompt_ids[prev_len:], *made.token_ids)
    return StagedCall(
        rollout_id=episode.key,
        model_call_id=call_id,
        parent_call_id=None if parent is None else parent.model_call_id,
        mode="text" if parent is None else "token_in",
        prev_len=prev_len,
        delta_len=len(delta),
        cum_len=prev_len + len(delta),
        weight_version=made.weight_version,
        delta=delta,
        mask=(0.0,) * carried + (1.0,) * len(made.token_ids),
        log_probabilities=(0.0,) * carried + tuple(made.log_probabilities),
        extras=made.extras,
        chain_hash=chain_hash(None if parent is None else parent.chain_hash, delta),
        cumulative_hash=cumulative_hash((*made.prompt_ids, *made.token_ids)),
    )


@dataclass(frozen=True, slots=True)
class Context:
    """What a row says beside its staged call. Times in seconds since the epoch."""

    admitted_at: float
    response_id: str | None
    request_fingerprint: str
    conversation_fingerprint: str
    staging_chain: tuple[str, ...] = ()


def fits_a_row(call: StagedCall, context: Context) -> None:
    """Whether the row of this call can be read back: a digest carries numbers that a row does not.

    Raises:
        msgspec.ValidationError: naming the field.
    """
    if len(context.response_id or "") > RESPONSE_ID_MAX_CHARS:
        raise msgspec.ValidationError(f"the response's id is longer than {RESPONSE_ID_MAX_CHARS} characters")
    parse_row(row_of(call, "", call.chain_hash, context).plain())


def row_of(call: StagedCall, staging_key: str, digest: str, context: Context) -> LedgerRow:
    """The row of a call that has been staged under `staging_key` with this digest."""
    return LedgerRow(
        model_call_id=call.model_call_id,
        parent_call_id=call.parent_call_id,
        staging_key=staging_key,
        prev_len=call.prev_len,
        delta_len=call.delta_len,
        cum_len=call.cum_len,
        chain_hash=call.chain_hash,
        cumulative_hash=call.cumulative_hash,
        staging_digest=digest,
        admitted_at=context.admitted_at,
        weight_version=call.weight_version,
        mode=call.mode,
        response_id=context.response_id,
        request_fingerprint=context.request_fingerprint,
        conversation_fingerprint=context.conversation_fingerprint,
        staging_chain=context.staging_chain,
        capture_key=call.rollout_id,
    )
