"""The inference workers behind a policy-model server: which one gets a call, and what if it cannot be reached.

A rollout keeps to one worker, so that its prefix cache is of use. A worker that certainly did not get the call is
passed over for the next; one that may have got it is not asked again, here or elsewhere, so no call is executed twice
on account of one request. Leaving the answer before its end closes the connection, which ends the generation.

It must not know episodes, gates or what a call is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

from gym_ckpt.core.spread import spread
from gym_ckpt.errors import PeerUnreachable
from gym_ckpt.limits import PEER_RETRY_BUDGET_S, PEER_RETRY_FIRST_S, PEER_RETRY_MAX_S
from gym_ckpt.ports import Headers, Ports, ReplyStream


class Backends:
    """Any OpenAI-compatible servers. `urls`: their base urls."""

    def __init__(self, ports: Ports, urls: Sequence[str]) -> None:
        assert urls, "a policy-model server has at least one inference worker"
        self._ports = ports
        self._urls = tuple(urls)
        self._turn = 0

    def order(self, session: str | None) -> tuple[str, ...]:
        """The workers in the order in which they are tried; calls without a session take turns."""
        if session is None:
            self._turn = first = (self._turn + 1) % len(self._urls)
        else:
            first = spread(session, len(self._urls))
        return self._urls[first:] + self._urls[:first]

    @asynccontextmanager
    async def answer(
        self, session: str | None, path: str, headers: Headers, body: bytes, method: str = "POST"
    ) -> AsyncIterator[ReplyStream]:
        """The answer of a worker, whatever its status.

        Raises:
            PeerUnreachable: none could be reached within the budget; certainly not executed.
            PeerLost: it may have been executed, and its answer is lost.
        """
        async with AsyncExitStack() as stack:
            yield await self._reach(stack, self.order(session), method, path, headers, body)

    async def _reach(
        self, stack: AsyncExitStack, urls: Sequence[str], method: str, path: str, headers: Headers, body: bytes
    ) -> ReplyStream:
        pause, give_up = PEER_RETRY_FIRST_S, None
        while True:
            failure: PeerUnreachable | None = None
            for url in urls:
                try:
                    stream = self._ports.http.stream(method, url + path, headers=headers, body=body)
                    return await stack.enter_async_context(stream)
                except PeerUnreachable as error:
                    failure = error
            assert failure is not None, "every worker was tried"
            now = anyio.current_time()
            give_up = give_up if give_up is not None else now + PEER_RETRY_BUDGET_S
            if now >= give_up:
                raise failure
            await anyio.sleep(self._ports.entropy.uniform(pause / 2, pause))
            pause = min(pause * 2, PEER_RETRY_MAX_S)
