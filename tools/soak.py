"""Simulated clusters under faults, for as long as asked.

    python -m tools.soak --minutes 10     fresh seeds on all cores; every fourth cluster is big
    python -m tools.soak --seed 17        one seed again, telling all that happens
    python -m tools.soak --seed 17 --big  the same of a big cluster

Ends with 1 if a seed failed, and prints each that did with its plan.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence

from tests.simulation.world import SimulationFailed, run_seed

PROGRESS_SECONDS = 15.0
BIG_EVERY = 4

Result = tuple[int, bool, str | None]
"""A seed, whether it was big, and what broke."""


def run_one(job: tuple[int, bool]) -> Result:
    """One seed, in a process of its own pool."""
    seed, is_big = job
    logging.disable(logging.WARNING)
    try:
        run_seed(seed, is_big=is_big)
    except SimulationFailed as error:
        return seed, is_big, str(error)
    return seed, is_big, None


def jobs(first: int, until: float) -> Iterator[tuple[int, bool]]:
    """Seeds from ``first`` on, until the time has come."""
    seed = first
    while time.monotonic() < until:
        yield seed, seed % BIG_EVERY == 0
        seed += 1


def soak(minutes: float, first: int, processes: int) -> int:
    """Run fresh seeds; how many failed."""
    say(f"seeds from {first} on, {minutes:g} minutes, {processes} processes")
    begun = said = time.monotonic()
    done = 0
    failed: list[str] = []
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=200) as pool:
        waiting = jobs(first, begun + minutes * 60)
        # Two for each process and no more: `imap` would ask for all seeds of the time at once.
        running = [
            pool.apply_async(run_one, (job,)) for job in itertools.islice(waiting, 2 * processes)
        ]
        while running:
            seed, is_big, broken = running.pop(0).get()
            done += 1
            if broken is not None:
                failed.append(f"{seed}{' --big' if is_big else ''}")
                say(f"\nseed {seed} FAILED\n{broken}\n")
            if time.monotonic() - said > PROGRESS_SECONDS:
                said = time.monotonic()
                say(f"{said - begun:5.0f} s: {done} seeds, {len(failed)} failed")
            running += [pool.apply_async(run_one, (job,)) for job in itertools.islice(waiting, 1)]
    say(f"{done} seeds, {len(failed)} failed{': ' + ', '.join(failed) if failed else ''}")
    return len(failed)


def replay(seed: int, *, is_big: bool) -> int:
    """Run one seed in this process, with the log on the screen."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(name)s %(message)s"
    )
    try:
        say(str(run_seed(seed, is_big=is_big)))
    except SimulationFailed as error:
        say(f"\n{error}")
        return 1
    return 0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 1 if a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: 10)")
    parser.add_argument("--seed", type=int, help="run this seed only, and tell what happens")
    parser.add_argument("--big", action="store_true", help="with --seed: the big cluster of it")
    parser.add_argument("--first", type=int, help="the first seed (default: by the time of day)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None:
        return replay(chosen.seed, is_big=chosen.big)
    first = int(time.time()) * 100 if chosen.first is None else chosen.first
    return 1 if soak(chosen.minutes, first, chosen.processes) else 0


if __name__ == "__main__":
    sys.exit(main())
