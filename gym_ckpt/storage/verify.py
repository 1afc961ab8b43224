"""The offline verifier: reads every byte of a checkpoint against its digests, and says all that is wrong.

It needs no server and no configuration: what a checkpoint holds is in the checkpoint. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from gym_ckpt.errors import InvalidCheckpointState
from gym_ckpt.limits import COLLECTION_MAX_BYTES
from gym_ckpt.ports import FileSystem, Job
from gym_ckpt.storage import layout, manifest
from gym_ckpt.storage.files import Steps, listed, read_bounded, reason, size_of
from gym_ckpt.storage.manifest import damaged
from gym_ckpt.storage.records import verified_records
from gym_ckpt.wire import json


@dataclass(frozen=True, slots=True)
class ParticipantReport:
    """One participant whose records are sound."""

    kind: str
    instance: str
    record_count: int
    bytes: int


@dataclass(slots=True)
class Report:
    """What was found. `problems` name the file, what is wrong and the mend; none means every byte is right."""

    checkpoint_dir: str
    checkpoint_id: str | None = None
    participants: list[ParticipantReport] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unreadable: OSError | None = None
    """Why something could not be read, which says nothing about its bytes: another try may do better."""

    @property
    def sound(self) -> bool:
        return not self.problems


Look = Callable[[str, str, dict[str, Any]], None]
"""At a record of this kind and instance; what was seen counts only if the participant is in the report."""


def verify_checkpoint(checkpoint_dir: str, look: Look = lambda kind, instance, record: None) -> Job[Report]:
    """Verify one checkpoint. Damage is reported, not raised. `look`: is shown each record as it is read."""

    def job(fs: FileSystem) -> Generator[str, None, Report]:
        report = Report(checkpoint_dir)
        yield "verify.collection"
        report.checkpoint_id = _collection_id(fs, checkpoint_dir, report)
        gym = layout.join(checkpoint_dir, layout.GYM)
        for kind in _names(fs, gym, report):
            for instance in _names(fs, layout.join(gym, kind), report):
                yield "verify.participant"
                yield from _participant(fs, report, kind, instance, look)
        if not report.participants and not report.problems:
            report.problems.append(f"{gym}: there is no participant in this checkpoint; take another checkpoint")
        return report

    return job


def _collection_id(fs: FileSystem, checkpoint_dir: str, report: Report) -> str | None:
    path = layout.collection(checkpoint_dir)
    try:
        value = json.loads(read_bounded(fs, path, COLLECTION_MAX_BYTES))
        if isinstance(value, dict) and isinstance(value.get("checkpoint_id"), str):
            checkpoint_id: str = value["checkpoint_id"]
            return checkpoint_id
        why = "names no checkpoint"
    except FileNotFoundError:
        why = "is missing: the checkpoint was never published"
    except OSError as error:
        report.unreadable, why = error, f"cannot be read ({reason(error)})"
    except ValueError as error:
        why = f"is damaged ({error})"
    report.problems.append(damaged(path, why).detail)
    return None


def _participant(fs: FileSystem, report: Report, kind: str, instance: str, look: Look) -> Steps[None]:
    directory = layout.join(report.checkpoint_dir, layout.GYM, kind, instance)
    path = layout.join(directory, layout.MANIFEST)
    try:
        found = manifest.read(fs, directory)
        if found is None:
            raise damaged(path, "is missing: this participant never finished its part of the checkpoint")
        if (found.kind, found.instance) != (kind, instance):
            raise damaged(path, f"belongs to {found.kind.value} {found.instance}")
        if report.checkpoint_id is not None and found.checkpoint_id != report.checkpoint_id:
            raise damaged(path, f"is of checkpoint {found.checkpoint_id}, not {report.checkpoint_id}")
        yield "verify.records"
        for record in verified_records(fs, directory, found):
            look(kind, instance, record)
        size = size_of(fs, layout.join(directory, found.records_file))
    except InvalidCheckpointState as error:
        report.problems.append(error.detail)
        report.unreadable = error.__cause__ if isinstance(error.__cause__, OSError) else report.unreadable
    except OSError as error:
        report.unreadable = error
        report.problems.append(damaged(path, f"cannot be read ({reason(error)})").detail)
    else:
        report.participants.append(ParticipantReport(kind, instance, found.record_count, size))


def _names(fs: FileSystem, path: str, report: Report) -> list[str]:
    try:
        return listed(fs, path)
    except OSError as error:
        report.unreadable = error
        report.problems.append(damaged(path, f"cannot be listed ({reason(error)})").detail)
        return []
