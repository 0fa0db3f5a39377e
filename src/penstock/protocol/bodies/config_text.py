"""Settings as text: the only structured bodies that are no JSON.

brokerPermission=4
fileReservedTime=48
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.errors import InvalidArgument, ProtocolError


@dataclass(frozen=True, slots=True)
class ConfigText:
    """Lines of ``key=value``, as the requests that read and change settings carry them."""

    settings: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_bytes(cls, data: bytes) -> ConfigText:
        """Read the lines; blank ones and comments are skipped, the last value of a key counts."""
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(f"settings with bytes that are no UTF-8 at {error.start}") from None
        settings: dict[str, str] = {}
        for number, line in enumerate(text.split("\n"), 1):
            line = line.strip()
            if not line or line[0] in "#!":
                continue
            key, equals, value = line.partition("=")
            if not equals or not key.strip():
                raise ProtocolError(
                    f"line {number} of the settings is {line[:60]!r}", expected="key=value"
                )
            settings[key.strip()] = value.strip()
        return cls(settings)

    def to_bytes(self) -> bytes:
        """One line per setting, each with an end."""
        for key, value in self.settings.items():
            if "\n" in key or "\n" in value:
                raise InvalidArgument(f"setting {key!r} has a line break", expected="one line")
        return "".join(f"{key}={value}\n" for key, value in self.settings.items()).encode()
