"""Directories of links and small scripts that replace a Java or a Spark home.

They are kept in the user's cache under a name computed from their content, so each is made once,
and a changed installation gets a new one.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path


def cached_home_dir(kind: str, links: Mapping[str, Path], scripts: Mapping[str, str]) -> Path:
    """A directory with these links and executable scripts (names may have one ``/``)."""
    content = sorted([*((name, str(path)) for name, path in links.items()), *scripts.items()])
    digest = hashlib.sha256(repr(content).encode()).hexdigest()[:16]
    parent = _cache()
    home = parent / f"{kind}-{digest}"
    if home.is_dir():
        return home
    # Several processes may make it at once: each fills its own, and the first rename wins.
    fresh = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=parent))
    for name, path in links.items():
        (fresh / name).symlink_to(path)
    for name, script in scripts.items():
        (fresh / name).parent.mkdir(exist_ok=True)
        (fresh / name).write_text(script, "utf-8")
        (fresh / name).chmod(0o755)
    fresh.chmod(0o755)
    try:
        fresh.rename(home)
    except OSError:
        shutil.rmtree(fresh)
        if not home.is_dir():
            raise
    return home


def _cache() -> Path:
    chosen = os.environ.get("XDG_CACHE_HOME")
    directory = Path(chosen) if chosen else Path("~/.cache").expanduser()
    try:
        directory = directory / "penstock"
        directory.mkdir(parents=True, exist_ok=True)
        if os.access(directory, os.W_OK):
            return directory
    except OSError:
        pass
    # Without a home directory, as in some containers, they last as long as this process.
    temporary = Path(tempfile.mkdtemp(prefix="penstock-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return temporary
