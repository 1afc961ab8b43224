"""Many seeds of the simulator, in blocks over xdist: `pytest -m fuzz --fuzz-seeds 0..2000` or `--fuzz-seconds 600`.

One item is a block of seeds; a failing block says which seed, which invariant, and the command that brings it back.
"""

from __future__ import annotations

import pytest

from sim.campaign import explained, run_block, show_failure

pytestmark = pytest.mark.fuzz


def test_block(fuzz_block: range, fuzz_profile: str, fuzz_until: float | None) -> None:
    if fuzz_until is None:
        block = run_block(fuzz_block, fuzz_profile)
        assert block.seeds == len(fuzz_block), "seeds of this block were not run"
    else:
        block = run_block(fuzz_block, fuzz_profile, until=fuzz_until)
        if not block.seeds:
            pytest.skip("the seconds were spent before this block began")
    if block.failed:
        pytest.fail(show_failure(explained(block.failed[0].job.seed, fuzz_profile)), pytrace=False)
    assert sum(block.checked.values()) > 0, "no check looked at anything"
