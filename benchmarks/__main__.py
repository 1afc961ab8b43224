"""`python -m benchmarks NAME [--json] ...`: one module per benchmark; without a name, the list of them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

HELPERS = frozenset({"__init__", "__main__", "policy", "result"})


def names() -> list[str]:
    """Every benchmark there is."""
    modules = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in HELPERS)
    return [module.replace("_", "-") for module in modules]


def main(arguments: list[str]) -> int:
    """The exit status of a command line."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m benchmarks NAME [--json]\n\n" + "\n".join(f"  {name}" for name in names()))
        return 0
    name, *rest = arguments
    if name not in names():
        print(f"benchmarks: there is no {name!r}: choose one of {', '.join(names())}", file=sys.stderr)
        return 2
    status: int = importlib.import_module(f"benchmarks.{name.replace('-', '_')}").main(rest)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
