"""Faults that are the behaviour of others: inference workers, authors of tools and judges, strangers, a
second collector, operators.

As in `faults.catalogue`, which is where they are used from.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from faults.when import Count, Data, Nth, Seconds, When, exchanges, ordinal
from gym_ckpt.words import counted

RefusesWith = Literal[429, 503, 529]
AsksIn = Literal["", "retry-after", "retry-after-ms"]
StateIs = Literal["huge", "unserializable", "raises"]
RivalDoes = Literal["claims", "sweeps", "takes over"]
UngatedBy = Literal["name", "url", "beside"]
StrangerAsks = Literal["malformed", "untagged", "untagged_run", "ledger_retire", "ledger_delete"]


class SlowWorker(Data, frozen=True, tag="slow_worker", tag_field="fault"):
    """An inference worker's answers k to k+n-1 come `by_s` later; a stream carries keep-alives meanwhile."""

    by_s: Seconds
    k: Nth = 1
    n: Nth = 1
    keep_alives: Count = 0
    node: str = "worker"

    def words(self) -> str:
        alive = f" with {counted(self.keep_alives, 'keep-alive')} in a stream" if self.keep_alives else ""
        return f"{self.node}'s {ordinal(self.k, self.n)} answer is {self.by_s:g} s late{alive}"


class Overload(Data, frozen=True, tag="overload", tag_field="fault"):
    """For a while an inference worker is full: it answers every call with `status` and does nothing. `says`: the header
    in which it asks for a pause of `pause_s`; none where that is empty."""

    when: When
    for_s: Seconds
    status: RefusesWith = 429
    says: AsksIn = ""
    pause_s: Seconds = 0.0
    node: str = "worker"

    def words(self) -> str:
        asks = f", and asks for {self.pause_s:g} s in {self.says}" if self.says else ""
        return f"{self.node} is full {self.when.words()}, for {self.for_s:g} s: it answers {self.status}{asks}"


class StuckWorker(Data, frozen=True, tag="stuck_worker", tag_field="fault"):
    """An inference worker stops for good in answers k to k+n-1, after `chunks` parts of a stream; its links stay up."""

    k: Nth = 1
    n: Nth = 1
    chunks: Count = 0
    node: str = "worker"

    def words(self) -> str:
        return f"{self.node} is stuck in its {ordinal(self.k, self.n)} answer, after {counted(self.chunks, 'part')}"


class FailedReply(Data, frozen=True, tag="failed_reply", tag_field="fault"):
    """Such exchanges take effect, and whoever asked gets an error of this status instead of the answer, `by_s` late: a
    tool that fails after its effect, a judge that times out, a proxy that gives up."""

    dst: str
    route: str
    status: Annotated[int, msgspec.Meta(ge=400, le=599)] = 500
    k: Nth = 1
    n: Nth = 1
    by_s: Seconds = 0.0

    def words(self) -> str:
        late = f" {self.by_s:g} s late" if self.by_s else ""
        return f"{exchanges(self.dst, self.route, self.k, self.n)}: done, and answered with {self.status}{late}"


class ToolFails(Data, frozen=True, tag="tool_fails", tag_field="fault"):
    """The author's code of a tool raises after its effect, in calls k to k+n-1."""

    node: str
    k: Nth = 1
    n: Nth = 1

    def words(self) -> str:
        return f"{self.node}'s {ordinal(self.k, self.n)} tool call raises after its effect"


class JudgeFails(Data, frozen=True, tag="judge_fails", tag_field="fault"):
    """The author's verification raises, or takes very long, in calls k to k+n-1."""

    node: str
    how: Literal["raises", "late"]
    k: Nth = 1
    n: Nth = 1

    def words(self) -> str:
        how = "raises" if self.how == "raises" else "takes long"
        return f"{self.node}'s {ordinal(self.k, self.n)} verification {how}"


class BadState(Data, frozen=True, tag="bad_state", tag_field="fault"):
    """A session's author exports state k to k+n-1 that is huge, or that no file can hold, or not at all."""

    node: str
    how: StateIs
    k: Nth = 1
    n: Nth = 1

    def words(self) -> str:
        how = "cannot be had" if self.how == "raises" else f"is {self.how}"
        return f"{self.node}'s {ordinal(self.k, self.n)} exported state {how}"


class GymChanged(Data, frozen=True, tag="gym_changed", tag_field="fault"):
    """The gym was changed, and is brought back later: of the sessions that a checkpoint holds, its author's check
    refuses the k-th to the k+n-1-th."""

    node: str
    k: Nth = 1
    n: Nth = 1

    def words(self) -> str:
        return f"{self.node}'s gym refuses the {ordinal(self.k, self.n)} state that it is to restore"


class Mislaid(Data, frozen=True, tag="mislaid", tag_field="fault"):
    """Everything dies, and somebody moves the run's checkpoints away, with the pointer to them or without; they are put
    back once a collector has refused to go on without them. Strikes only where one was published."""

    when: When
    pointer: bool = True

    def words(self) -> str:
        what = "the run's checkpoints and their pointer are" if self.pointer else "the run's checkpoints are"
        return f"everything dies {self.when.words()}, and {what} moved away until a collector misses them"


class Stranger(Data, frozen=True, tag="stranger", tag_field="fault"):
    """Somebody who is no part of the gym calls a server: with a malformed id (the `number`-th of a list), a judge's
    call of the policy model without an id, or the framework that changes a ledger."""

    dst: str
    asks: StrangerAsks
    when: When
    number: Count = 0

    def words(self) -> str:
        what = {
            "malformed": f"a call with malformed id {self.number}",
            "untagged": "a judge's call without an id",
            "untagged_run": "a /run without an id",
            "ledger_retire": "the framework's retire of a ledger",
            "ledger_delete": "the framework's delete of a ledger",
        }
        return f"{what[self.asks]} to {self.dst} {self.when.words()}"


class Rival(Data, frozen=True, tag="rival", tag_field="fault"):
    """Another collector wants the run's directory as the controller sends its k-th row; or a cleaner of old files
    sweeps the controller's lock files away; or both, so that the other one gets it, and ends."""

    how: RivalDoes
    k: Nth = 1

    def words(self) -> str:
        how = {
            "claims": "another collector wants the directory",
            "sweeps": "the controller's lock files are swept away",
            "takes over": "the controller's lock files are swept away, and another collector takes the directory",
        }
        return f"{how[self.how]} as row {self.k} is sent"


class Ungated(Data, frozen=True, tag="ungated", tag_field="fault"):
    """Somebody starts one more agent, from a configuration in which it would call an inference worker past the gate: by
    its name, by its url, or beside a policy-model server. It must not start."""

    by: UngatedBy
    when: When

    def words(self) -> str:
        how = {"name": "by its name", "url": "by its url", "beside": "beside a policy-model server"}[self.by]
        return f"an agent is started that is to call a worker past the gate, {how}, {self.when.words()}"
