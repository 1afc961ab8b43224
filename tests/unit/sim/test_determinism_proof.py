"""Determinism is proved: the same seeds in two processes with different PYTHONHASHSEED give the same hashes.

Reads nothing of the hashes but that they are equal, and that they differ between seeds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BLOCK = 34
"""Seeds of one item; six items of the default profile, so that xdist has something to share out."""
SEEDS = 204


def _start(seeds: range, profile: str, hash_seed: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).with_name("hashes.py")), str(seeds.start), str(seeds.stop), profile]
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_same_seed_same_hash_in_another_process(first: int) -> None:
    seeds = range(first, first + BLOCK)
    processes = [_start(seeds, "default", hash_seed) for hash_seed in ("1", "4242")]
    outputs = [process.communicate()[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert len(outputs[0]) == len(seeds), "not every seed was run"
    differing = [(one, other) for one, other in zip(*outputs, strict=True) if one != other]
    assert not differing, f"not the same run twice: {differing[0][0]!r} and {differing[0][1]!r}"
    assert len({line.split()[1] for line in outputs[0]}) == len(seeds), "different seeds gave the same run"
