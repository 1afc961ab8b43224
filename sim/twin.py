"""The same run in a second process, under another PYTHONHASHSEED: equal hashes prove that a run is its seed's alone.

A twin is a process that lives as long as its owner and runs what it is told, one line of JSON each way. Where the two
differ, both say so row by row, and the first row that differs is the failure's event.

Must not know campaigns.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from faults.plan import dump, load
from gym_ckpt.wire import json
from sim.oracle import Violation
from sim.run import Verdict, run_seed
from sim.trace import Row

TWICE = "RUN-twice"
ROOT = Path(__file__).resolve().parent.parent
_SHOWN_CHARS = 200


class Twin:
    """A second process. `hash_seed`: its PYTHONHASHSEED, never this process's own."""

    def __init__(self) -> None:
        self.hash_seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sim.twin"],
            env={**os.environ, "PYTHONHASHSEED": self.hash_seed, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, verdict: Verdict, **more: Any) -> dict[str, Any]:
        """What this run is over there. Raises `OSError` or `ValueError` where the process is lost."""
        assert self._process.stdin is not None and self._process.stdout is not None
        asked = {"seed": verdict.seed, "profile": verdict.profile, "bug": verdict.bug, **more}
        self._process.stdin.write(json.dumps({**asked, "plan": dump(verdict.plan).decode()}) + b"\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End it."""
        with suppress(OSError):
            self._process.communicate()


def compared(verdict: Verdict) -> Verdict:
    """The verdict, with a violation if this run is another one in a second process."""
    try:
        answer = _twin(os.getpid()).ask(verdict)
        if answer.get("hash") == verdict.hash:
            return verdict
        found = _difference(verdict) if "hash" in answer else _violation(None, str(answer.get("error")))
    except (OSError, ValueError) as error:
        _twin.cache_clear()
        found = _violation(None, f"the second process was lost: {type(error).__name__}: {error}")
    return replace(verdict, violations=(*verdict.violations, found))


def same_again(verdict: Verdict) -> bool:
    """Whether this run, and all that breaks in it, is the same in a second process."""
    try:
        answer = _twin(os.getpid()).ask(verdict)
    except (OSError, ValueError):
        _twin.cache_clear()
        return False
    return answer == {"hash": verdict.hash, "broken": _broken(verdict)}


def _broken(verdict: Verdict) -> list[str]:
    return [violation.invariant for violation in verdict.violations]


def _difference(verdict: Verdict) -> Violation:
    """The first row that differs."""
    twin = _twin(os.getpid())
    here = run_seed(verdict.seed, verdict.profile, plan=verdict.plan, bug=verdict.bug, keep_all_rows=True).rows
    there: list[str] = twin.ask(verdict, rows=True)["rows"]
    pairs = zip(_digests(here), there, strict=False)
    at = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(here), len(there)))
    other = twin.ask(verdict, row=at)["text"]
    row = here[at] if at < len(here) else None
    mine = "the end" if row is None else row.text()[:_SHOWN_CHARS]
    return _violation(row, f"event {at + 1} is {mine!r}, and {other!r} under PYTHONHASHSEED={twin.hash_seed}", at + 1)


def _violation(row: Row | None, seen: str, number: int = -1) -> Violation:
    t, node = (0.0, "") if row is None else (row.t, row.node)
    return Violation(TWICE, t, node, number, seen[:700], "the same seed gives the same run in every process")


def _digests(rows: Iterable[Row]) -> list[str]:
    return [hashlib.blake2b(row.text().encode(errors="backslashreplace"), digest_size=6).hexdigest() for row in rows]


@lru_cache(maxsize=1)
def _twin(owner: int) -> Twin:
    """The twin of this process; one that was inherited by a fork is its parent's."""
    twin = Twin()
    atexit.register(lambda: twin.close() if os.getpid() == owner else None)
    return twin


# --------------------------------------------------------------------------------------------- the second process


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    at = asked.get("row")
    whole = bool(asked.get("rows")) or at is not None
    verdict = run_seed(
        asked["seed"],
        asked["profile"],
        plan=load(asked["plan"].encode()),
        bug=asked["bug"],
        keep_all_rows=whole,
    )
    if at is not None:
        return {"text": verdict.rows[at].text()[:_SHOWN_CHARS] if at < len(verdict.rows) else "the end"}
    return {"hash": verdict.hash, "broken": _broken(verdict), **({"rows": _digests(verdict.rows)} if whole else {})}


def main() -> None:
    """Answer until nobody asks any more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed must not look like an answer
    for line in sys.stdin.buffer:
        try:
            answer = _answer(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
