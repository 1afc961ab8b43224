"""`restore-floor`: a ledger's restore among 100,000 foreign files, against one listing plus one read of the same bytes.

Measured: clear, import under N+1 and retire 0..N of every episode, from rows in memory to the directory's sync; each
rollout has a ledger of its dead execution with a row more, and a tenth have one of a later attempt. The reference lists
the same directory once and reads the same bytes once, in the same run. Beside it stands what one new file per episode
costs alone, the floor of any ledger that keeps a file per capture key.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from gym_ckpt.adapters.posix import PosixFileSystem
from gym_ckpt.core.fingerprints import EMPTY
from gym_ckpt.core.lineage import Context, Generated, LedgerRow, row_of, stage
from gym_ckpt.ports import File
from gym_ckpt.storage.files import finish
from gym_ckpt.storage.ledger import Exported, begin_restore, continue_restore, open_ledger
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire.digests import staging_digest

NAME = "restore-floor"


class Counting(PosixFileSystem):
    """Counts what must not grow: listings and syncs."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def listdir(self, path: str) -> list[str]:
        self.calls["listings"] += 1
        return super().listdir(path)

    def fsync_dir(self, path: str) -> None:
        self.calls["directory_syncs"] += 1
        super().fsync_dir(path)

    def create(self, path: str) -> File:
        file = super().create(path)
        sync = file.fsync

        def counted() -> None:
            self.calls["file_syncs"] += 1
            sync()

        file.fsync = counted  # type: ignore[method-assign]
        return file


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the last line is one JSON object with `--json`."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {NAME}", description=__doc__)
    parser.add_argument("--episodes", type=int, default=8000)
    parser.add_argument("--rows", type=int, default=2, help="per episode")
    parser.add_argument("--foreign", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", default=None, help="where to make the ledger (default: the temporary directory)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    root = tempfile.mkdtemp(prefix="restore-floor-", dir=options.dir)
    try:
        result = measure(root, options.episodes, options.rows, options.foreign, options.runs)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    show(result, options.episodes, options.foreign)
    if options.json:
        print(json.dumps(result))
    return 0


def measure(root: str, episodes: int, rows: int, foreign: int, runs: int) -> dict[str, Any]:
    ledger = os.path.join(root, "ledger")
    finish(PosixFileSystem(), open_ledger(ledger))
    for number in range(foreign):
        os.close(os.open(f"{ledger}/foreign-{number}.lineage.jsonl", os.O_CREAT | os.O_WRONLY, 0o666))
    records = [Exported(episode, ledger_of(episode, rows)) for episode in made_episodes(episodes)]
    blob = b"".join(line for record in records for line in lines(record))
    with open(os.path.join(root, "records"), "wb") as file:
        file.write(blob)
    restores, references, floors = [], [], []
    counting = Counting()
    for _ in range(runs):
        prepare(ledger, records)
        started = time.perf_counter()
        os.listdir(ledger)
        with open(os.path.join(root, "records"), "rb") as file:
            assert len(file.read()) == len(blob)
        references.append(time.perf_counter() - started)
        floors.append(one_file_each(root, records))
        counting.calls.clear()
        started = time.perf_counter()
        restore(ledger, records, counting)
        restores.append(time.perf_counter() - started)
        check(ledger, records)
    ratios = [restore / reference for restore, reference in zip(restores, references, strict=True)]
    return {
        "name": NAME,
        "figures": {
            "restore_s": statistics.median(restores),
            "restore_per_episode_us": statistics.median(restores) / episodes * 1e6,
            "one_file_each_s": statistics.median(floors),
            "bytes": len(blob),
            "listings": counting.calls["listings"],
            "file_syncs": counting.calls["file_syncs"],
            "directory_syncs": counting.calls["directory_syncs"],
        },
        "reference": {"listing_and_read_s": statistics.median(references)},
        "ratio": statistics.median(ratios),
        "runs": runs,
        "spread": [min(ratios), max(ratios)],
    }


def made_episodes(count: int) -> Iterator[EpisodeId]:
    return (EpisodeId(f"rollout-{number}", number % 2) for number in range(count))


def ledger_of(episode: EpisodeId, count: int) -> tuple[LedgerRow, ...]:
    rows: list[LedgerRow] = []
    tokens: tuple[int, ...] = ()
    for number in range(count):
        generated = Generated((*tokens, 1, 2, 3), (number, 5), (-0.5, -0.5), 1)
        call = stage(episode, f"{episode.key}-call-{number}", rows[-1] if rows else None, generated)
        tokens += call.delta
        digest = staging_digest(call)
        rows.append(row_of(call, digest, digest, Context(1.5, f"chatcmpl-{number}", EMPTY, f"{number:064x}")))
    return tuple(rows)


def lines(record: Exported) -> list[bytes]:
    return [row.encode() + b"\n" for row in record.rows]


def prepare(ledger: str, records: list[Exported]) -> None:
    """What a crash leaves: the dead execution's ledger with a row more, no fence; a tenth a later attempt's as well."""
    for number, record in enumerate(records):
        for attempt in range(record.episode.attempt + 3):
            key = EpisodeId(record.episode.rollout_id, attempt).key
            for ending in ("fence", "jsonl"):
                if os.path.exists(path := f"{ledger}/{key}.lineage.{ending}"):
                    os.unlink(path)
        content = lines(record)
        with open(f"{ledger}/{record.episode.key}.lineage.jsonl", "wb") as file:
            file.write(b"".join([*content, content[-1]]))
        if number % 10 == 0:
            with open(f"{ledger}/{record.episode.next().next().key}.lineage.jsonl", "wb") as file:
                file.write(content[0])
    os.sync()


def one_file_each(root: str, records: list[Exported]) -> float:
    """Seconds to create one file per episode with the same bytes, in an empty directory."""
    directory = os.path.join(root, "floor")
    os.mkdir(directory)
    contents = [b"".join(lines(record)) for record in records]
    started = time.perf_counter()
    for number, content in enumerate(contents):
        fd = os.open(f"{directory}/{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        os.write(fd, content)
        os.close(fd)
    took = time.perf_counter() - started
    shutil.rmtree(directory)
    return took


def restore(ledger: str, records: list[Exported], files: PosixFileSystem) -> None:
    work = finish(files, begin_restore(ledger, [record.episode for record in records], records))
    finish(files, continue_restore(work))
    assert not work.episodes


def check(ledger: str, records: list[Exported]) -> None:
    """The restore did what it is measured for."""
    names = set(os.listdir(ledger))
    for record in records:
        target = record.episode.next()
        assert f"{target.key}.lineage.jsonl" in names and f"{record.episode.key}.lineage.fence" in names
        assert f"{record.episode.key}.lineage.jsonl" not in names
        assert f"{target.next().key}.lineage.jsonl" not in names
    with open(f"{ledger}/{records[-1].episode.next().key}.lineage.jsonl", "rb") as file:
        assert file.read() == b"".join(lines(records[-1]))


def show(result: dict[str, Any], episodes: int, foreign: int) -> None:
    figures = result["figures"]
    print(f"{NAME}: {episodes} episodes, {figures['bytes'] / 1e6:.1f} MB of rows, {foreign} foreign files")
    print(
        f"  restore              {figures['restore_s']:.3f} s ({figures['restore_per_episode_us']:.0f} µs an episode)"
    )
    print(f"  listing and read     {result['reference']['listing_and_read_s']:.3f} s")
    print(f"  one new file each    {figures['one_file_each_s']:.3f} s")
    print(f"  ratio                {result['ratio']:.1f} ({result['spread'][0]:.1f} to {result['spread'][1]:.1f})")
    print(
        f"  listings {figures['listings']}, file syncs {figures['file_syncs']}, "
        f"directory syncs {figures['directory_syncs']}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
