"""`gym-ckpt demo`: lose every process in the middle of a collection, continue, and prove that nothing shows.

Two gyms run the same input at the same time: one undisturbed, the reference; the other is checkpointed while most of
its rollouts are in flight, killed whole, started again and continued. Then their rows are compared.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
import click
import msgspec

from gym_ckpt.adapters.host import end_cleanly_at_sigterm, monotonic
from gym_ckpt.adapters.http_client import HttpxClient
from gym_ckpt.adapters.supervisor import Supervisor
from gym_ckpt.cli.demo_figures import (
    Figures,
    Lineages,
    Saved,
    compare,
    effects,
    judge,
    lineages,
    lost_calls,
    read_saved,
    repeated_calls,
    saved_tokens,
)
from gym_ckpt.cli.demo_gym import POLICIES, DemoFailed, DemoGym, write_tasks
from gym_ckpt.cli.demo_table import table
from gym_ckpt.errors import ConfigError
from gym_ckpt.limits import DEMO_DEEPEN_S, DEMO_POLL_S, DEMO_RUN_ON_S, DEMO_WAIT_S
from gym_ckpt.runtime.groups import Tasks
from gym_ckpt.wire import json
from gym_ckpt.words import counted


def run_demo(rollouts: int, *, as_json: bool, keep: str | None) -> bool:
    """Carry out the demo and print its figures; True when nothing differs. Raises `DemoFailed`, `ServerDied`."""
    end_cleanly_at_sigterm()
    folder = _folder(keep)
    began = monotonic()
    try:
        figures = anyio.run(_demo, folder, rollouts)
        figures.total_s = round(monotonic() - began, 3)
        figures.kept_in = None if keep is None else str(folder)
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            _say(f"configuration, outputs, checkpoints and logs are in {folder}")
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(figures)).decode())
    else:
        table(figures, sys.stdout.isatty())
    for reason in figures.reasons:
        click.echo(f"gym-ckpt: demo: {reason}", err=True)
    return figures.ok


def _folder(keep: str | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="gym-ckpt-demo-"))
    folder = Path(keep).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigError(f"--keep: {folder} is not empty; name a new or an empty directory")
    return folder


def _say(text: str) -> None:
    click.echo(text, err=True)


async def _demo(folder: Path, rollouts: int) -> Figures:
    write_tasks(folder / "tasks.jsonl", rollouts)
    reference, gym = DemoGym("reference", folder / "reference"), DemoGym("gym", folder / "gym")
    reference.prepare(rollouts)
    gym.prepare(rollouts)
    began = monotonic()
    _say(f"two gyms of eight processes each for {counted(rollouts, 'rollout')}: one is the undisturbed reference")
    async with HttpxClient() as http, Supervisor(gym.log) as servers, Supervisor(reference.log) as undisturbed:
        async with Tasks() as tasks:
            tasks.start_soon(gym.start_servers, servers)
            tasks.start_soon(reference.start_servers, undisturbed)
        await gym.start_collector(servers, resume=False)
        await reference.start_collector(undisturbed, resume=False)
        start_s = monotonic() - began
        in_flight = await _until_busy(http, gym, servers, rollouts)
        _say(f"in flight: {counted(in_flight, 'rollout')}, each with a model call behind it: SIGUSR1 to the collector")
        published = await _checkpoint(gym, servers)
        await anyio.sleep(DEMO_RUN_ON_S)
        killed = await servers.kill_all()
        saved, before = read_saved(str(gym.run_dir)), gym.rows()
        _say(
            f"SIGKILL to {counted(killed, 'process', 'processes')}; rows written: {len(before)}, "
            f"in checkpoint {saved.checkpoint_id}: {len(saved.continued)}"
        )

        began = monotonic()
        await gym.start_servers(servers)
        await gym.start_collector(servers, resume=True)
        restart_s = monotonic() - began
        _say("everything is started again; the collector restores and goes on")
        await gym.finish_collector(servers)
        after = await gym.worker_statistics(http)
        verified = lineages(gym.rows(), await gym.verified(http))
        await reference.finish_collector(undisturbed)
        _say("both gyms have finished; comparing")
        return _figures(
            reference.rows(),
            gym.rows(),
            before,
            saved,
            made_after=after["calls"],
            verified=verified,
            killed=killed,
            in_flight=in_flight,
            published=published,
            restored=_restored(gym),
            start_s=start_s,
            restart_s=restart_s,
        )


def _restored(gym: DemoGym) -> dict[str, Any]:
    found = gym.traced("collector.restored")
    if found is None:
        raise DemoFailed(f"the collector did not restore: {gym.last_words()}")
    return found


def _figures(
    expected: list[dict[str, Any]],
    rows: list[dict[str, Any]],
    before: list[dict[str, Any]],
    saved: Saved,
    *,
    made_after: int,
    verified: Lineages,
    killed: int,
    in_flight: int,
    published: dict[str, Any],
    restored: dict[str, Any],
    start_s: float,
    restart_s: float,
) -> Figures:
    compared, lost = compare(expected, rows), lost_calls(saved, rows)
    finished = {row["rollout_id"] for row in before}
    continued = [row for row in rows if row["rollout_id"] in saved.continued - finished]
    known = [call for row in continued for call in saved.delivered.get(row["rollout_id"], [])]
    figures = Figures(
        rows_expected=len(expected),
        rows_written=len(rows),
        rows_duplicated=compared.duplicated,
        rows_missing=len(compared.missing),
        rows_differing=len(compared.differing),
        rows_continued=len(continued),
        rows_restarted=len({row["rollout_id"] for row in rows} - saved.continued - finished),
        rows_finished_before_kill=len(finished),
        tool_effects_expected=effects(expected),
        tool_effects_seen=effects(rows),
        model_calls_total=sum(len(row["calls"]) for row in rows),
        model_calls_delivered_before=len(known),
        model_calls_repeated=repeated_calls(saved, rows, finished, made_after),
        tokens_total=sum(call["completion_tokens"] for row in rows for call in row["calls"]),
        tokens_saved=saved_tokens(saved, continued),
        ledger_rows_expected=sum(len(row["calls"]) for row in rows),
        ledger_rows_verified=verified.rows,
        lineages_verified=verified.sound,
        processes_killed=killed,
        in_flight_at_checkpoint=in_flight,
        prepare_s=published["prepare_s"],
        commit_s=published["commit_s"],
        restore_s=restored["restore_s"],
        start_s=round(start_s, 3),
        restart_s=round(restart_s, 3),
    )
    judge(figures, compared, lost, continued, verified.wrong)
    return figures


async def _until_busy(http: HttpxClient, gym: DemoGym, servers: Supervisor, rollouts: int) -> int:
    """Wait until three quarters of the rollouts are in flight with a delivered model call each; how many are.

    Then, for a checkpoint that has something to save, until there are two such calls per rollout, but not for long.
    """
    wanted = -(-3 * rollouts // 4)
    busy: set[str] = set()
    since = 0.0
    with anyio.move_on_after(DEMO_WAIT_S):
        while True:
            servers.check()
            running = await gym.status(http, "environment")
            answered = [await gym.status(http, policy) for policy in POLICIES]
            busy = set(running["live"]) & {key for each in answered for key in each["live"]}
            if len(busy) >= wanted:
                since = since or monotonic()
                delivered = sum(each["report"]["counts"]["delivered_calls"] for each in answered)
                if delivered >= 2 * rollouts or monotonic() - since > DEMO_DEEPEN_S:
                    return len(busy)
            elif since:
                return len(busy)
            await anyio.sleep(DEMO_POLL_S)
    raise DemoFailed(
        f"only {len(busy)} of {counted(rollouts, 'rollout')} came in flight with a delivered model call after "
        f"{DEMO_WAIT_S:g} s: {gym.last_words()}"
    )


async def _checkpoint(gym: DemoGym, servers: Supervisor) -> dict[str, Any]:
    """Ask for a checkpoint and wait until it is published; what the collector said of it."""
    gym.ask_for_checkpoint(servers)
    with anyio.move_on_after(DEMO_WAIT_S):
        while (found := gym.traced("collector.published")) is None:
            servers.check()
            await anyio.sleep(DEMO_POLL_S)
        return found
    raise DemoFailed(f"no checkpoint was published within {DEMO_WAIT_S:g} s: {gym.last_words()}")
