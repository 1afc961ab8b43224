"""What a ledger holds, for those who read it from outside: the framework that trains on it, and people.

It changes nothing and takes no lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gym_ckpt.core.lineage import LedgerRow, Poison
from gym_ckpt.limits import LEDGER_LISTED_MAX
from gym_ckpt.ports import FileSystem, Job
from gym_ckpt.storage.files import Steps, names_in
from gym_ckpt.storage.ledger.names import Ending, attempt_in, split_name
from gym_ckpt.storage.ledger.rows import readable_lineage_of
from gym_ckpt.types import EpisodeId


@dataclass(frozen=True, slots=True)
class Listed:
    """One capture key in a ledger's manifest."""

    episode: EpisodeId
    rows: tuple[LedgerRow, ...]
    poison: tuple[Poison, ...]
    fenced: bool
    started: bool


def manifest(
    directory: str, episodes: Iterable[EpisodeId] | None = None, after: EpisodeId | None = None
) -> Job[tuple[list[Listed], bool]]:
    """What the ledger holds, of these capture keys or of all, sorted; and whether that is not all of it.

    The first LEDGER_LISTED_MAX of those that come after `after`.

    Files that are no ledger's are passed over; of a damaged one there is only poison that says so.
    """
    wanted = None if episodes is None else set(episodes)

    def job(fs: FileSystem) -> Steps[tuple[list[Listed], bool]]:
        yield "ledger.list"
        endings: dict[EpisodeId, set[Ending]] = {}
        for name in names_in(fs, directory):
            split = split_name(name)
            at = attempt_in(split[0]) if split is not None else None
            if split is None or at is None:
                continue
            episode = EpisodeId(*at)
            if (wanted is None or episode in wanted) and (after is None or after < episode):
                endings.setdefault(episode, set()).add(split[1])
        listed = []
        for episode, there in sorted(endings.items())[:LEDGER_LISTED_MAX]:
            yield "ledger.read"
            lineage = readable_lineage_of(fs, directory, episode)
            listed.append(Listed(episode, lineage.rows, lineage.poison, Ending.FENCE in there, Ending.STARTED in there))
        return listed, len(listed) < len(endings)

    return job


def fenced(directory: str) -> Job[dict[str, int]]:
    """The highest fenced attempt of each rollout that has one."""

    def job(fs: FileSystem) -> Steps[dict[str, int]]:
        yield "ledger.list"
        highest: dict[str, int] = {}
        for name in names_in(fs, directory):
            split = split_name(name)
            at = attempt_in(split[0]) if split is not None and split[1] is Ending.FENCE else None
            if at is not None:
                highest[at[0]] = max(at[1], highest.get(at[0], -1))
        return highest

    return job
