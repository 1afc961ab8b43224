"""Bodies of the control routes, exactly as they travel (field names are NeMo Gym's; unknown fields are refused).

Decoding validates types; `Deadline` and ids are checked by the receiver, which alone knows the clock. Scopes travel as
`[{rollout_id, attempt}]` and are sorted and free of duplicates once decoded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from gym_ckpt.errors import InvalidRequest, ProtocolError
from gym_ckpt.limits import BLOCKERS_SHOWN
from gym_ckpt.types import ATTEMPT_MAX, EpisodeId, check_checkpoint_id, check_rollout_id
from gym_ckpt.wire import json

CONTROL_PREFIX = "/ng-control/v1/checkpoint/"
ROLLOUT_PREFIX = "/ng-rollout/"
CONTINUED_HEADER = "x-ng-checkpoint-continued"
"""On a `/run` that goes on from a restored record: whoever has none must not begin the attempt from its input."""

RUN_HEADER = "x-ng-checkpoint-run"
"""On a `/run`, and on each call that is made for it: the name of the run that has sent it. On a forget: that name, a
space and the highest attempt of each of its rollouts; copies of their calls are refused for a while then. A header,
because others refuse fields of a body that they do not know."""

CALL_ID = "x-ng-model-call-id"
"""On a model call: the id that its caller gives it."""

M = TypeVar("M", bound=msgspec.Struct)


class EpisodeRef(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    rollout_id: str
    attempt: int = 0

    def checked(self) -> EpisodeId:
        return EpisodeId.checked(self.rollout_id, self.attempt)


class CheckpointRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Fields of every operation on one checkpoint. `deadline_ts`: seconds since the epoch; `budget_s`: seconds."""

    checkpoint_id: str
    deadline_ts: float
    budget_s: float | None = None


