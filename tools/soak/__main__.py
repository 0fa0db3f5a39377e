"""Long-running checks that find more the longer they run.

    python -m tools.soak --minutes 60              all parts in turn
    python -m tools.soak --minutes 10 simulation   one part only
    python -m tools.soak --seed 17                 one simulated cluster again, with the full log
    python -m tools.soak --seed 17 --big           the same for a big cluster

Prints a summary at the end. Exits with 1 if a check failed, and prints how to repeat it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from tools.soak import checks, memory, simulation, streams
from tools.soak.outcome import Outcome, say

SHARES: Final = {
    "simulation": 0.33,
    "kills": 0.17,
    "faults": 0.17,
    "fuzzers": 0.12,
    "memory": 0.05,
    "streams": 0.06,
    "spark": 0.1,
}
"""The parts and their shares of the time."""


def soak(parts: Sequence[str], minutes: float, first: int, processes: int) -> list[Outcome]:
    """Run the parts one after the other."""
    ways: dict[str, Callable[[float], Outcome]] = {
        "simulation": lambda seconds: simulation.soak(seconds, first, processes),
        "kills": checks.kill,
        "faults": checks.starve,
        "fuzzers": checks.fuzz,
        "memory": memory.watch,
        "streams": streams.watch,
        "spark": checks.kill_spark,
    }
    all_shares = sum(SHARES[part] for part in parts)
    return [ways[part](minutes * 60 * SHARES[part] / all_shares) for part in parts]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen parts; return 1 if a check failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(SHARES)} (default: all)")
    parser.add_argument("--minutes", type=float, default=10.0, help="duration (default: 10)")
    parser.add_argument("--seed", type=int, help="simulate only this seed and print the log")
    parser.add_argument("--big", action="store_true", help="with --seed: a big cluster")
    parser.add_argument("--first", type=int, help="the first seed (default: from the current time)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    for part in chosen.parts:
        if part not in SHARES:
            parser.error(f"no part {part!r}; there are {', '.join(SHARES)}")
    if chosen.seed is not None:
        return simulation.replay(chosen.seed, is_big=chosen.big)
    first = int(time.time()) * 100 if chosen.first is None else chosen.first
    outcomes = soak(chosen.parts or list(SHARES), chosen.minutes, first, chosen.processes)
    for part, tried, failures in outcomes:
        say(f"{part}: {tried}; {len(failures)} failed")
        for failure in failures:
            say(f"  {failure}")
    return 1 if any(outcome.failures for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
