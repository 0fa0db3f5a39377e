"""``auth.json``: all users with their secrets and rights, shared by the servers of one directory.

    {"format": 1, "generation": 17,
     "users": {"app": {"type": "Normal", "status": "enable", "secrets": [...]}},
     "rights": {"User:app": [{"resource": "Topic:orders*", "actions": ["Pub"], ...}]}}

The texts are those of the wire, so the file can be read, edited and moved by hand. A signature
needs the secret itself, so no hash is kept: only the owner may read the file, and a start with a
file that others can read is refused. A writer holds the lock beside the file, compares the
generation, writes a new file and gives it the name. Readers look at the file every second; one that
cannot be understood leaves the old state in force, with an error in the log.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from penstock.auth.model import (
    Entry,
    Secret,
    User,
    UserLimits,
    UserStatus,
    UserType,
    parse_word,
)
from penstock.auth.users import Users
from penstock.errors import ConfigError, InvalidArgument, PenstockError, StoreDamaged
from penstock.remoting.file_stamps import FileStamp, file_stamp, stamp_of

FILE_NAME: Final = "auth.json"
SUBJECT_PREFIX: Final = "User:"
MAX_FILE_BYTES: Final = 64 << 20
_FORMAT: Final = 1
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_OWNER_ONLY: Final = 0o600
_ENV: Final = "env:"
_FILE: Final = "file:"
_MAX_SECRET_FILE_BYTES: Final = 4096
_LIMIT_KEYS: Final = {
    "connections": "connections",
    "requests": "requestsPerSecond",
    "bytes": "bytesPerSecond",
    "creations": "creationsPerHour",
}
"""By the name in `UserLimits`: the name in the file."""


class UserFile:
    """Reads and replaces the file. Every call waits for the disk: not for an event loop."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        return self.path.exists()

    def stamp(self) -> FileStamp | None:
        """Changes whenever the file does; None without a file."""
        return file_stamp(self.path)

    def load(self) -> Users:
        """The users; raises if there is no file, if others may read it or if it is damaged."""
        return self.load_stamped()[0]

    def load_stamped(self) -> tuple[Users, FileStamp]:
        """The users, and the stamp of the file that they were read from."""
        try:
            with self.path.open("rb") as file:
                # Before it is read: a change in between gives the file another stamp.
                status = os.fstat(file.fileno())
                self._check_owner(status)
                data = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError as error:
            raise ConfigError(
                f"{self.path} does not exist", hint="penstock up --auth makes it"
            ) from error
        if len(data) > MAX_FILE_BYTES:
            raise StoreDamaged(f"{self.path} is longer than {MAX_FILE_BYTES} bytes")
        return decode_users(data, str(self.path)), stamp_of(status)

    def change(self, change: Callable[[Users], Users]) -> Users:
        """Apply a change to what the file has now; return the new state."""
        return self.change_stamped(change)[0]

    def change_stamped(self, change: Callable[[Users], Users]) -> tuple[Users, FileStamp | None]:
        """`change`, with the stamp of the file that it wrote."""
        with self.locked():
            before = self.load() if self.exists() else Users()
            after = change(before)
            self._replace(encode_users(after))
            # While it is locked: later, the stamp may be that of another change.
            return after, self.stamp()

    def _check_owner(self, status: os.stat_result) -> None:
        if status.st_mode & _OTHERS:
            raise ConfigError(
                f"{self.path} may be read by others (mode {stat.S_IMODE(status.st_mode):o})",
                expected="mode 600: it has the secrets of all users",
                hint=f"chmod 600 {self.path}",
            )
        if status.st_uid not in (os.geteuid(), 0):
            raise ConfigError(
                f"{self.path} belongs to user {status.st_uid}",
                expected=f"user {os.geteuid()}, who runs this server",
                hint=f"chown {os.geteuid()} {self.path}",
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """While it lasts, no other process changes the file or what is kept beside it."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, _OWNER_ONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _replace(self, data: bytes) -> None:
        # mkstemp makes the file readable by its owner only, before a byte is in it.
        handle, name = tempfile.mkstemp(prefix=FILE_NAME + ".", dir=self.path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def is_reference(value: str) -> bool:
    """Whether a secret is kept elsewhere: in a variable or a file of the server's machine."""
    return value.startswith((_ENV, _FILE))


def resolve_secret(value: str) -> str | None:
    """The secret itself where the file has ``env:NAME`` or ``file:PATH``; None if it is missing.

    It waits for the disk: not for an event loop.
    """
    if value.startswith(_ENV):
        return os.environ.get(value.removeprefix(_ENV)) or None
    if value.startswith(_FILE):
        try:
            return _read_secret(value.removeprefix(_FILE)) or None
        except (OSError, ValueError):
            return None
    return value


def _read_secret(path: str) -> str:
    # A pipe or a device could keep the reader waiting for ever.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return ""
        return os.read(handle, _MAX_SECRET_FILE_BYTES).decode().strip()
    finally:
        os.close(handle)


# The format


def encode_users(users: Users) -> bytes:
    """The content of the file."""
    document = {
        "format": _FORMAT,
        "generation": users.generation,
        "users": {name: _encode_user(user) for name, user in sorted(users.by_name.items())},
        "rights": {
            SUBJECT_PREFIX + name: [encode_entry(entry) for entry in user.entries]
            for name, user in sorted(users.by_name.items())
            if user.entries
        },
    }
    return json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"


def encode_rights(rights: Mapping[str, Iterable[Entry]]) -> bytes:
    """Rights alone, for another cluster: neither users nor secrets."""
    document = {
        "format": _FORMAT,
        "rights": {
            SUBJECT_PREFIX + name: [encode_entry(entry) for entry in entries]
            for name, entries in rights.items()
        },
    }
    return json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"


def read_rights(path: Path) -> dict[str, list[Entry]]:
    """The rights that `encode_rights` wrote, by user."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    try:
        if len(data) > MAX_FILE_BYTES:
            raise InvalidArgument(f"longer than {MAX_FILE_BYTES} bytes")
        document = _mapping(json.loads(data), "the document")
        if document.get("format") != _FORMAT:
            raise InvalidArgument(f"no format {_FORMAT}", expected=f'"format": {_FORMAT}')
        return {
            subject.removeprefix(SUBJECT_PREFIX): [
                decode_entry(_mapping(entry, subject)) for entry in entries
            ]
            for subject, entries in _mapping(document.get("rights", {}), "rights").items()
        }
    except (PenstockError, ValueError, TypeError, KeyError) as error:
        text = str(error) if isinstance(error, PenstockError) else type(error).__name__
        raise ConfigError(
            f"{path} cannot be understood: {text}", expected="the output of penstock acl export"
        ) from None


def decode_users(data: bytes, where: str) -> Users:
    """The users of a file; an error names what is wrong in it, without a secret."""
    try:
        document = json.loads(data)
        if not isinstance(document, dict) or document.get("format") != _FORMAT:
            raise InvalidArgument(f"no format {_FORMAT}", expected=f'"format": {_FORMAT}')
        rights = _mapping(document.get("rights", {}), "rights")
        known = _mapping(document.get("users", {}), "users")
        for subject in rights:
            if subject.removeprefix(SUBJECT_PREFIX) not in known:
                raise InvalidArgument(f"rights of {subject[:64]!r}", expected="a user of the file")
        users = {
            name: _decode_user(name, _mapping(user, name), rights.get(SUBJECT_PREFIX + name, []))
            for name, user in known.items()
        }
        return Users(users, int(document.get("generation", 0)))
    except (PenstockError, ValueError, TypeError, KeyError, AttributeError) as error:
        # json's own message shows no value, but a KeyError might name one: only ours are shown.
        text = str(error) if isinstance(error, PenstockError | json.JSONDecodeError) else ""
        raise StoreDamaged(
            f"{where} cannot be understood: {text or type(error).__name__}",
            hint="correct it, or restore it from a backup",
        ) from None


def _encode_user(user: User) -> dict[str, object]:
    encoded: dict[str, object] = {
        "type": user.type.value,
        "status": user.status.value,
        "secrets": [
            {
                "id": secret.id,
                "value": secret.value,
                "created": _time_text(secret.created_ms),
                "expires": None if secret.expires_ms is None else _time_text(secret.expires_ms),
            }
            for secret in user.secrets
        ],
    }
    if limits := encode_limits(user.limits):
        encoded["limits"] = limits
    return encoded


def encode_limits(limits: UserLimits) -> dict[str, int]:
    """Limits as the file has them."""
    found = {key: getattr(limits, name) for name, key in _LIMIT_KEYS.items()}
    return {key: value for key, value in found.items() if value is not None}


def _decode_user(name: str, user: Mapping[str, Any], rights: object) -> User:
    if not isinstance(rights, list):
        raise InvalidArgument(f"rights of {name[:64]!r}", expected="a list")
    return User(
        name,
        tuple(_decode_secret(name, _mapping(one, name)) for one in user.get("secrets", [])),
        parse_word(UserType, str(user.get("type", UserType.NORMAL))),
        parse_word(UserStatus, str(user.get("status", UserStatus.ENABLE))),
        _decode_limits(name, _mapping(user.get("limits", {}), f"limits of {name}")),
        tuple(decode_entry(_mapping(one, name)) for one in rights),
    )


def _decode_limits(name: str, limits: Mapping[str, Any]) -> UserLimits:
    unknown = limits.keys() - _LIMIT_KEYS.values()
    if unknown:
        raise InvalidArgument(
            f"limit {min(unknown)[:64]!r} of {name[:64]!r}",
            expected=f"one of {', '.join(_LIMIT_KEYS.values())}",
        )
    found = {field: limits.get(key) for field, key in _LIMIT_KEYS.items()}
    for value in found.values():
        if value is not None and (type(value) is not int or value < 1):
            raise InvalidArgument(
                f"a limit of {name[:64]!r} is {str(value)[:64]!r}", expected="a number from 1 on"
            )
    return UserLimits(**found)


def _decode_secret(name: str, secret: Mapping[str, Any]) -> Secret:
    value = secret.get("value")
    if not isinstance(value, str) or not value:
        raise InvalidArgument(f"a secret of {name[:64]!r} has no value", expected="a text")
    expires = secret.get("expires")
    return Secret(
        str(secret.get("id", "")),
        value,
        _time_ms(secret.get("created")),
        None if expires is None else _time_ms(expires),
    )


def encode_entry(entry: Entry) -> dict[str, object]:
    """An entry as the file has it."""
    return {
        "policy": entry.policy.value,
        "resource": str(entry.resource),
        "actions": sorted(action.value for action in entry.actions),
        "sourceIps": [str(source) for source in entry.sources],
        "decision": entry.decision.value,
    }


def decode_entry(entry: Mapping[str, Any]) -> Entry:
    """An entry of the file."""
    return Entry.parse(
        str(entry["resource"]),
        _texts(entry.get("actions", []), "actions"),
        str(entry.get("decision", "Allow")),
        _texts(entry.get("sourceIps") or [], "sourceIps"),
        str(entry.get("policy", "Custom")),
    )


def _texts(value: object, what: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InvalidArgument(f"{what} of an entry", expected="a list of texts")
    return value


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgument(f"{what[:64]!r} is no object", expected="an object")
    return value


def _time_text(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat().replace("+00:00", "Z")


def _time_ms(text: object) -> int:
    if text is None:
        return 0
    time = datetime.fromisoformat(str(text))
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return round(time.timestamp() * 1000)
