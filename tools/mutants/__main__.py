"""Which small mistakes do the tests not notice?

    python -m tools.mutants                    all of the list
    python -m tools.mutants --only store       those with the word in their name or file
    python -m tools.mutants --json             the result as JSON
    python -m tools.mutants --fresh            without the results of earlier runs

Each mistake of `tools/mutants/lists` is made in a copy of the project, and the tests that the list
names run with it; before that they have to pass without it. Results are kept in build/mutants.jsonl
and used again while the file and its tests are the same, so a run can be stopped and resumed.
Exits with 1 if fewer than 95 % are noticed, or if an entry could not be tried.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from tools.mutants.catalogue import ROOT, Mutant, load, problems
from tools.mutants.results import Results, baseline_fingerprint, fingerprint
from tools.mutants.trial import SURVIVED, UNCLEAR, Verdict, project_copy, run_tests, try_mutant

RESULTS: Final = ROOT / "build" / "mutants.jsonl"
GOAL: Final = 0.95
MAX_PROCESSES: Final = 2


@dataclass(slots=True)
class Run:
    """The work of one run, shared by its threads; each of them has a copy of the project."""

    results: Results
    waiting: SimpleQueue[Mutant] = field(default_factory=SimpleQueue)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def work(self) -> None:
        """Try what waits until nothing does."""
        with (
            tempfile.TemporaryDirectory(prefix="penstock-mutants-") as directory,
            project_copy(Path(directory)) as copy,
        ):
            while True:
                try:
                    mutant = self.waiting.get_nowait()
                except Empty:
                    return
                verdict = self._tried(copy, mutant)
                with self.lock:
                    self.results.add(fingerprint(mutant), verdict)
                    self.verdicts[mutant.name] = verdict
                    _say(f"{len(self.verdicts)}: {mutant.name}: {_words(mutant, verdict)}")

    def _tried(self, copy: Path, mutant: Mutant) -> Verdict:
        baseline = baseline_fingerprint(mutant.tests)
        with self.lock:
            passed = self.results.get(baseline)
        if passed is None or passed.outcome != SURVIVED:
            passed = run_tests(copy, mutant.tests)
            with self.lock:
                self.results.add(baseline, passed)
        if passed.outcome != SURVIVED:
            return Verdict(
                UNCLEAR, passed.seconds, f"its tests fail without it, too:\n{passed.output}"
            )
        return try_mutant(copy, mutant)


def _words(mutant: Mutant, verdict: Verdict) -> str:
    words = f"{verdict.outcome} after {verdict.seconds:.1f} s"
    return f"{words}, as expected" if mutant.equivalent and not verdict.is_noticed else words


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the chosen ones; return 1 if too few are noticed."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", nargs="+", metavar="WORD", help="those with one of the words in name or file"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results are kept")
    parser.add_argument("--processes", type=int, default=MAX_PROCESSES, choices=(1, MAX_PROCESSES))
    chosen = parser.parse_args(arguments)
    mutants = load()
    wrong = problems(mutants)
    if wrong:
        parser.error("\n".join(["the list does not fit the sources:", *wrong]))
    if chosen.only:
        mutants = [m for m in mutants if any(w in m.name or w in m.file for w in chosen.only)]
    if not mutants:
        parser.error(f"no mistake has {' or '.join(chosen.only)} in its name or file")
    run = Run(Results(chosen.results))
    if chosen.fresh:
        run.results.forget()
    _try_all(run, mutants, chosen.processes)
    return _report(mutants, run.verdicts, as_json=chosen.json)


def _try_all(run: Run, mutants: Sequence[Mutant], processes: int) -> None:
    for mutant in mutants:
        known = run.results.get(fingerprint(mutant))
        if known is None:
            run.waiting.put(mutant)
        else:
            run.verdicts[mutant.name] = known
    if run.verdicts:
        _say(f"{len(run.verdicts)} results of earlier runs")
    threads = [threading.Thread(target=run.work) for _ in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _report(mutants: Sequence[Mutant], verdicts: dict[str, Verdict], *, as_json: bool) -> int:
    judged = [mutant for mutant in mutants if not mutant.equivalent]
    noticed = [mutant for mutant in judged if verdicts[mutant.name].is_noticed]
    unclear = [mutant for mutant in mutants if verdicts[mutant.name].outcome == UNCLEAR]
    missed = [mutant for mutant in judged if verdicts[mutant.name].outcome == SURVIVED]
    share = len(noticed) / len(judged) if judged else 1.0
    if as_json:
        _print(json.dumps(_as_json(mutants, verdicts, share), indent=2))
    else:
        for mutant in missed:
            _print(f"not noticed: {mutant.name} in {mutant.file}: {mutant.note}")
            _print(f"  tests: {' '.join(mutant.tests)}")
        for mutant in unclear:
            _print(f"could not be tried: {mutant.name}\n{verdicts[mutant.name].output}")
        _print(
            f"{len(noticed)} of {len(judged)} mistakes noticed ({share:.1%}); "
            f"{len(mutants) - len(judged)} that make no difference are not counted"
        )
    return 0 if share >= GOAL and not unclear else 1


def _as_json(
    mutants: Sequence[Mutant], verdicts: dict[str, Verdict], share: float
) -> dict[str, object]:
    return {
        "share_noticed": share,
        "mutants": [
            {
                **mutant.as_dict(),
                "outcome": verdicts[mutant.name].outcome,
                "seconds": round(verdicts[mutant.name].seconds, 2),
            }
            for mutant in mutants
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
