"""Runs a program of a page and makes sure that each of its assertions ran.

    python checked_run.py PROGRAM

A program whose assertions are in a function that nothing calls, or in a text that it passes to
another program, ends with 0 as well; here it ends with 3. A program that defines tests is run by
pytest, and each of the tests must pass.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

NOT_RUN = 3
_MARK = "__assertion_ran__"


def unseen(tree: ast.AST) -> list[str]:
    """Texts within a program that have assertions of their own."""
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.search(r"^\s*assert ", node.value, re.MULTILINE)
    ]


def tests(tree: ast.Module) -> list[str]:
    """The test functions of a program."""
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [function.name for function in functions if function.name.startswith("test_")]


class _Marking(ast.NodeTransformer):
    """Adds a call after each assertion that records its line."""

    def __init__(self) -> None:
        self.lines: set[int] = set()

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        self.lines.add(node.lineno)
        call = ast.Expr(ast.Call(ast.Name(_MARK, ast.Load()), [ast.Constant(node.lineno)], []))
        return [node, ast.fix_missing_locations(ast.copy_location(call, node))]


def run_marked(file: Path, tree: ast.Module) -> int:
    """Run a program in this process; the exit code."""
    marking = _Marking()
    marked = marking.visit(tree)
    ran: set[int] = set()
    names = {"__name__": "__main__", "__file__": str(file), _MARK: ran.add}
    exec(compile(marked, str(file), "exec"), names)
    missing = sorted(marking.lines - ran)
    if missing:
        print(f"the assertions in lines {missing} did not run", file=sys.stderr)  # noqa: T201
        return NOT_RUN
    return 0


def run_tests(file: Path, names: list[str]) -> int:
    """Run the tests of a program; the exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 or not re.search(rf"^{len(names)} passed in ", done.stdout, re.M):
        print(done.stdout, done.stderr, file=sys.stderr)  # noqa: T201
        return done.returncode or NOT_RUN
    return 0


def main(file: Path) -> int:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    if hidden := unseen(tree):
        print(f"assertions in a text: {hidden[0][:80]!r}", file=sys.stderr)  # noqa: T201
        return NOT_RUN
    names = tests(tree)
    if not names:
        return run_marked(file, tree)
    target = file.with_name("test_program.py")
    target.write_bytes(file.read_bytes())
    return run_tests(target, names)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
