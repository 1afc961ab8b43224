"""`checkpoint-scale`: a checkpoint, a kill of everything and a restore with N rollouts held at their second model call.

Real processes on loopback, the embedded inference worker, capture on, two policy servers that share a ledger (no cuts:
generations under way are made again). Each rollout has one delivered call and one tool effect behind it and generates
its second answer when the checkpoint is taken; then every process gets SIGKILL, all are started again, and the
replacements run to their ends. Seconds of prepare, commit and restore are the collector's own; the ratio is the cost
per episode of the largest N against that of the smallest, over all three. A row that is missing, doubled, failed or
started over is a failure; `early` ones had ended before the kill: with many of them, let `--per-s` be less.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio

from gym_ckpt.adapters.http_client import HttpxClient
from gym_ckpt.adapters.supervisor import Supervisor
from gym_ckpt.cli.demo_gym import COLLECTOR, POLICIES, DemoFailed, DemoGym
from gym_ckpt.gyms.inventory import ITEMS
from gym_ckpt.storage import layout
from gym_ckpt.wire import json as lossless

NAME = "checkpoint-scale"
TOKENS = 64
"""Of text in each of the two answers."""
FAST_TOKENS_PER_S = 5000.0
"""After the kill: what is measured by then is over."""
POLL_S = 0.2
WAIT_S = 1800.0
STEPS = ("prepare_s", "commit_s", "restore_s")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the last line is one JSON object with `--json`. Status 1 when a replacement failed."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {NAME}", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 4000, 8000, 16000])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--per-s", type=float, default=60.0, help="rollouts a second that this machine can begin")
    parser.add_argument("--dir", default=None, help="where to make the gyms (default: the temporary directory)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    seen: dict[int, list[dict[str, float]]] = {size: [] for size in options.sizes}
    for number in range(options.runs):
        for size in options.sizes:
            root = Path(tempfile.mkdtemp(prefix=f"{NAME}-", dir=options.dir))
            try:
                seen[size].append(anyio.run(once, root, size, options.per_s))
            finally:
                shutil.rmtree(root, ignore_errors=True)
            print(f"{NAME}: run {number + 1}, {size}: {words(seen[size][-1])}", flush=True)
    result = summed(seen, options.runs)
    show(result, options.sizes)
    if options.json:
        print(json.dumps(result))
    return 1 if any(figure for name, figure in result["figures"].items() if name.startswith("failures")) else 0


async def once(root: Path, rollouts: int, per_s: float) -> dict[str, float]:
    """One gym's life, death and second life."""
    gym = made(root, rollouts, per_s)
    async with HttpxClient() as http, Supervisor(gym.log) as servers:
        await gym.start_servers(servers)
        await gym.start_collector(servers, resume=False)
        with anyio.fail_after(WAIT_S):
            while await begun(http, gym) < rollouts:
                servers.check()
                await anyio.sleep(POLL_S)
            gym.ask_for_checkpoint(servers)
            while (published := gym.traced("collector.published")) is None:
                servers.check()
                await anyio.sleep(POLL_S)
        before = len(gym.rows())
        await servers.kill_all()
        size = bytes_in(Path(layout.checkpoints_dir(str(gym.run_dir))))
        text = gym.config.read_text(encoding="utf-8")
        gym.config.write_text(text.replace("tokens_per_s = ", f"tokens_per_s = {FAST_TOKENS_PER_S} # "))
        await gym.start_servers(servers)
        await gym.start_collector(servers, resume=True)
        with anyio.fail_after(WAIT_S):
            status = await servers.wait(COLLECTOR)
        restored = gym.traced("collector.restored") or {"restore_s": float("nan"), "installed": 0}
        summary = gym.summary() if status == 0 else {"restarted": rollouts}
    times = Counter(row["rollout_id"] for row in gym.rows())
    wrong = sum(abs(times[f"store-{number}"] - 1) for number in range(rollouts))
    return {
        "prepare_s": published["prepare_s"],
        "commit_s": published["commit_s"],
        "restore_s": restored["restore_s"],
        "continued": restored["installed"],
        "bytes": size,
        "failures": max(wrong, summary["restarted"], int(status != 0)),
        "early": before,
    }


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def made(root: Path, rollouts: int, per_s: float) -> DemoGym:
    """Files of a gym in which an answer takes longer than it takes for every rollout to have had its first."""
    lines = []
    for number in range(rollouts):
        prompt = f"Put store {number} in order and report. [[turns=1 tokens={TOKENS} calls=1]]"
        task: dict[str, Any] = {"prompt": prompt, "inventory": dict.fromkeys(ITEMS, 300 + number % 7)}
        lines.append(lossless.dumps({"id": f"store-{number}", "task": task}))
    root.mkdir(parents=True, exist_ok=True)
    (root / "tasks.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    gym = DemoGym("gym", root / "gym")
    gym.prepare(rollouts, TOKENS / max(10.0, rollouts / per_s))
    text = gym.config.read_text(encoding="utf-8")
    gym.config.write_text(text.replace(f"concurrency = {min(rollouts, 2000)}", f"concurrency = {rollouts}"))
    return gym


async def begun(http: HttpxClient, gym: DemoGym) -> int:
    """Rollouts that have had a model call delivered; a server too busy to answer is asked again."""
    found = {row["rollout_id"] for row in gym.rows()}
    for policy in POLICIES:
        try:
            found |= set((await gym.status(http, policy))["live"])
        except DemoFailed:
            return 0
    return len(found)


def summed(seen: dict[int, list[dict[str, float]]], runs: int) -> dict[str, Any]:
    """The result as `benchmarks.result.Result` has it."""
    figures: dict[str, float] = {}
    spread: dict[str, float] = {}
    for size, each in seen.items():
        for name in each[0]:
            values = [run[name] for run in each]
            figures[f"{name}_{size}"] = max(values) if name in ("failures", "early") else statistics.median(values)
            if name in STEPS:
                spread[f"{name}_{size}"] = (max(values) - min(values)) / statistics.median(values)
    cost = {size: sum(figures[f"{name}_{size}"] for name in STEPS) / size * 1e3 for size in seen}
    figures |= {f"ms_per_episode_{size}": cost[size] for size in seen}
    smallest, largest = min(seen), max(seen)
    return {
        "name": NAME,
        "figures": figures,
        "reference": {f"ms_per_episode_{smallest}": cost[smallest]},
        "ratio": cost[largest] / cost[smallest],
        "runs": runs,
        "spread": spread,
    }


def words(run: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in run.items())


def show(result: dict[str, Any], sizes: Sequence[int]) -> None:
    figures = result["figures"]
    print(f"{NAME}: median of {result['runs']} runs")
    print("   rollouts  prepare s   commit s  restore s   ms each      MB  failures")
    for size in sizes:
        steps = " ".join(f"{figures[f'{name}_{size}']:>10.3f}" for name in STEPS)
        megabytes = figures[f"bytes_{size}"] / 1e6
        each, failures = figures[f"ms_per_episode_{size}"], figures[f"failures_{size}"]
        print(f"  {size:>9} {steps} {each:>9.3f} {megabytes:>7.1f} {failures:>9.0f}")
    print(f"  ratio of the cost per episode, largest to smallest: {result['ratio']:.2f}")


if __name__ == "__main__":
    raise SystemExit(main())
