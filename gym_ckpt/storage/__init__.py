"""Checkpoint storage: jobs on the `FileSystem` port, each resumable after a crash between any two of its steps.

    layout       names and paths                       records      one participant's records and manifest
    pointer      the file LATEST                       publication  collection.json, then LATEST
    pruning      what may go                           appendlog    JSON-lines files that survive a torn end
    ownership    one live collector, one run           verify       the offline verifier

A `Job` is run by a `Disk`; nothing here opens a file by itself.
"""

from gym_ckpt.storage.abort import AbortFlag, WriteAborted
from gym_ckpt.storage.appendlog import AppendLog, Opened, open_log, read_lines
from gym_ckpt.storage.manifest import SCHEMA_VERSION, Manifest, ManifestHead
from gym_ckpt.storage.ownership import Found, RunName, look
from gym_ckpt.storage.pruning import Pruned, forget_all, prune
from gym_ckpt.storage.publication import Published, latest, publish, published, read_collection
from gym_ckpt.storage.records import read_records, write_records
from gym_ckpt.storage.verify import ParticipantReport, Report, verify_checkpoint

__all__ = [
    "SCHEMA_VERSION",
    "AbortFlag",
    "AppendLog",
    "Found",
    "Manifest",
    "ManifestHead",
    "Opened",
    "ParticipantReport",
    "Pruned",
    "Published",
    "Report",
    "RunName",
    "WriteAborted",
    "forget_all",
    "latest",
    "look",
    "open_log",
    "prune",
    "publish",
    "published",
    "read_collection",
    "read_lines",
    "read_records",
    "verify_checkpoint",
    "write_records",
]
