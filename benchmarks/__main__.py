"""Print every benchmark, or those that are named: `python -m benchmarks [NAME…]`."""

from __future__ import annotations

import importlib
import sys

NAMES = ("startup", "one_order", "validation")


def main(names: list[str]) -> int:
    """Print the rows of each benchmark as they come."""
    if unknown := set(names) - set(NAMES):
        print(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 64
    for name in names or NAMES:
        module = importlib.import_module(f"benchmarks.{name}")
        print(f"\n{name}: {(module.__doc__ or '').strip().partition(chr(10))[0]}", flush=True)
        for row in module.rows():
            print(f"  {row}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
