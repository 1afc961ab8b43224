"""Whether the files that `[collect]` names can be what they are to be: said before anything is waited for or made.

What a path is not, it is for every command that reads the configuration; whether this process may write there is asked
by the one that is about to. It must not know what is written.
"""

from __future__ import annotations

from pathlib import Path

from gym_ckpt.adapters.host import why_not_writable
from gym_ckpt.controller.rows import failures_path
from gym_ckpt.errors import ConfigError, TryLater
from gym_ckpt.settings import CollectSettings
from gym_ckpt.storage.files import may_pass, reason


def check_files(collect: CollectSettings) -> None:
    """Raises `ConfigError`: two keys name one file, or a path is of a kind that cannot be used."""
    given = {"collect.input": collect.input, "collect.checkpoint_dir": collect.checkpoint_dir}
    output = Path(collect.output)
    for key, path in given.items():
        if path is not None and _resolved(Path(path)) == _resolved(output):
            raise ConfigError(f"collect.output: is {key}, too ({output}): give it a file of its own")
    if _is_dir(output):
        raise ConfigError(f"collect.output: {output} is a directory: give the name of a file in it")
    _nearest_dir("collect.output", output.parent)
    if collect.checkpoint_dir is not None:
        _nearest_dir("collect.checkpoint_dir", Path(collect.checkpoint_dir))


def check_writable(collect: CollectSettings) -> None:
    """Raises `ConfigError`, or `TryLater` where that may pass: this process can write no file, or make no directory,
    where it would have to."""
    output = Path(collect.output)
    places = [("collect.output", output.parent)]
    if collect.checkpoint_dir is not None:
        places.append(("collect.checkpoint_dir", Path(collect.checkpoint_dir)))
    for key, place in places:
        nearest = _nearest_dir(key, place)
        _check(key, nearest, f"into {nearest}")
    for path in (output, Path(failures_path(collect.output))):
        if _exists(path):
            _check("collect.output", path, f"to {path}")


def _check(key: str, path: Path, where: str) -> None:
    why = why_not_writable(path)
    if why is None:
        return
    cannot = f"{key}: nothing can be written {where} ({reason(why)})"
    if may_pass(why):
        raise TryLater(f"{cannot}: make room, or look at that file system, and run this again")
    raise ConfigError(f"{cannot}: make it writable, or choose another")


def _nearest_dir(key: str, path: Path) -> Path:
    """The directory, or the one above in which it would be made. Raises `ConfigError`."""
    for place in (path, *path.parents):
        if _is_dir(place):
            return place
        if _exists(place):
            raise ConfigError(f"{key}: {place} is a file, and would have to be a directory: choose another")
    return path  # not to be looked at: then writing will tell


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # a loop of links
        return path


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False
