"""JSON bytes that come back equal: NaN, infinities, integers beyond 64 bits, key order.

`dumps` refuses whatever `loads` could not give back with the same types and values, naming its path (`$.state.lock`),
so that a lock or a tuple is found when state is exported and never when it is restored. `loads` accepts what `dumps`
produces, and any other UTF-8 JSON of the same meaning; it refuses what has two readings: duplicate keys and lone
surrogates. Shared references are written out in full; equality survives, identity does not.

It must not know what the values mean. Messages with a fixed shape get their types from msgspec and their bytes here.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, Final

import msgspec

from gym_ckpt.errors import NotLossless
from gym_ckpt.limits import JSON_DEPTH_MAX, JSON_INT_DIGITS_MAX, JSON_ITEMS_MAX

_ATOMS: Final = frozenset({str, int, float, bool, type(None)})
_KNOWN: Final = _ATOMS | {dict, list}
_KNOWN_OR_TUPLE: Final = _KNOWN | {tuple}
_KEYS: Final = frozenset({str})
_INT_MAX: Final = 10**JSON_INT_DIGITS_MAX
_LONG_NUMBER: Final = re.compile(rb"[0-9]{%d}" % (JSON_INT_DIGITS_MAX + 1))
_SURROGATE_ESCAPE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
# Made once: `json.dumps` makes one per call, which takes as long as a small message.
_AS_IS: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=True, separators=(",", ":"))
_SORTED: Final = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=True, separators=(",", ":"), sort_keys=True
)
# Several times as fast, and the very same bytes but for floats.
_QUICK: Final = msgspec.json.Encoder()
_QUICK_SORTED: Final = msgspec.json.Encoder(order="sorted")
_QUICK_DECODER: Final = msgspec.json.Decoder()
_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def dumps(value: Any, *, sort_keys: bool = False, tuples: bool = False, depth_max: int = JSON_DEPTH_MAX) -> bytes:
    """Compact UTF-8 JSON of `value`, on one line. Takes time linear in the size of what is written.

    `tuples`: write tuples as lists, for messages whose types say which of the two comes back.
    `depth_max`: less than `JSON_DEPTH_MAX` for what is to be put into something else.

    Raises:
        NotLossless: naming the path of the first value that JSON cannot carry: another type than dict with str keys,
            list, str, int, float, bool and None (subclasses too: they would come back as their base); a lone
            surrogate; nesting over `depth_max`; an integer over `JSON_INT_DIGITS_MAX` digits; over
            `JSON_ITEMS_MAX` items.
    """
    kinds = _kinds(value, _KNOWN_OR_TUPLE if tuples else _KNOWN, depth_max)
    if kinds is None:
        raise _certain(_fault(value, tuples, depth_max))
    try:
        if float in kinds:
            data = (_SORTED if sort_keys else _AS_IS).encode(value).encode()
        else:
            data = (_QUICK_SORTED if sort_keys else _QUICK).encode(value)
    except ValueError:  # a surrogate, or an integer that the interpreter does not print
        raise _certain(_fault(value, tuples, depth_max)) from None
    if not 0 < sys.get_int_max_str_digits() <= JSON_INT_DIGITS_MAX and _LONG_NUMBER.search(data):
        # This interpreter prints what one with the usual limit could not read.
        fault = _fault(value, tuples, depth_max)
        if fault is not None:
            raise fault
    return data


def loads(data: bytes) -> Any:
    """The value of JSON text in UTF-8.

    Raises:
        ValueError: with one line that says what is wrong and where; never another exception, whatever the bytes.
    """
    try:
        value = _QUICK_DECODER.decode(data)
        if (
            _QUICK.encode(value) == data.rstrip()
        ):  # nothing was lost: not the first of two equal keys, nor the last digit
            return value
    except (ValueError, RecursionError):
        pass  # what is wrong, if anything, is said below
    return _careful(data)


def _careful(data: bytes) -> Any:
    """`loads` of what is not written as `dumps` writes it, or not JSON."""
    try:
        value = _DECODER.decode(data.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise ValueError("not usable JSON: nested too deeply") from None
    except _DuplicateKey as error:
        raise ValueError(f"not usable JSON: key {str(error)[:80]!r} occurs twice in one object") from None
    except ValueError:  # the interpreter's guard against quadratic conversion
        raise ValueError("not usable JSON: an integer of too many digits") from None
    if _SURROGATE_ESCAPE.search(data):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("not usable JSON: a lone surrogate in a string") from None
        except RecursionError:
            raise ValueError("not usable JSON: nested too deeply") from None
    return value


class _DuplicateKey(ValueError):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKey(key)
            seen.add(key)
    return made


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object)


def _kinds(value: Any, known: frozenset[object], depth_max: int) -> set[object] | None:
    """The types of all that is in `value`; None unless it holds only what JSON carries.

    The quick check, by levels: it keeps no path; `_fault` finds one.
    """
    kinds: set[object] = {type(value)}
    if _ATOMS.issuperset(kinds):
        return kinds
    if type(value) not in known:
        return None
    containers = [value]
    items = 0
    for _ in range(depth_max):
        keys: list[object] = []
        children: list[Any] = []
        for container in containers:
            if type(container) is dict:
                keys += container
                children += container.values()
            else:
                children += container
        items += len(children)
        if items > JSON_ITEMS_MAX or not _KEYS.issuperset(map(type, keys)):
            return None
        here = set(map(type, children))
        kinds |= here
        if _ATOMS.issuperset(here):
            return kinds
        if not known.issuperset(here):
            return None
        containers = [child for child in children if type(child) not in _ATOMS]
    return None


def _certain(fault: NotLossless | None) -> NotLossless:
    assert fault is not None, "a value was refused and has no fault"
    return fault


def _fault(value: Any, tuples: bool, depth_max: int) -> NotLossless | None:
    """The first value in document order that `dumps` must refuse, if any."""
    stack: list[tuple[Any, str, int]] = [(value, "$", 1)]
    items = 0
    while stack:
        item, path, depth = stack.pop()
        if tuples and type(item) is tuple:
            item = list(item)
        why = _why(item, depth, depth_max)
        if why is not None:
            return NotLossless(path, why)
        if type(item) is dict:
            for key in item:
                if type(key) is not str:
                    return NotLossless(path, f"a key is of type {type(key).__qualname__}, not a plain string")
                if _surrogate(key):
                    return NotLossless(path, f"key {key!a:.60} holds a lone surrogate")
            children = [(child, path + _step(key), depth + 1) for key, child in item.items()]
        elif type(item) is list:
            children = [(child, f"{path}[{index}]", depth + 1) for index, child in enumerate(item)]
        else:
            continue
        items += len(children)
        if items > JSON_ITEMS_MAX:
            return NotLossless(path, f"more than {JSON_ITEMS_MAX} items in one value")
        stack.extend(reversed(children))
    return None


def _why(item: Any, depth: int, depth_max: int) -> str | None:
    """What is wrong with `item` itself, its children aside."""
    kind = type(item)
    if kind is str:
        return "holds a lone surrogate" if _surrogate(item) else None
    if kind is int:
        return "integer of too many digits" if _too_long(item) else None
    if kind in _ATOMS:
        return None
    if kind is dict or kind is list:
        return f"nested deeper than {depth_max} levels" if depth > depth_max else None
    base = next((known.__name__ for known in (bool, int, float, str, dict, list) if isinstance(item, known)), None)
    if base is not None:
        return f"{kind.__module__}.{kind.__qualname__} would come back as a plain {base}"
    if kind is tuple:
        return "a tuple would come back as a list"
    return f"{kind.__module__}.{kind.__qualname__} is not JSON"


def _too_long(number: int) -> bool:
    if not -_INT_MAX < number < _INT_MAX:
        return True
    try:
        repr(number)
    except ValueError:  # this interpreter was told to print even less
        return True
    return False


def _surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _step(key: str) -> str:
    return f".{key}" if _PLAIN_KEY.fullmatch(key) else f"[{key!a:.80}]"
