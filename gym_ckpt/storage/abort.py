"""Who wins, a resume or the publication of a manifest: decided once, at one instant (INV-50).

It knows neither files nor tasks. A job runs in a worker thread while its participant is resumed on the event loop, so
the decision takes a lock that is never held while anything waits.
"""

from __future__ import annotations

import threading

from gym_ckpt.errors import GymCkptError


class WriteAborted(GymCkptError):
    """The checkpoint was resumed while its records were being written; nothing was published."""


class AbortFlag:
    """One write's fate. The writer asks before each record and claims publication just before its manifest."""

    __slots__ = ("_aborted", "_lock", "_publishing")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._aborted = False
        self._publishing = False

    def abort(self) -> bool:
        """Stop the write. True: it publishes nothing from now on.

        False: publication had begun. The caller waits for the write to end before it says that it has resumed.
        """
        with self._lock:
            self._aborted = self._aborted or not self._publishing
            return self._aborted

    @property
    def publishing(self) -> bool:
        """Whether publication had begun before any abort."""
        return self._publishing

    def check(self) -> None:
        """Raises: WriteAborted: the write must stop."""
        if self._aborted:
            raise WriteAborted("the checkpoint was resumed while this write was in progress")

    def begin_publication(self) -> None:
        """From here on `abort` fails. Raises: WriteAborted: it came first."""
        with self._lock:
            self._publishing = self._publishing or not self._aborted
        self.check()
