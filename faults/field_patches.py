"""The patches behind the planted bugs about what the field does to a run: engines that are full, files that are
not there for once, configurations that are wrong.

As in `faults.patches`. Knows the implementation from inside.
"""

from __future__ import annotations

from faults.patches import Bug, Patches, mutated
from gym_ckpt.controller import restoring, startup
from gym_ckpt.core.patience import Patience
from gym_ckpt.participants import asked
from gym_ckpt.participants.agent import AgentParticipant
from gym_ckpt.ports import FileSystem
from gym_ckpt.settings import GymSettings
from gym_ckpt.storage import pointer, verify
from gym_ckpt.storage.ledger import rows


def refusal_fails() -> Patches:
    old = "return self._refused.next_s(tried_s, min(asked_s or 0.0, MODEL_RETRY_AFTER_MAX_S))"
    return [(Patience, "pause_s", mutated(Patience.pause_s, old, "return None"))]


def pause_not_heeded() -> Patches:
    return [(asked, "asked_s", lambda headers, wall: None)]


def rest_not_parked() -> Patches:
    return [(AgentParticipant, "_rest", mutated(AgentParticipant._rest, "    work.park()\n", ""))]


def checkpoint_forgotten() -> Patches:
    return [(pointer, "there", lambda fs, path: fs.exists(path))]


def records_forgotten() -> Patches:
    def listed(fs: FileSystem, path: str) -> list[str]:
        try:
            return fs.listdir(path)
        except FileNotFoundError:
            return []

    return [(verify, "listed", listed)]


def ledger_forgotten() -> Patches:
    return [(rows, "chunks_of", lambda fs, path, chunk_bytes: fs.read_chunks(path, chunk_bytes))]


def fence_forgotten() -> Patches:
    return [(rows, "there", lambda fs, path: fs.exists(path))]


def gate_not_checked() -> Patches:
    return [(GymSettings, "check_gated", lambda self, agent: None)]


def refused_started_over() -> Patches:
    return [(restoring, "_check_may_start_over", lambda shared, error, source, rows: None)]


def mislaid_started_over() -> Patches:
    return [(startup, "_miss_checkpoints", lambda settings, run_dir, say: None)]


BUGS: tuple[Bug, ...] = (
    Bug(
        "refused-state-started-over",
        "a server that will not have the state of a whole checkpoint costs its rows their work, unasked",
        "INV-97",
        refused_started_over,
    ),
    Bug(
        "mislaid-checkpoints-started-over",
        "a run whose checkpoints are gone starts every row over without a word",
        "INV-97",
        mislaid_started_over,
    ),
    Bug(
        "refusal-fails-the-episode",
        "a model call that an engine refuses for a while fails its episode",
        "INV-25",
        refusal_fails,
    ),
    Bug(
        "retry-after-ignored",
        "a refused call is made again before the pause that the engine asked for is over",
        "INV-25",
        pause_not_heeded,
    ),
    Bug(
        "refused-call-not-parked",
        "a session whose call was refused is at work while it waits, and checkpoints wait for it",
        "INV-25",
        rest_not_parked,
    ),
    Bug(
        "checkpoint-not-there-for-once",
        "a published checkpoint that the disk says once is not there is forgotten, and pruned",
        "INV-51",
        checkpoint_forgotten,
    ),
    Bug(
        "records-not-there-for-once",
        "a restart gives up a checkpoint because the disk says once that its records are not there",
        "INV-97",
        records_forgotten,
    ),
    Bug(
        "ledger-not-there-for-once",
        "a file of rows that the disk says once is not there is taken for an empty one",
        "INV-16",
        ledger_forgotten,
    ),
    Bug(
        "fence-not-there-for-once",
        "a fence that the disk says once is not there lets a row of a retired attempt in",
        "INV-38",
        fence_forgotten,
    ),
    Bug(
        "gate-not-checked",
        "an agent starts whichever model servers its configuration names",
        "INV-21",
        gate_not_checked,
    ),
)
