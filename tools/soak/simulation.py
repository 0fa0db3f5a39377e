"""Simulated clusters under faults, one seed after another."""

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
"""A seed, whether the cluster was big, and the failure."""


def run_one(job: tuple[int, bool]) -> Result:
    """Run one seed in a process of the pool."""
    seed, is_big = job
    logging.disable(logging.WARNING)
    try:
        run_seed(seed, is_big=is_big)
    except SimulationFailed as error:
        return seed, is_big, str(error)
    return seed, is_big, None


def jobs(first: int, until: float) -> Iterator[tuple[int, bool]]:
    """Seeds from ``first`` on, until the time is up."""
    seed = first
    while time.monotonic() < until:
        yield seed, seed % BIG_EVERY == 0
        seed += 1


def soak(seconds: float, first: int, processes: int) -> Outcome:
    """Run new seeds, every fourth with a big cluster."""
    say(f"seeds from {first} on, {seconds:.0f} s, {processes} processes")
    begun = said = time.monotonic()
    done = 0
    failed: list[str] = []
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=200) as pool:
        waiting = jobs(first, begun + seconds)
        # Two per process: `imap` would take all seeds from the iterator at once.
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
    """Run one seed in this process and print its log."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(name)s %(message)s"
    )
    try:
        say(str(run_seed(seed, is_big=is_big)))
    except SimulationFailed as error:
        say(f"\n{error}")
        return 1
    return 0
