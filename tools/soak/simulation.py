"""Simulated clusters under faults, seed after seed."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import sys
import time
from collections.abc import Iterator

from tests.simulation.world import SimulationFailed, run_seed
from tools.soak.outcome import Outcome, say

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


def soak(seconds: float, first: int, processes: int) -> Outcome:
    """Run fresh seeds, every fourth of a big cluster."""
    say(f"seeds from {first} on, {seconds:.0f} s, {processes} processes")
    begun = said = time.monotonic()
    done = 0
    failed: list[str] = []
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=200) as pool:
        waiting = jobs(first, begun + seconds)
        # Two for each process and no more: `imap` would ask for all seeds of the time at once.
        running = [
            pool.apply_async(run_one, (job,)) for job in itertools.islice(waiting, 2 * processes)
        ]
        while running:
            seed, is_big, broken = running.pop(0).get()
            done += 1
            if broken is not None:
                failed.append(f"seed {seed}{' --big' if is_big else ''}")
                say(f"\nseed {seed} FAILED\n{broken}\n")
            if time.monotonic() - said > PROGRESS_SECONDS:
                said = time.monotonic()
                say(f"{said - begun:5.0f} s: {done} seeds, {len(failed)} failed")
            running += [pool.apply_async(run_one, (job,)) for job in itertools.islice(waiting, 1)]
    return Outcome("simulation", f"{done} seeds from {first} on", failed)


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
