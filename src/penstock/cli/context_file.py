"""Clusters by name, in a file of the user's: address and keys, so that neither has to be typed.

The file is ``penstock/contexts.json`` in ``XDG_CONFIG_HOME``, else in ``~/.config``. It holds keys,
so only its owner may read it. It is always replaced as a whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import ConfigError, InvalidArgument

_OTHER_HOME = "set XDG_CONFIG_HOME to a directory of yours"
SECRETS = ("secret_key", "security_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """How to reach one cluster; what is None is left to flags and the environment."""

    namesrv: str
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    security_token: str | None = field(default=None, repr=False)
    tls: bool | None = None
    tls_ca: str | None = None
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Contexts:
    """All of a user's contexts, and which one is in use."""

    named: dict[str, Context]
    current: str | None = None

    def get(self, name: str) -> Context:
        """The context of that name; the nearest is suggested when there is none."""
        found = self.named.get(name)
        if found is None:
            near = difflib.get_close_matches(name, self.named, n=1)
            known = ", ".join(sorted(self.named)) or "none yet"
            raise InvalidArgument(
                f"there is no context {name!r}",
                expected=f"one of those in {path()}: {known}",
                hint=f"did you mean {near[0]}?"
                if near
                else f"penstock context add {name} --namesrv HOST:PORT",
            )
        return found


def path() -> Path:
    """Where the contexts are kept."""
    # The specification of XDG_CONFIG_HOME says that a relative path is to be ignored.
    home = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        base = Path(home) if home.startswith("/") else Path.home() / ".config"
    except RuntimeError as error:
        raise ConfigError("this user has no home directory", hint=_OTHER_HOME) from error
    return base / "penstock" / "contexts.json"


def load() -> Contexts:
    """The user's contexts; without a file there are none."""
    try:
        where = path()
    except ConfigError:
        # As in many containers; nothing can have been kept.
        return Contexts({})
    try:
        text = where.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Contexts({})
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where} cannot be read: {error}", hint=_OTHER_HOME) from error
    try:
        return _parse(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{where} holds no contexts: {error}",
            hint="mend it, or remove it and add them again with `penstock context add`",
        ) from error


def _parse(content: dict[str, object]) -> Contexts:
    named, current = content["contexts"], content.get("current")
    if not isinstance(named, dict) or not (current is None or isinstance(current, str)):
        raise TypeError("'contexts' must be an object and 'current' one of its names")
    found = {}
    for name, fields in named.items():
        context = Context(**fields)
        for wanted in dataclasses.fields(Context):
            value = getattr(context, wanted.name)
            kind: type = bool if wanted.name == "tls" else str
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"{wanted.name} of {name!r} is not a {kind.__name__}")
        found[name] = context
    return Contexts(found, current if current in found else None)


def save(contexts: Contexts) -> Path:
    """Keep the contexts, readable for their owner alone; return where."""
    where = path()
    content = {
        "current": contexts.current,
        "contexts": {
            name: {k: v for k, v in dataclasses.asdict(context).items() if v is not None}
            for name, context in sorted(contexts.named.items())
        },
    }
    draft = where.with_suffix(f".{os.getpid()}.tmp")
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        # Opened with its final rights: a key must not be readable even for a moment.
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(content, file, indent=2)
            file.write("\n")
        draft.replace(where)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise ConfigError(f"{where} cannot be written: {error}", hint=_OTHER_HOME) from error
    return where


def complete_names(ctx: object, param: object, incomplete: str) -> list[str]:
    """For the shell: the names that begin like that; a broken file completes nothing."""
    try:
        return [name for name in sorted(load().named) if name.startswith(incomplete)]
    except ConfigError:
        return []