class PrepareRequest(CheckpointRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class RenewRequest(CheckpointRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ResumeRequest(CheckpointRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class CommitRequest(CheckpointRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    checkpoint_dir: str
    episode_ids: list[EpisodeRef]
    stop: bool = False


class RestoreRequest(CheckpointRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    checkpoint_dir: str
    episode_ids: list[EpisodeRef]

    def continued(self) -> tuple[EpisodeId, ...]:
        """The scope: of one rollout one attempt, and one that has a next.

        Raises:
            InvalidRequest: it names two of one, or the last that there is.
            InvalidRolloutId: a malformed id.
        """
        scope = scope_of(self.episode_ids)
        for one, other in pairwise(scope):
            if one.rollout_id == other.rollout_id:
                raise InvalidRequest(f"{one.rollout_id} is named at attempts {one.attempt} and {other.attempt}")
        last = next((episode for episode in scope if episode.attempt >= ATTEMPT_MAX), None)
        if last is not None:
            raise InvalidRequest(f"no attempt comes after {last}")
        return scope


class RetireRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`checkpoint_id`: a common field that says nothing here, so that it may be there, and is not sent."""

    episode_ids: list[EpisodeRef]
    deadline_ts: float
    budget_s: float | None = None
    checkpoint_id: str | None = None


class SweepRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`staging_keys`: those that kept checkpoints refer to."""

    staging_keys: list[str]
    deadline_ts: float
    budget_s: float | None = None


class ForgetRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`checkpoint_id`: as of a retire."""

    rollout_ids: list[str]
    deadline_ts: float
    budget_s: float | None = None
    checkpoint_id: str | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How ready one participant is. `blockers`: at most BLOCKERS_SHOWN capture keys; the others are never capped."""

    ready: bool
    blockers: tuple[str, ...] = ()
    blocker_count: int = 0
    counts: dict[str, int] = {}
    restarts: tuple[str, ...] = ()


def report(blockers: Iterable[str], counts: dict[str, int], restarts: Iterable[str] = ()) -> Report:
    """A report that lists `blockers` up to the cap and counts them all; ready when there is none."""
    named = sorted(blockers)
    return Report(
        ready=not named,
        blockers=tuple(named[:BLOCKERS_SHOWN]),
        blocker_count=len(named),
        counts=counts,
        restarts=tuple(sorted(restarts)),
    )


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """`server_time`, `lease_expires_at`: seconds since the epoch on the server's clock. `live`: capture keys held."""

    kind: str
    instance: str
    phase: str
    checkpoint_id: str | None
    lease_expires_at: float | None
    server_time: float
    retired_rollouts: int
    report: Report
    live: tuple[str, ...] = ()


class PrepareReply(msgspec.Struct, frozen=True, kw_only=True):
    phase: str
    report: Report


class RenewReply(msgspec.Struct, frozen=True, kw_only=True):
    lease_expires_at: float


class ManifestInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a participant's manifest holds; see `gym_ckpt.storage.records`."""

    schema_version: int
    kind: str
    instance: str
    checkpoint_id: str
    records_file: str
    records_sha256: str
    record_count: int


class CommitReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    phase: str
    episode_ids: tuple[str, ...]
    manifest: ManifestInfo
    staging_keys: tuple[str, ...] | None = None
    staging_keys_by_episode: dict[str, tuple[str, ...]] | None = None


class RestoreReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`installed`: capture keys of the attempts (N+1) that now have state here.

    `saved`: work that they need not do again, by name, as far as this participant knows: `model_calls`, `tokens`.
    """

    phase: str
    source_checkpoint_id: str
    installed: tuple[str, ...]
    saved: dict[str, Annotated[int, Meta(ge=0)]] = {}


class ResumeReply(msgspec.Struct, frozen=True, kw_only=True):
    phase: str


class RetireReply(msgspec.Struct, frozen=True, kw_only=True):
    retired: tuple[str, ...]


class ForgetReply(msgspec.Struct, frozen=True, kw_only=True):
    forgotten: tuple[str, ...]


class ErrorBody(msgspec.Struct, frozen=True):
    code: str
    detail: str


class ErrorReply(msgspec.Struct, frozen=True):
    error: ErrorBody


def plain(message: Any) -> Any:
    """A message, or plain data with messages in it, as JSON data: structs as objects, tuples as lists.

    Only for types of our own: state of an author's goes into a record as it is, so that a tuple in it is refused.
    """
    return _lists(msgspec.to_builtins(message, builtin_types=(bytes,)))


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists(each) for key, each in value.items()}
    return [_lists(each) for each in value] if isinstance(value, list | tuple) else value


def encode(message: Any) -> bytes:
    """Bytes of a message struct, or of plain data with messages in it (lossless JSON)."""
    return json.dumps(msgspec.to_builtins(message, builtin_types=(bytes,)), tuples=True)


def decode(body: bytes, kind: type[M]) -> M:
    """Parse and validate a body.

    Raises:
        InvalidRequest: not JSON, or a field is missing, unknown or of the wrong type; the detail names it.
    """
    try:
        return msgspec.convert(json.loads(body), kind)
    except (msgspec.ValidationError, ValueError) as error:
        raise InvalidRequest(f"{kind.__name__}: {error}") from None


def scope_of(refs: Iterable[EpisodeRef]) -> tuple[EpisodeId, ...]:
    """Sorted, distinct episodes of a request.

    Raises:
        InvalidRolloutId: a malformed id.
    """
    return tuple(sorted({ref.checked() for ref in refs}))


def directory_of(request: CommitRequest | RestoreRequest) -> str:
    """Where the records are. Raises `InvalidRequest`: relative, it would mean another place on every server."""
    if not request.checkpoint_dir.startswith("/") or "\0" in request.checkpoint_dir:
        raise InvalidRequest(f"checkpoint_dir {request.checkpoint_dir[:200]!r} must be an absolute path")
    return request.checkpoint_dir


def refs(episodes: Iterable[EpisodeId]) -> list[EpisodeRef]:
    """The wire form of a scope, sorted."""
    return [EpisodeRef(episode.rollout_id, episode.attempt) for episode in sorted(episodes)]


def rollouts_of(request: ForgetRequest) -> tuple[str, ...]:
    """Sorted, distinct rollout ids of a request; raises `InvalidRolloutId`."""
    return tuple(sorted({check_rollout_id(rollout_id) for rollout_id in request.rollout_ids}))


def checked_budget(
    request: CheckpointRequest | RetireRequest | ForgetRequest | SweepRequest, wall: float, budget_max_s: float
) -> float:
    """Seconds that the receiver may take, by its own clock `wall`: never more than any limit says, perhaps negative.

    Raises:
        InvalidRequest: a deadline or budget that is not finite, or a malformed checkpoint id.
    """
    if not isinstance(request, SweepRequest) and request.checkpoint_id is not None:
        check_checkpoint_id(request.checkpoint_id)
    if not math.isfinite(request.deadline_ts):
        raise InvalidRequest("deadline_ts must be a finite number of seconds since the epoch")
    if request.budget_s is not None and not math.isfinite(request.budget_s):
        raise InvalidRequest("budget_s must be a finite number of seconds")
    budget = request.deadline_ts - wall
    return min(budget, budget_max_s, *(() if request.budget_s is None else (request.budget_s,)))


def error_reply(error: ProtocolError) -> tuple[int, bytes]:
    """Status and body of an error on the wire."""
    return error.status, encode(ErrorReply(ErrorBody(error.code, error.detail)))
