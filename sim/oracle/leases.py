"""A lease ends when it must, counted from what the server heard last (INV-53)."""

from __future__ import annotations

from collections.abc import Mapping

from gym_ckpt.wire.messages import CONTROL_PREFIX
from sim.oracle.findings import Check, Findings, Handler
from sim.trace import Row

RENEWS = tuple(CONTROL_PREFIX + operation for operation in ("prepare", "renew", "commit", "restore"))
LATE_S = 0.5
"""Of a timer and of the handling of the call that renewed it."""


class Leases(Check):
    """No lease lasts longer than `longest_s`, a checkpoint's time-out and grace, from the last call that renews it.

    Servers that were stopped, or do nothing at once, are left out.
    """

    def __init__(self, findings: Findings, longest_s: float) -> None:
        super().__init__(findings)
        self._longest_s = longest_s
        self._asked: set[int] = set()
        self._heard: dict[str, float] = {}
        self._slow: set[str] = set()

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.lagging": self._lags,
            "node.stopped": self._lags,
            "net.request": self._request,
            "net.duplicate": self._request,
            "net.arrived": self._arrived,
            "lease.expired": self._expired,
        }

    def _lags(self, row: Row) -> None:
        self._slow.add(row.node)

    def _request(self, row: Row) -> None:
        if row.fields["path"] in RENEWS:
            self._asked.add(row.fields["x"])

    def _arrived(self, row: Row) -> None:
        if row.fields["x"] in self._asked:
            self._asked.discard(row.fields["x"])
            self._heard[row.node] = row.t

    def _expired(self, row: Row) -> None:
        lasted_s = row.t - self._heard.get(row.node, row.t)
        long = lasted_s > self._longest_s + LATE_S and row.node not in self._slow
        why = f"a lease lasted {lasted_s:.1f} s, and may last {self._longest_s:g} s" if long else None
        self.look(53, why, row.node)
