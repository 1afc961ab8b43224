"""The capture ledger: token-free rows of model calls, in a directory that all model servers of a run share.

    names      files and locks                     rows       append, poison, read
    locking    one of a few locks per rollout      retiring   retire, forget, delete, the started marker
    listing    what there is                       restoring  export, and clear + import + retire
                                                   sweeping   tokens that nothing names any more

Jobs return BUSY, or the episodes that they could not do, when another process holds a lock: `runtime.ledger` waits and
runs them again.
"""

from gym_ckpt.storage.ledger.listing import Listed, fenced, manifest
from gym_ckpt.storage.ledger.locking import BUSY, Busy, open_ledger
from gym_ckpt.storage.ledger.restoring import Exported, Restore, begin_restore, continue_restore, export
from gym_ckpt.storage.ledger.retiring import Discarded, Start, delete, discard_unstarted, forget, retire, start
from gym_ckpt.storage.ledger.rows import Appended, Lineage, append_poison, append_row, read_lineage
from gym_ckpt.storage.ledger.sweeping import Swept, Unneeded, sweep, unneeded

__all__ = [
    "BUSY",
    "Appended",
    "Busy",
    "Discarded",
    "Exported",
    "Lineage",
    "Listed",
    "Restore",
    "Start",
    "Swept",
    "Unneeded",
    "append_poison",
    "append_row",
    "begin_restore",
    "continue_restore",
    "delete",
    "discard_unstarted",
    "export",
    "fenced",
    "forget",
    "manifest",
    "open_ledger",
    "read_lineage",
    "retire",
    "start",
    "sweep",
    "unneeded",
]
