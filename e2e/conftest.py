"""What the tests on real processes share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Production's event loop; the simulator's has no processes."""
    return "asyncio"
