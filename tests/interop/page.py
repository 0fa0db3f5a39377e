"""``docs/compatibility.md``, generated from the results of a full run.

python -m tests.interop.page        # after: make interop
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from tests.interop.results import FAIL, LIMIT, NOT_APPLICABLE, PASS, Cell
from tests.interop.toolchain import BUILD, PROJECT

PAGE = PROJECT / "docs" / "compatibility.md"
WORDS = {PASS: "yes", FAIL: "**no**", LIMIT: "refused", NOT_APPLICABLE: "n/a"}
INTRO = """# Compatibility

Every cell below is the result of a real run of `make interop`: Apache RocketMQ's own Java and Go
clients, two Node clients, the gRPC clients of 5.x in five languages and the command-line tool
mqadmin with `penstock up`; Penstock's client
with Apache's brokers and in groups with Apache's clients; brokers and name servers of both kinds
with each other; and store directories exchanged with Apache's broker. `tests/interop/README.md`
explains the rows. "refused" means that Penstock answers with an error and a reason because the
feature is not supported yet; "n/a" means that this version of the client or the tool lacks it.

`python -m tests.interop.page` writes this page from the results; do not edit it.
"""


def page(cells: Sequence[Cell]) -> str:
    """The whole page as Markdown."""
    parts = [INTRO]
    for section in dict.fromkeys(cell.section for cell in cells):
        parts.append(_table([cell for cell in cells if cell.section == section]))
    refused = {cell.row: cell.evidence for cell in cells if cell.status == LIMIT}
    if refused:
        parts.append("## Not supported yet\n")
        parts += [f"- `{row}`: {_reason(evidence)}" for row, evidence in refused.items()]
        parts.append("")
    return "\n".join(parts)


def _table(cells: Sequence[Cell]) -> str:
    columns = list(dict.fromkeys(cell.column for cell in cells))
    by_place = {(cell.row, cell.column): cell for cell in cells}
    lines = [
        f"## {cells[0].section}\n",
        "| | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for row in dict.fromkeys(cell.row for cell in cells):
        found = (by_place.get((row, column)) for column in columns)
        marks = [WORDS.get(cell.status, cell.status) if cell else "" for cell in found]
        lines.append(f"| `{row}` | " + " | ".join(marks) + " |")
    return "\n".join([*lines, ""])


def _reason(evidence: str) -> str:
    """The broker's message, without the text that the client adds around it."""
    said = evidence.rpartition("DESC:")[2].partition("BROKER:")[0]
    return " ".join(said.partition("For more information")[0].split())


def main() -> int:
    """Read the results of the last full run and write the page."""
    results = BUILD / "results-penstock.json"
    if not results.is_file():
        sys.stdout.write(f"{results} does not exist; try: make interop\n")
        return 1
    content = json.loads(results.read_text())
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page([Cell(**cell) for cell in content["cells"]]))
    sys.stdout.write(f"wrote {PAGE.relative_to(PROJECT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
