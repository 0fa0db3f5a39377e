"""The keys of a ``broker.conf`` that are about users: those of RocketMQ 5.3 and later, and ours.

They are kept apart from the other settings of a broker, so that no answer and no request about
settings ever has one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import orjson

from penstock.auth.need_tables import ADMINISTRATIVE, BROKER, NAME_SERVER
from penstock.errors import ConfigError
from penstock.protocol.codes import request_name
from penstock.runtime.config import check_settings, setting, settings

FRESH_OFF: Final = "off"
FRESH_ADMIN: Final = "admin"
_PROVIDED: Final = "accepted if it is RocketMQ's own class; Penstock has the same behaviour"
_CACHE: Final = "accepted and not used: changes are in force at once"
_STATEFUL: Final = "Stateful"
_CLASSES: Final = {
    "authentication_provider": ("DefaultAuthenticationProvider",),
    "authorization_provider": ("DefaultAuthorizationProvider",),
    "authentication_metadata_provider": ("LocalAuthenticationMetadataProvider",),
    "authorization_metadata_provider": ("LocalAuthorizationMetadataProvider",),
    "authentication_strategy": (
        "StatelessAuthenticationStrategy",
        "StatefulAuthenticationStrategy",
    ),
    "authorization_strategy": ("StatelessAuthorizationStrategy", "StatefulAuthorizationStrategy"),
}


class Account(NamedTuple):
    """A name with its secret."""

    name: str
    secret: str

    def __repr__(self) -> str:
        return f"Account({self.name!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthConfig:
    """Who may connect, as a configuration file says it."""

    authentication_enabled: bool = setting(False, doc="every request needs a user, as `--auth`")
    authorization_enabled: bool = setting(
        False,
        doc="requests need rights, too; with `--auth` always. Without authentication: no start",
    )
    init_authentication_user: str = setting(
        "",
        secret=True,
        doc='`{"username":"…","password":"…"}`: a super user that is made if it does not exist',
    )
    inner_client_authentication_credentials: str = setting(
        "",
        secret=True,
        doc='`{"accessKey":"…","secretKey":"…"}`: the super user that this broker registers as; '
        "made if it does not exist",
    )
    authentication_whitelist: str = setting(
        "",
        doc="request codes, with commas, that need no user if they need no right; "
        "never those of administrators",
    )
    authorization_whitelist: str = setting(
        "", doc="request codes that need no right; never those of administrators"
    )
    penstock_require_fresh: str = setting(
        FRESH_OFF,
        choices=(FRESH_OFF, FRESH_ADMIN),
        doc="`admin`: requests of administrators carry their time and are taken once; "
        "then `mqadmin` is refused",
    )
    acl_enable: bool = setting(
        False, doc="accounts of RocketMQ 4.x: import them with `penstock acl import`"
    )
    migrate_auth_from_v1_enabled: bool = setting(
        False, key="migrateAuthFromV1Enabled", doc="use `penstock acl import` instead"
    )
    authentication_provider: str = setting("", doc=_PROVIDED)
    authorization_provider: str = setting("", doc=_PROVIDED)
    authentication_metadata_provider: str = setting("", doc=_PROVIDED)
    authorization_metadata_provider: str = setting("", doc=_PROVIDED)
    authentication_strategy: str = setting("", doc=_PROVIDED)
    authorization_strategy: str = setting("", doc=_PROVIDED)
    user_cache_max_num: int = setting(1000, doc=_CACHE)
    user_cache_expired_second: int = setting(600, doc=_CACHE)
    user_cache_refresh_second: int = setting(60, doc=_CACHE)
    acl_cache_max_num: int = setting(1000, doc=_CACHE)
    acl_cache_expired_second: int = setting(600, doc=_CACHE)
    acl_cache_refresh_second: int = setting(60, doc=_CACHE)
    stateful_authentication_cache_max_num: int = setting(10_000, doc=_CACHE)
    stateful_authentication_cache_expired_second: int = setting(60, doc=_CACHE)
    stateful_authorization_cache_max_num: int = setting(10_000, doc=_CACHE)
    stateful_authorization_cache_expired_second: int = setting(60, doc=_CACHE)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError(
                "authorizationEnabled without authenticationEnabled",
                expected="both: only an authenticated user has rights",
            )
        for key, name, known in self._classes():
            if name and name.rpartition(".")[2] not in known:
                raise ConfigError(f"{key} is {name!r}", expected=" or ".join(known))
        _ = self.first_user, self.inner_client
        _ = self.served_without_user, self.served_without_right

    def _classes(self) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """The settings that name a class, with the classes that RocketMQ has."""
        for item in settings(type(self)):
            if item.name in _CLASSES:
                yield item.key, getattr(self, item.name), _CLASSES[item.name]

    @property
    def first_user(self) -> Account | None:
        """The user of ``initAuthenticationUser``."""
        return _account(
            self.init_authentication_user, "initAuthenticationUser", "username", "password"
        )

    @property
    def inner_client(self) -> Account | None:
        """The user of ``innerClientAuthenticationCredentials``."""
        return _account(
            self.inner_client_authentication_credentials,
            "innerClientAuthenticationCredentials",
            "accessKey",
            "secretKey",
        )

    @property
    def served_without_user(self) -> frozenset[int]:
        """The codes of ``authenticationWhitelist``."""
        return _codes(self.authentication_whitelist, "authenticationWhitelist")

    @property
    def served_without_right(self) -> frozenset[int]:
        """The codes of ``authorizationWhitelist``."""
        return _codes(self.authorization_whitelist, "authorizationWhitelist")

    def warnings(self) -> Iterator[str]:
        """What a user should know who brings a file of Apache RocketMQ."""
        for key, name, _ in self._classes():
            if name.rpartition(".")[2].startswith(_STATEFUL):
                yield f"{key}: nothing is cached, each request is checked by itself"
        if self.acl_enable or self.migrate_auth_from_v1_enabled:
            key = "aclEnable" if self.acl_enable else "migrateAuthFromV1Enabled"
            yield f"{key}: accounts of 4.x are not read; import them: penstock acl import FILE"


def _account(text: str, key: str, name_member: str, secret_member: str) -> Account | None:
    if not text.strip():
        return None
    try:
        document = orjson.loads(text)
        name, secret = document[name_member], document[secret_member]
    except (ValueError, KeyError, TypeError):
        name = secret = None
    if not (isinstance(name, str) and name and isinstance(secret, str) and secret):
        # Without the value, which has a secret.
        raise ConfigError(
            f"{key} cannot be read", expected=f'{{"{name_member}":"…","{secret_member}":"…"}}'
        )
    return Account(name, secret)


def _codes(text: str, key: str) -> frozenset[int]:
    codes = frozenset(_code(word.strip(), key) for word in text.split(",") if word.strip())
    check_white_list(codes, key)
    return codes


def _code(word: str, key: str) -> int:
    if not (word.isascii() and word.isdecimal()):
        raise ConfigError(f"{key} has {word[:64]!r}", expected="request codes, such as 105,106")
    return int(word)


def check_white_list(codes: Iterable[int], key: str) -> None:
    """Refuse codes that must never be served without a check."""
    for code in sorted(codes):
        if code in ADMINISTRATIVE or not (code in BROKER or code in NAME_SERVER):
            raise ConfigError(
                f"{key} has {code} ({request_name(code)})",
                expected="requests of clients: those of administrators always need rights",
            )
