"""The error tree. Foreign errors are mapped to it once, at the border where they arise.

    GymCkptError
    ├── ConfigError               a configuration or usage that cannot work; exit status 2
    ├── TryLater                  it works once something outside has passed: another collector, a full disk
    ├── DirectoryGone             the directory of a live run, or of its output, was removed; names it
    ├── TransportError            talking to a peer; raised by the `HttpClient` port
    │   ├── PeerUnreachable       nothing was sent: certainly not done
    │   └── PeerLost              sent, no whole answer: may or may not have been done
    │       └── PeerTimeout       … because the time ran out
    ├── NotLossless               a value that JSON cannot carry; names the path of the value
    ├── CoordinationError         a checkpoint or restore over several participants failed
    │   ├── NotReady              prepare missed its deadline; carries the blockers
    │   ├── ParticipantFailed     one participant refused or could not be reached; carries which and the cause
    │   ├── RestoreLapsed         a lease ended the restore before it was resumed
    │   ├── InconsistentReplies   the participants' replies contradict each other; nothing may be published
    │   └── NotCheckpointable     this gym has no participating policy model, or a server cannot be reached
    └── ProtocolError             has a wire code and a status (table below)
        ├── Unauthorized 401 · InvalidRolloutId, RolloutIdRequired, InvalidRequest 400
        ├── StaleCheckpoint, CheckpointConflict, InvalidPhase, DeadlineExceeded, StaleAttempt, RestartInScope,
        │   ScopeMismatch, ExportFailed, AlreadyServing, CallIdTaken 409
        └── InvalidCheckpointState 422 · Unavailable 503

A class exists only where a caller can act on exactly it. Expected trouble is one of these; a broken belief is an
`AssertionError`. In a task of a process it ends the process. In the handler of a call it ends that call, with a 500 for
the caller and a traceback in the server's log, and the server goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class GymCkptError(Exception):
    """Root of everything this package raises on purpose. `str(error)` is one line for a person."""


class ConfigError(GymCkptError):
    """A configuration or a usage that cannot work. The text names the key's path and what is allowed."""


class TryLater(GymCkptError):
    """Nothing was begun, or what was begun is another's now; the same command works once something has passed that it
    cannot change: another collector, a disk that is full or fails."""


class DirectoryGone(GymCkptError):
    """Somebody removed the `directory` of a live run, or that of its output."""

    def __init__(self, directory: str, detail: str) -> None:
        super().__init__(detail)
        self.directory = directory


class TransportError(GymCkptError):
    """Talking to a peer failed."""


class PeerUnreachable(TransportError):
    """No connection: the request was certainly not processed."""


class PeerLost(TransportError):
    """The request was sent and no whole answer came back: it may or may not have been processed."""


class PeerTimeout(PeerLost):
    """`PeerLost` because the time ran out."""


class NotLossless(GymCkptError):
    """A value cannot be carried by JSON and come back equal. `path` is where it stands, such as `$.state.lock`."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


class CoordinationError(GymCkptError):
    """A checkpoint, a restore or a retire over several participants failed as a whole."""


class NotReady(CoordinationError):
    """Prepare missed its deadline; `blockers` are capture keys (capped), `blocker_count` is not capped."""

    def __init__(self, detail: str, *, blockers: Sequence[str], blocker_count: int) -> None:
        super().__init__(detail)
        self.blockers = tuple(blockers)
        self.blocker_count = blocker_count


class ParticipantFailed(CoordinationError):
    """One participant refused an operation (`error` is its typed error) or could not be reached in time."""

    def __init__(self, server: str, operation: str, error: GymCkptError) -> None:
        code = f"{error.code}: " if isinstance(error, ProtocolError) else ""
        super().__init__(f"{operation} on {server}: {code}{error}")
        self.server = server
        self.error = error


class RestoreLapsed(CoordinationError):
    """A participant's lease ended a restore before it was resumed: its attempts (N+1) are retired everywhere."""


class InconsistentReplies(CoordinationError):
    """Replies of a commit or restore contradict each other or the scope; nothing may be published."""


class NotCheckpointable(CoordinationError):
    """This gym cannot be checkpointed safely as it is; the text says which server and why."""


class ProtocolError(GymCkptError):
    """An error with a code on the wire: `{"error": {"code", "detail"}}`."""

    code: ClassVar[str]
    status: ClassVar[int] = 409

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class Unauthorized(ProtocolError):
    """Missing or wrong bearer."""

    code, status = "unauthorized", 401


class InvalidRolloutId(ProtocolError):
    """A malformed id on a call."""

    code, status = "invalid_rollout_id", 400


class RolloutIdRequired(ProtocolError):
    """Work without an id where one is needed."""

    code, status = "rollout_id_required", 400


class InvalidRequest(ProtocolError):
    """The body does not validate; the detail names the field."""

    code, status = "invalid_request", 400


class StaleCheckpoint(ProtocolError):
    """This checkpoint id was resumed already. To a resume: nothing is left of this restore, whose lease ended."""

    code = "stale_checkpoint"


class CheckpointConflict(ProtocolError):
    """Another checkpoint is open."""

    code = "checkpoint_conflict"


class InvalidPhase(ProtocolError):
    """The operation is not valid in the participant's present phase."""

    code = "invalid_phase"


class DeadlineExceeded(ProtocolError):
    """The deadline passed before the operation was done; it may still be going on."""

    code = "deadline_exceeded"


class StaleAttempt(ProtocolError):
    """The attempt was retired; permanent."""

    code = "stale_attempt"


class RestartInScope(ProtocolError):
    """The scope names an episode that this participant reported as a restart."""

    code = "restart_in_scope"


class ScopeMismatch(ProtocolError):
    """A retried commit with another scope or directory."""

    code = "scope_mismatch"


class ExportFailed(ProtocolError):
    """Final for this checkpoint id: resume, then take another checkpoint (INV-45)."""

    code = "export_failed"


class AlreadyServing(ProtocolError):
    """Restore into a server that has served, or that has lost a worker (INV-61)."""

    code = "already_serving"


class CallIdTaken(ProtocolError):
    """A model call whose id is that of one which was delivered, or refused for good; under another id it is none."""

    code = "call_id_taken"


class InvalidCheckpointState(ProtocolError):
    """Files missing, torn, of another schema, kind, instance or checkpoint."""

    code, status = "invalid_checkpoint_state", 422


class Unavailable(ProtocolError):
    """A worker, the token store or a file could not be reached in time: a repetition may."""

    code, status = "unavailable", 503


BY_CODE: dict[str, type[ProtocolError]] = {cls.code: cls for cls in ProtocolError.__subclasses__()}
"""Wire code → class; total over the table above."""
