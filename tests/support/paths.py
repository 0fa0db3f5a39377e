"""Where the project keeps what tests read."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
VECTORS: Final = ROOT / "tests" / "vectors"
