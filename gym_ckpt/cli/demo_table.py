"""The demo's figures for people: a table on a terminal, plain columns elsewhere."""

from __future__ import annotations

import click

from gym_ckpt.cli.demo_figures import Figures
from gym_ckpt.words import counted


def lines(figures: Figures) -> list[tuple[str, str, str]]:
    """What was looked at, the figure, and what it says; an empty line separates groups."""
    share = figures.tokens_saved / figures.tokens_total if figures.tokens_total else 0.0
    return [
        (
            "rows written / expected",
            f"{figures.rows_written} / {figures.rows_expected}",
            f"{figures.rows_duplicated} duplicated, {figures.rows_missing} missing",
        ),
        ("rows that differ", str(figures.rows_differing), "from an undisturbed run of the same input"),
        (
            "tool effects seen / expected",
            f"{figures.tool_effects_seen} / {figures.tool_effects_expected}",
            "none lost, none done twice" if figures.tool_effects_seen == figures.tool_effects_expected else "NOT EQUAL",
        ),
        ("", "", ""),
        ("processes killed", str(figures.processes_killed), "SIGKILL, all at once, the collector included"),
        (
            "rows continued",
            str(figures.rows_continued),
            f"{figures.rows_finished_before_kill} had finished before, {figures.rows_restarted} started again",
        ),
        (
            "model calls",
            str(figures.model_calls_total),
            f"{figures.model_calls_delivered_before} were in the checkpoint, "
            f"{figures.model_calls_repeated} of them repeated",
        ),
        (
            "tokens saved",
            f"{figures.tokens_saved} of {figures.tokens_total}",
            f"{share:.0%} did not have to be generated again",
        ),
        (
            "ledger rows that verify",
            f"{figures.ledger_rows_verified} / {figures.ledger_rows_expected}",
            f"{counted(figures.lineages_verified, 'lineage')} rebuilt token by token, over two policy servers",
        ),
        ("", "", ""),
        (
            "prepare / commit",
            f"{figures.prepare_s:.3f} s / {figures.commit_s:.3f} s",
            f"with {counted(figures.in_flight_at_checkpoint, 'rollout')} in flight",
        ),
        ("restore", f"{figures.restore_s:.3f} s", f"after {figures.restart_s:.1f} s to start the processes again"),
        ("whole demo", f"{figures.total_s:.1f} s", f"of which {figures.start_s:.1f} s to start both gyms"),
    ]


def table(figures: Figures, terminal: bool) -> None:
    """Print the table and the verdict."""
    verdict = (
        "Every row is there once and equal to the undisturbed run."
        if figures.ok
        else "SOMETHING DIFFERS: " + "; ".join(figures.reasons)
    )
    if terminal:
        _rich(figures, verdict)
        return
    click.echo()
    for what, figure, words in lines(figures):
        click.echo(f"  {what:<30}{figure:<22}{words}".rstrip())
    click.echo(f"\n{verdict}")


def _rich(figures: Figures, verdict: str) -> None:
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=None, show_header=False, pad_edge=True, padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(justify="right", style="cyan")
    grid.add_column(style="dim")
    for line in lines(figures):
        grid.add_row(*line)
    console = Console()
    console.print()
    console.print(grid)
    console.print()
    console.print(verdict, style="bold green" if figures.ok else "bold red", markup=False, highlight=False)
