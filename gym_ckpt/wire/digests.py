"""Digests of staged tokens, in NeMo Gym 0.7's encodings (version 2): each side can check the other's rows.

SHA-256 over length-prefixed, domain-separated encodings; `u64` is eight bytes big-endian. A digest stands for the
tokens wherever the tokens themselves may not go: checkpoints and ledgers hold digests, never token arrays (INV-52).
Because a staged call's digest binds the capture key, a carried row keeps its first key and is never digested anew
(INV-64).

Pure: knows no tokenizer and no store.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from gym_ckpt.errors import GymCkptError
from gym_ckpt.limits import JSON_DEPTH_MAX

_PREFIX_DOMAIN: Final = b"nemo-gym-staging-prefix-v2"
_CHAIN_DOMAIN: Final = b"nemo-gym-staging-chain-v1"
_EXTRAS_DOMAIN: Final = b"nemo-gym-staging-extras-v1"
_CALL_DOMAIN: Final = b"nemo-gym-staging-call-v2"
_EXTRAS_VERSION: Final = 1
_VERSIONS: Final = bytes((2, 2, _EXTRAS_VERSION))
"""Schema, digest, extras."""
_U64_END: Final = 2**64
_HEX: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)

TEXT: Final = "text"
"""Mode of a root: its prompt was given as text."""
TOKEN_IN: Final = "token_in"
"""Mode of a child: its prompt continues its parent's tokens."""


class StagingFault(StrEnum):
    """Why a call cannot be staged, or why staged arrays are not to be believed."""

    UNKNOWN_MODE = "unknown_mode"
    ROOT_MODE = "root_mode"
    """No parent, and yet a prefix or the mode of a child."""
    CHILD_MODE = "child_mode"
    """A parent, and yet no prefix or the mode of a root."""
    EMPTY_DELTA = "empty_delta"
    LENGTH_MISMATCH = "length_mismatch"
    """`cum_len` is not `prev_len + delta_len`, or an array is not `delta_len` long."""
    INVALID_MASK = "invalid_mask"
    CARRIED_AFTER_GENERATED = "carried_after_generated"
    CARRIED_LOGPROB = "carried_logprob"
    NOTHING_GENERATED = "nothing_generated"
    NOT_FINITE = "not_finite"
    INVALID_TOKEN = "invalid_token"
    INVALID_NUMBER = "invalid_number"
    INVALID_TEXT = "invalid_text"
    INVALID_HASH = "invalid_hash"
    INVALID_EXTRAS = "invalid_extras"


