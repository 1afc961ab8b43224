"""Configuration as frozen, typed objects: what each server of a gym is told, and what the controller is told.

Types only. Where the values come from (a file, a mapping, a default) and whether they fit together is the loader's
business (`gym_ckpt.cli.config`); the simulator builds these objects directly. A server knows its peers by their names
in `GymSettings.servers`, never by their urls.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from gym_ckpt.errors import ConfigError
from gym_ckpt.limits import (
    BUDGET_MAX_S,
    EPISODE_TIMEOUT_S,
    LEASE_GRACE_S,
    ONE_SIGTERM_MAX_S,
    ONE_SIGTERM_S,
    PUBLISHED_LISTED_MAX,
    SERVERS_WAIT_S,
)
from gym_ckpt.types import Kind

Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]
"""At least one."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything configurable: frozen, by name only, unknown keys refused."""


class CheckpointSettings(Settings, frozen=True, kw_only=True):
    """Turns checkpointing on. Absent: no server has a checkpoint route, phase, file or cost.

    `grace_s`: seconds added to the deadline of the last control call before a server resumes by itself.
    """

    grace_s: Annotated[float, Meta(gt=0, le=BUDGET_MAX_S)] = LEASE_GRACE_S


class EnvironmentSettings(Settings, frozen=True, kw_only=True, tag_field="kind", tag="environment"):
    """An environment server: one episode per `POST /run`.

    `agent`, `resources`: names of servers. `verifier`: a stateless resources server that is asked too,
    after `resources`, and whose verdict counts.
    `episode_timeout_s`: seconds one episode may work, restarts included; time parked for a checkpoint does not count.
    """

    kind: ClassVar[Kind] = Kind.ENVIRONMENT
    url: str
    agent: str
    resources: str
    verifier: str | None = None
    episode_timeout_s: Positive = EPISODE_TIMEOUT_S


