"""What campaigns have found, in one SQLite file: runs, failing plans by commit, and how often runs were done twice.

A failing plan is kept until the code of some commit passes it; until then every campaign of its profile runs it first.
Campaigns on the same sources go on with the seeds that were not run yet.

Must not know how runs are made.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from faults.plan import load
from gym_ckpt.errors import ConfigError
from sim.jobs import Job, Outcome
from sim.sources import commit, versions

HISTORY = Path(".gym-ckpt") / "campaigns.sqlite"
OLD_MAX = 50
"""Failing plans that a campaign tries first; the newest ones."""
CAMPAIGNS_KEPT = 200
BUSY_S = 30.0
_SCHEMA = """
create table if not exists campaigns (
    id integer primary key, began text not null, commit_ text not null, sources text not null, profile text not null,
    jobs integer not null, ended text, seconds real, ok integer
);
create table if not exists runs (
    campaign integer not null references campaigns on delete cascade, seed integer not null, old integer not null,
    twice integer not null, hash text not null, events integer not null, virtual_s real not null,
    seconds real not null, schedule text not null, invariant text
);
create index if not exists runs_of_campaign on runs (campaign);
create table if not exists failures (
    id integer primary key, profile text not null, seed integer not null, plan text not null, invariant text not null,
    seen text not null, found_commit text not null, found_at text not null, mended_commit text, mended_at text,
    unique (profile, seed, plan)
);
create table if not exists sightings (
    failure integer not null references failures on delete cascade, commit_ text not null, sources text not null,
    at text not null, invariant text,
    unique (failure, sources)
);
"""


@dataclass(frozen=True, slots=True)
class Kept:
    """A failing plan of some commit. `mended`: the commit whose code passed it first."""

    profile: str
    seed: int
    invariant: str
    found: str
    mended: str | None


class History:
    """One campaign's view of the file. Raises `sqlite3.Error`."""

    def __init__(self, path: Path = HISTORY) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
        self._db.execute("pragma foreign_keys = on")
        self._db.execute("pragma journal_mode = wal")
        self._db.executescript(_SCHEMA)
        self._sources = versions()["sources"]
        self._commit = commit()
        self._campaign: int | None = None

    def begin(self, profile: str, jobs: int) -> int:
        """A campaign begins; its number."""
        cursor = self._db.execute(
            "insert into campaigns (began, commit_, sources, profile, jobs) values (?, ?, ?, ?, ?)",
            (_now(), self._commit, self._sources, profile, jobs),
        )
        self._campaign = cursor.lastrowid
        assert self._campaign is not None
        self._db.execute("delete from campaigns where id <= ?", (self._campaign - CAMPAIGNS_KEPT,))
        return self._campaign

    def record(self, outcomes: Iterable[Outcome]) -> None:
        """What has come back."""
        self._db.execute("begin immediate")
        try:
            for outcome in outcomes:
                self._record(outcome)
        except BaseException:
            self._db.execute("rollback")
            raise
        self._db.execute("commit")

    def _record(self, outcome: Outcome) -> None:
        job, broken = outcome.job, outcome.violation
        name = None if broken is None else broken.invariant
        self._db.execute(
            "insert into runs values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(self._campaign, job.seed, job.old, outcome.twice, outcome.hash, outcome.events, outcome.virtual_s),
                *(outcome.seconds, outcome.schedule, name),
            ),
        )
        plan = outcome.plan or job.plan
        if plan is None:
            return
        key = (job.profile, job.seed, plan.decode())
        if broken is not None:
            self._db.execute(
                "insert into failures (profile, seed, plan, invariant, seen, found_commit, found_at)"
                " values (?, ?, ?, ?, ?, ?, ?)"
                " on conflict do update set mended_commit = null, mended_at = null",
                (*key, broken.invariant, broken.seen, self._commit, _now()),
            )
        elif job.old:
            self._db.execute(
                "update failures set mended_commit = ?, mended_at = ? where (profile, seed, plan) = (?, ?, ?)",
                (self._commit, _now(), *key),
            )
        self._db.execute(
            "insert or replace into sightings select id, ?, ?, ?, ? from failures"
            " where (profile, seed, plan) = (?, ?, ?)",
            (self._commit, self._sources, _now(), name, *key),
        )

    def end(self, seconds: float, ok: bool) -> None:
        """It is over."""
        self._db.execute(
            "update campaigns set ended = ?, seconds = ?, ok = ? where id = ?", (_now(), seconds, ok, self._campaign)
        )

    def old_failures(self, profile: str) -> list[Job]:
        """Plans that failed and have not passed since, the newest first."""
        rows = self._db.execute(
            "select seed, plan, invariant from failures where profile = ? and mended_commit is null"
            " order by found_at desc, id desc limit ?",
            (profile, OLD_MAX),
        )
        return [
            Job(seed, profile, plan=plan.encode(), twice=invariant == "RUN-twice", old=True)
            for seed, plan, invariant in rows
            if _loads(plan)
        ]

    def untried(self, profile: str) -> Iterator[int]:
        """Seeds that these sources were not run with, from the lowest on: a campaign that ends early leaves gaps."""
        rows = self._db.execute(
            "select distinct seed from runs join campaigns on campaign = campaigns.id"
            " where sources = ? and profile = ? and not old",
            (self._sources, profile),
        )
        tried = {int(seed) for (seed,) in rows}
        return (seed for seed in count() if seed not in tried)

    def twice(self) -> int:
        """How many runs of these sources were done twice, over all campaigns."""
        found = self._db.execute(
            "select count(*) from runs join campaigns on campaign = campaigns.id where sources = ? and twice",
            (self._sources,),
        ).fetchone()[0]
        return int(found)

    def failures(self) -> list[Kept]:
        """Every plan that ever failed, the newest first."""
        rows = self._db.execute(
            "select profile, seed, invariant, found_commit, mended_commit from failures order by found_at desc, id desc"
        )
        return [Kept(*row) for row in rows]

    def close(self) -> None:
        """Nothing is written after this."""
        self._db.close()

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def kept(path: Path = HISTORY) -> list[Kept]:
    """Every plan that ever failed here; none where there was no campaign yet. Raises `ConfigError`."""
    if not path.exists():
        return []
    try:
        with closing(History(path)) as history:
            return history.failures()
    except sqlite3.Error as error:
        raise ConfigError(trouble_with(path, error)) from error


def trouble_with(path: Path, error: Exception) -> str:
    """Why the file cannot be used, and how to mend that where it is damaged: SQLite names neither."""
    if type(error) is sqlite3.DatabaseError:  # its subclasses are of another campaign that is at work, or of the disk
        return f"{path} is damaged ({error}): move it away, and the next campaign begins a new one"
    return f"{path} cannot be used: {error}"


def _loads(plan: str) -> bool:
    """A plan of an older form is history."""
    try:
        load(plan.encode())
    except ConfigError:
        return False
    return True


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