class InvalidStaging(GymCkptError, ValueError):
    """A value that the staging format cannot carry. It fails the capture of its call, never the call's answer."""

    def __init__(self, reason: StagingFault, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class StagedCall:
    """What one call added to its conversation. Arrays run over the delta: carried prompt first, then generated tokens.

    `rollout_id` is the capture key under which the call was staged. `log_probabilities` are kept as 32-bit floats.
    """

    rollout_id: str
    model_call_id: str
    parent_call_id: str | None
    mode: str
    prev_len: int
    delta_len: int
    cum_len: int
    weight_version: int
    delta: tuple[int, ...]
    mask: tuple[float, ...]
    """0.0 for a carried token, 1.0 for a generated one."""
    log_probabilities: tuple[float, ...]
    extras: Any
    chain_hash: str
    cumulative_hash: str


# --------------------------------------------------------------------------------------------- the digests


def cumulative_hash(token_ids: Sequence[int]) -> str:
    """Lower-case hexadecimal digest of a whole prefix of tokens: prompt and everything generated since.

    Raises:
        InvalidStaging: an id that is not an integer in 0..2**64-1.
    """
    return hashlib.sha256(_PREFIX_DOMAIN + encode_ids(token_ids)).hexdigest()


def chain_hash(parent: str | None, delta: Sequence[int]) -> str:
    """Digest of a call's place in its lineage: its parent's chain hash (None for a root) and the tokens it added.

    Raises:
        InvalidStaging: a malformed parent hash or token id.
    """
    link = b"\0" if parent is None else b"\1" + _raw(parent, "the parent's chain hash")
    return hashlib.sha256(_CHAIN_DOMAIN + link + encode_ids(delta)).hexdigest()


def extras_digest(extras: Any) -> str:
    """Digest of the free part of a staged call: None, bool, int, float, str, list and dict with text keys.

    Raises:
        InvalidStaging: anything else, an integer beyond signed 64 bits, a float that is not finite.
    """
    parts: list[bytes] = [_EXTRAS_DOMAIN, bytes((_EXTRAS_VERSION,))]
    _encode_extra(extras, "extras", parts, 0)
    return hashlib.sha256(b"".join(parts)).hexdigest()


def staging_digest(call: StagedCall) -> str:
    """The digest of a staged call that obeys every rule.

    Raises:
        InvalidStaging: with the reason of the first rule that it breaks.
    """
    check(call)
    numbers = (call.prev_len, call.delta_len, call.cum_len, call.weight_version)
    parts = (
        _CALL_DOMAIN,
        _VERSIONS,
        _text(call.rollout_id, "rollout_id"),
        _text(call.model_call_id, "model_call_id"),
        b"\0" if call.parent_call_id is None else b"\1" + _text(call.parent_call_id, "parent_call_id"),
        _text(call.mode, "mode"),
        struct.pack(">4Q", *numbers),
        _bytes(encode_ids(call.delta)),
        _bytes(encode_floats(call.mask, "mask")),
        _bytes(encode_floats(call.log_probabilities, "log_probabilities")),
        bytes.fromhex(extras_digest(call.extras)),
        b"\1" + _raw(call.chain_hash, "chain_hash"),
        b"\1" + _raw(call.cumulative_hash, "cumulative_hash"),
    )
    return hashlib.sha256(b"".join(parts)).hexdigest()


# ----------------------------------------------------------------------------------------------- the rules


def check(call: StagedCall) -> None:
    """Raises: InvalidStaging: with the reason of the first rule that the call breaks."""
    _check_numbers(call)
    _check_place(call)
    _check_arrays(call)


def _check_numbers(call: StagedCall) -> None:
    for name in ("prev_len", "delta_len", "cum_len", "weight_version"):
        value = getattr(call, name)
        if type(value) is not int or not 0 <= value < _U64_END:
            raise InvalidStaging(StagingFault.INVALID_NUMBER, f"{name} is {value!r:.80}, no unsigned 64-bit integer")
    if call.delta_len < 1:
        raise InvalidStaging(StagingFault.EMPTY_DELTA, "a call adds at least one token")
    if call.cum_len != call.prev_len + call.delta_len:
        raise InvalidStaging(
            StagingFault.LENGTH_MISMATCH, f"cum_len {call.cum_len} is not {call.prev_len} + {call.delta_len}"
        )
    for name in ("delta", "mask", "log_probabilities"):
        found = len(getattr(call, name))
        if found != call.delta_len:
            raise InvalidStaging(StagingFault.LENGTH_MISMATCH, f"{name} holds {found} items, not {call.delta_len}")


def _check_place(call: StagedCall) -> None:
    if call.mode not in (TEXT, TOKEN_IN):
        raise InvalidStaging(StagingFault.UNKNOWN_MODE, f"mode is {call.mode!r:.80}, not {TEXT!r} or {TOKEN_IN!r}")
    if call.parent_call_id is None and (call.prev_len or call.mode != TEXT):
        raise InvalidStaging(StagingFault.ROOT_MODE, f"a root of mode {call.mode!r} over {call.prev_len} tokens")
    if call.parent_call_id is not None and (not call.prev_len or call.mode != TOKEN_IN):
        raise InvalidStaging(StagingFault.CHILD_MODE, f"a child of mode {call.mode!r} over {call.prev_len} tokens")


def _check_arrays(call: StagedCall) -> None:
    encode_floats(call.mask, "mask")
    encode_floats(call.log_probabilities, "log_probabilities")
    if not {0.0, 1.0}.issuperset(call.mask):
        raise InvalidStaging(StagingFault.INVALID_MASK, "a mask is 0.0 (carried) or 1.0 (generated)")
    carried = next((at for at, value in enumerate(call.mask) if value), call.delta_len)
    if carried == call.delta_len:
        raise InvalidStaging(StagingFault.NOTHING_GENERATED, "a call generates at least one token")
    if not all(call.mask[carried:]):
        raise InvalidStaging(StagingFault.CARRIED_AFTER_GENERATED, "carried tokens come first")
    if any(call.log_probabilities[:carried]):
        raise InvalidStaging(StagingFault.CARRIED_LOGPROB, "carried tokens have log-probability 0.0")


# ------------------------------------------------------------------------------------------- the encodings


def encode_ids(token_ids: Sequence[int]) -> bytes:
    """`ids(x)`: the count, then each id, as u64.

    Raises:
        InvalidStaging: an id that is not an integer in 0..2**64-1.
    """
    if not {int}.issuperset(map(type, token_ids)):
        raise InvalidStaging(StagingFault.INVALID_TOKEN, "a token id is not an unsigned 64-bit integer")
    try:
        return struct.pack(f">{len(token_ids) + 1}Q", len(token_ids), *token_ids)
    except struct.error as error:
        raise InvalidStaging(
            StagingFault.INVALID_TOKEN, f"a token id is not an unsigned 64-bit integer: {error}"
        ) from None


def encode_floats(values: Sequence[float], name: str) -> bytes:
    """`f32(x)`: the count as u64, then each value as a big-endian 32-bit float.

    Raises:
        InvalidStaging: a value that is no number, or not finite as a 32-bit float.
    """
    try:
        if {int, float}.issuperset(map(type, values)) and all(map(math.isfinite, values)):
            return struct.pack(f">Q{len(values)}f", len(values), *values)
    except OverflowError:
        pass  # finite, and beyond what 32 bits hold
    raise InvalidStaging(StagingFault.NOT_FINITE, f"{name} holds what is no finite 32-bit float")


def _bytes(data: bytes) -> bytes:
    return struct.pack(">Q", len(data)) + data


def _text(text: str, name: str) -> bytes:
    try:
        return _bytes(text.encode())
    except (UnicodeEncodeError, AttributeError):
        raise InvalidStaging(StagingFault.INVALID_TEXT, f"{name} is no text that UTF-8 can carry") from None


def _raw(digest: str, name: str) -> bytes:
    if type(digest) is not str or not _HEX.fullmatch(digest):
        raise InvalidStaging(StagingFault.INVALID_HASH, f"{name} is not 64 lower-case hexadecimal digits")
    return bytes.fromhex(digest)


def _encode_extra(value: Any, path: str, parts: list[bytes], depth: int) -> None:
    match value:
        case _ if depth > JSON_DEPTH_MAX:
            raise InvalidStaging(StagingFault.INVALID_EXTRAS, f"{path[:80]} is nested too deeply")
        case None:
            parts.append(b"N")
        case True | False:
            parts.append(b"B\1" if value else b"B\0")
        case int() if -(2**63) <= value < 2**63:
            parts.append(struct.pack(">cq", b"I", value))
        case float() if math.isfinite(value):
            parts.append(struct.pack(">cd", b"F", value))
        case str():
            parts.append(b"S" + _extra_text(value, path))
        case list():
            items = ((f"{path}[{at}]", b"", item) for at, item in enumerate(value))
            _encode_items(b"L", len(value), items, parts, depth)
        case dict():
            keyed = sorted(((_extra_text(key, path), key, item) for key, item in value.items()), key=_by_utf8)
            _encode_items(b"D", len(keyed), ((f"{path}.{key}", text, item) for text, key, item in keyed), parts, depth)
        case _:
            raise InvalidStaging(StagingFault.INVALID_EXTRAS, f"{path[:80]}: {type(value).__name__} {value!r:.40}")


def _encode_items(
    kind: bytes, count: int, items: Iterable[tuple[str, bytes, Any]], parts: list[bytes], depth: int
) -> None:
    parts.append(kind + struct.pack(">Q", count))
    for path, key, item in items:
        parts.append(key)
        _encode_extra(item, path, parts, depth + 1)


def _by_utf8(keyed: tuple[bytes, str, Any]) -> bytes:
    return keyed[0][8:]  # without the length


def _extra_text(text: Any, path: str) -> bytes:
    try:
        return _text(text, path)
    except InvalidStaging:
        raise InvalidStaging(StagingFault.INVALID_EXTRAS, f"{path[:80]}: not text: {text!r:.40}") from None
