"""An agent's side of the wire to its policy-model servers: one try of a call, and what comes after one that failed.

It must not know sessions.
"""

from __future__ import annotations

import math

from gym_ckpt.core.agent_session import Reply
from gym_ckpt.core.patience import REFUSED, Patience, asked_s
from gym_ckpt.errors import GymCkptError, PeerLost
from gym_ckpt.participants.completions import StreamedCompletion, whole
from gym_ckpt.participants.model import STARTED_PATH, CallRef, StartedReply, StartedRequest
from gym_ckpt.ports import Headers, Ports
from gym_ckpt.runtime.peer import PeerRefused, accepted, call, refusal
from gym_ckpt.wire.messages import decode, encode


async def answered(ports: Ports, url: str, headers: Headers, body: bytes, call_id: str) -> Reply:
    """The answer of one try, sent whole."""
    reply = await ports.http.request("POST", url, headers=headers, body=body)
    return whole(accepted(url, reply).body, call_id)


async def streamed(ports: Ports, url: str, headers: Headers, body: bytes, call_id: str) -> Reply:
    """The answer of one try, sent as a stream."""
    completion = StreamedCompletion()
    async with ports.http.stream("POST", url, headers=headers, body=body) as reply:
        if reply.status >= 400:
            raise await refusal(url, reply)
        async for chunk in reply.chunks():
            completion.feed(chunk)
    if not completion.done:
        raise PeerLost(f"{url}: the stream ended before its answer was whole")
    return completion.reply(call_id)


def pause_s(ports: Ports, patience: Patience, error: GymCkptError, tried_s: float) -> float | None:
    """How long to wait until the next try, by chance in part, so that those who failed together do not return so; None:
    the call is given up."""
    status = asked = None
    if isinstance(error, PeerRefused):
        status = error.status
        asked = asked_s(dict(error.headers), ports.clock.wall()) if status in REFUSED else None
    most_s = patience.pause_s(status, asked, tried_s)
    if most_s is None:
        return None
    least_s = most_s if asked else most_s / 2
    return ports.entropy.uniform(least_s, least_s + most_s / 2)


async def started(ports: Ports, model: str, token: str | None, asked: list[CallRef]) -> frozenset[str]:
    """Of these calls, those whose answer has started at this model server."""
    headers = (("authorization", f"Bearer {token}"),)
    body = encode(StartedRequest(asked))
    url = model + STARTED_PATH
    try:
        reply = await call(ports, "POST", url, body, headers=headers, client=ports.control, budget_s=math.inf)
    except PeerRefused as error:
        if error.status == 404:
            return frozenset(each.model_call_id for each in asked)  # no gate: every call runs to its end
        raise
    return frozenset(decode(reply.body, StartedReply).started)
