"""What a plan written by hand may hold, as JSON for people: for the page of the faults, and for errors.

msgspec says where a plan is wrong and what stands there, not what could: `hint` adds that, and what is near.

Must not know: any fault by name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import inspect as kinds

from gym_ckpt.wire import json
from gym_ckpt.wire.messages import plain

FORMS_SHOWN = 5
"""Of so many kinds of object each is shown; of more only their names."""
_PLACE = re.compile(r" - at `\$(.*)`$")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_FIELD = re.compile(r"(?:missing required|contains unknown) field `([^`]*)`")


def form(kind: kinds.Type) -> str:
    """What may stand where this kind of value does: `"before", "after"`, `{"when": "at", "t_s": seconds}`, `a list of
    …`."""
    match kind:
        case kinds.LiteralType():
            return f"one of {', '.join(map(text, kind.values))}"
        case kinds.StructType():
            return _object(kind)
        case kinds.UnionType():
            if len(kind.types) > FORMS_SHOWN:
                return f"an object, whose {text(_tag_field(kind))} is {form(_tags(kind))}"
            return " or ".join(form(each) for each in kind.types)
        case kinds.VarTupleType():
            return f"a list of {form(kind.item_type)}"
        case kinds.BoolType():
            return "true or false"
        case kinds.NoneType():
            return "null"
        case kinds.IntType() | kinds.FloatType():
            what = "a whole number" if isinstance(kind, kinds.IntType) else "a number"
            low = "" if kind.ge is None else f", {kind.ge:,.12g} to {kind.le:,.12g}"
            return f"{what}, above {kind.gt:g}, up to {kind.le:,.12g}" if kind.gt is not None else f"{what}{low}"
        case kinds.StrType():
            return "a name"
    raise AssertionError(f"no part of a plan is a {kind}")


def default(field: kinds.Field) -> str:
    """What a field is that is left out."""
    return form(field.type) if isinstance(field.type, kinds.StructType) else text(field.default)


def text(value: Any) -> str:
    """A value as it stands in a plan."""
    return json.dumps(plain(value)).decode()


def hint(error: str, data: Any, plan: type[msgspec.Struct]) -> str:
    """What `error`, of msgspec about this JSON, leaves out: what there is, and what is near. Empty where it is said."""
    place = _PLACE.search(error)
    steps = _STEP.findall(place[1]) if place else []
    field = _FIELD.search(error)
    kind, value = _at(msgspec.inspect.type_info(plan), data, steps)
    if field is not None and "missing" in error:
        wanted = _of_field(kind, field[1])
        return f"it is {form(wanted)}" if wanted is not None else ""
    if field is not None and isinstance(kind, kinds.StructType):
        return _choose(field[1], [each.encode_name for each in kind.fields])
    if isinstance(kind, kinds.LiteralType):
        return _choose(value, kind.values)
    return f"it is {form(kind)}" if kind is not None and "xpected `object`" in error else ""


def _object(kind: kinds.StructType) -> str:
    """With the defaults of what may be left out."""
    inside = [] if kind.tag is None else [f'"{kind.tag_field}": {text(kind.tag)}']
    inside += [f'"{field.encode_name}": {"…" if field.required else default(field)}' for field in kind.fields]
    return f"{{{', '.join(inside)}}}"


def _of_field(kind: kinds.Type | None, name: str) -> kinds.Type | None:
    """What is missing there: one field of an object, or what says which of several kinds of object it is."""
    if isinstance(kind, kinds.UnionType) and name == _tag_field(kind):
        return _tags(kind)
    fields = kind.fields if isinstance(kind, kinds.StructType) else ()
    return next((field.type for field in fields if field.encode_name == name), None)


def _tagged(kind: kinds.UnionType) -> dict[Any, kinds.StructType]:
    return {each.tag: each for each in kind.types if isinstance(each, kinds.StructType)}


def _tag_field(kind: kinds.UnionType) -> str:
    return next(str(each.tag_field) for each in _tagged(kind).values())


def _tags(kind: kinds.UnionType) -> kinds.LiteralType:
    return kinds.LiteralType(tuple(_tagged(kind)))


def _choose(given: Any, there_are: Iterable[Any]) -> str:
    listed = list(there_are)
    near = difflib.get_close_matches(str(given), [str(each) for each in listed], 1)
    there = f"there are {', '.join(map(text, listed))}"
    return f"did you mean {text(near[0])}? {there}" if near else there


def _at(kind: kinds.Type | None, value: Any, steps: Sequence[tuple[str, str]]) -> tuple[kinds.Type | None, Any]:
    """The kind of what stands at the end of these steps, and what does; None where nobody can tell."""
    for name, index in steps:
        if isinstance(kind, kinds.UnionType):
            if name == _tag_field(kind):
                return _tags(kind), value.get(name)
            kind = _tagged(kind).get(value.get(_tag_field(kind)))
        if index and isinstance(kind, kinds.VarTupleType):
            kind, value = kind.item_type, value[int(index)]
        else:
            kind, value = _of_field(kind, name), value.get(name) if isinstance(value, dict) else None
    if isinstance(kind, kinds.UnionType) and isinstance(value, dict):
        kind = _tagged(kind).get(value.get(_tag_field(kind)), kind)
    return kind, value