class AgentSettings(Settings, frozen=True, kw_only=True, tag_field="kind", tag="agent"):
    """An agent server: a loop of model call and tool calls.

    `model`: name of the policy-model server, or of several: each rollout keeps to one. `max_steps`: model calls per
    session. `max_tokens`: of one model call.
    """

    kind: ClassVar[Kind] = Kind.AGENT
    url: str
    model: str | Annotated[tuple[str, ...], Meta(min_length=1)]
    max_steps: Count = 20
    stream: bool = False
    max_tokens: Count | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the policy-model servers, in configured order."""
        return (self.model,) if isinstance(self.model, str) else self.model


class ResourcesSettings(Settings, frozen=True, kw_only=True, tag_field="kind", tag="resources"):
    """A resources server: sessions, tools and verification of one gym (see `gym_ckpt.gyms`).

    `app`: an application of an author's own in its place, `package.module:factory` (see `runtime.applications`).
    """

    kind: ClassVar[Kind] = Kind.RESOURCES
    url: str
    gym: str = "inventory"
    app: str | None = None


class ModelSettings(Settings, frozen=True, kw_only=True, tag_field="kind", tag="model"):
    """A policy-model server. `workers`: inference servers, by their names here or by url.

    `ledger_dir`: turns token capture on: the directory of the capture ledger, which all model servers of a gym share.
    `token_dir`: the token store's, `<ledger_dir>/tokens` when unset.
    """

    kind: ClassVar[Kind] = Kind.MODEL
    url: str
    workers: Annotated[tuple[str, ...], Meta(min_length=1)]
    ledger_dir: str | None = None
    token_dir: str | None = None


class InferenceSettings(Settings, frozen=True, kw_only=True, tag_field="kind", tag="inference"):
    """The embedded inference worker; no participant.

    `tokens_per_s`: of one generation. `step_tokens`: tokens that one decoding step yields.
    """

    kind: ClassVar[str] = "inference"
    url: str
    model_name: str = "embedded"
    tokens_per_s: Positive = 500.0
    step_tokens: Count = 16
    seed: int = 0


class CollectSettings(Settings, frozen=True, kw_only=True):
    """Rollout collection. `environment`: name of the server that runs episodes.

    `input`, `output`: JSON-lines files. `repeats`: rollouts per input row. `concurrency`: rows in flight at once.
    `max_attempts`: failures until a row is given up. `checkpoint_dir`: turns checkpoints on. `checkpoint_every_s`: the
    timer. `checkpoint_timeout_s`: budget of one checkpoint. `keep_checkpoints`: published ones kept.
    `resume_from_cache`: continue the latest checkpoint; otherwise this run's earlier ones and rows are forgotten.
    `retry_prepare`: further prepares after the blockers of a missed one were retired. `one_sigterm_s`: SIGTERMs that
    come within so many seconds of the first count as one. `servers_wait_s`: how long servers that do not answer yet are
    waited for at the start. `start_over`: when no checkpoint is usable, or a server refuses the state of a whole one,
    run unfinished rows from their input instead of refusing.
    """

    environment: str
    input: str
    output: str
    repeats: Count = 1
    concurrency: Count = 64
    max_attempts: Count = 3
    checkpoint_dir: str | None = None
    checkpoint_every_s: Positive | None = None
    checkpoint_timeout_s: Annotated[float, Meta(gt=0, le=BUDGET_MAX_S)] = 300.0
    keep_checkpoints: Annotated[int, Meta(ge=1, le=PUBLISHED_LISTED_MAX)] = 2
    resume_from_cache: bool = False
    retry_prepare: Annotated[int, Meta(ge=0)] = 1
    one_sigterm_s: Annotated[float, Meta(ge=0, le=ONE_SIGTERM_MAX_S)] = ONE_SIGTERM_S
    servers_wait_s: Positive = SERVERS_WAIT_S
    start_over: bool = False

    def check_together(self) -> None:
        """What the types of single keys cannot say. Raises `ConfigError`."""
        if self.checkpoint_dir is None and self.checkpoint_every_s is not None:
            raise ConfigError("collect.checkpoint_every_s: needs collect.checkpoint_dir")
        if self.checkpoint_dir is None and self.resume_from_cache:
            raise ConfigError("collect.resume_from_cache: needs collect.checkpoint_dir")


ServerSettings = EnvironmentSettings | AgentSettings | ResourcesSettings | ModelSettings | InferenceSettings


class GymSettings(Settings, frozen=True, kw_only=True):
    """A whole gym.

    `control_token`: bearer of every control route. `control_token_env`: the environment variable that the loader reads
    it from when it does not stand in the configuration; servers look at `control_token` only.
    """

    name: str = "gym"
    control_token: str | None = None
    control_token_env: str | None = None
    servers: dict[str, ServerSettings]
    checkpoint: CheckpointSettings | None = None
    collect: CollectSettings | None = None

    def url(self, server: str) -> str:
        """Where the server of this name listens. Raises `KeyError` for a name that the loader would have refused."""
        return self.servers[server].url

    def worker_urls(self, model: ModelSettings) -> tuple[str, ...]:
        """Urls of a policy-model server's inference workers, in configured order."""
        return tuple(self.servers[worker].url if worker in self.servers else worker for worker in model.workers)

    def check_gated(self, agent: str) -> None:
        """INV-21: with checkpointing on, every model server that an agent names stands behind the gate.

        Raises `ConfigError` naming the agent, the server and the policy-model server to name instead.
        """
        server = self.servers[agent]
        if self.checkpoint is None or not isinstance(server, AgentSettings):
            return
        for model in server.models:
            if "://" in model or isinstance(self.servers.get(model), InferenceSettings):
                gated = [each for each in self.models() if self._reaches(each, model)] or self.models()
                instead = " or ".join(map(repr, gated)) or "one of kind model"
                raise ConfigError(
                    f"servers.{agent}.model: agent {agent!r} would call {model!r} past the gate, and a checkpoint "
                    f"would miss what it generates: name the policy-model server in front of it, {instead}"
                )

    def _reaches(self, policy: str, worker: str) -> bool:
        server = self.servers[policy]
        return isinstance(server, ModelSettings) and (worker in server.workers or worker in self.worker_urls(server))

    def models(self) -> tuple[str, ...]:
        """Names of the policy-model servers, sorted: those among which the rollouts of a ledger are shared out."""
        return tuple(sorted(name for name, server in self.servers.items() if isinstance(server, ModelSettings)))

    def participants(self) -> dict[str, ServerSettings]:
        """The servers that own checkpointable state, by name in configured order."""
        return {name: server for name, server in self.servers.items() if not isinstance(server, InferenceSettings)}
