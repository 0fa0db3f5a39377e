"""The keys of a broker.conf that are about users."""

from __future__ import annotations

import pytest

from penstock.auth.auth_config import AuthConfig
from penstock.auth.server_auth import ServerAuth
from penstock.errors import ConfigError
from penstock.runtime.config import from_mapping, to_mapping

APACHE = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "authenticationProvider": "org.apache.rocketmq.auth.authentication.provider."
    "DefaultAuthenticationProvider",
    "authenticationMetadataProvider": "org.apache.rocketmq.auth.authentication.provider."
    "LocalAuthenticationMetadataProvider",
    "authorizationProvider": "org.apache.rocketmq.auth.authorization.provider."
    "DefaultAuthorizationProvider",
    "authorizationMetadataProvider": "org.apache.rocketmq.auth.authorization.provider."
    "LocalAuthorizationMetadataProvider",
    "authenticationStrategy": "org.apache.rocketmq.auth.authentication.strategy."
    "StatelessAuthenticationStrategy",
    "initAuthenticationUser": '{"username":"rocketmq","password":"first-secret"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-secret"}',
    "userCacheMaxNum": "5000",
    "authenticationWhitelist": "105, 106",
}


def load(**values: str) -> AuthConfig:
    return from_mapping(AuthConfig, values).config


def test_a_file_of_apache_loads() -> None:
    loaded = from_mapping(AuthConfig, APACHE)
    config = loaded.config
    assert loaded.unknown == {}
    assert config.authentication_enabled
    assert config.first_user == ("rocketmq", "first-secret")
    assert config.inner_client == ("inner", "inner-secret")
    assert config.served_without_user == {105, 106}
    assert list(config.warnings()) == []


@pytest.mark.spec("A45", "A70")
def test_secrets_are_not_written_back_or_shown() -> None:
    config = from_mapping(AuthConfig, APACHE).config
    shown = repr(config.first_user) + str(to_mapping(config))
    assert "first-secret" not in shown
    assert "inner-secret" not in shown
    with pytest.raises(ConfigError) as caught:
        load(initAuthenticationUser='{"username":"x","pasword":"first-secret"}')
    assert "initAuthenticationUser" in str(caught.value)
    assert "first-secret" not in str(caught.value)


@pytest.mark.spec("A16")
def test_rights_without_users_are_refused() -> None:
    with pytest.raises(ConfigError, match="authorizationEnabled without authenticationEnabled"):
        load(authorizationEnabled="true")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("authenticationProvider", "com.example.OurProvider"),
        ("authorizationMetadataProvider", "LocalAuthenticationMetadataProvider"),
        ("authorizationStrategy", "Stateless"),
        ("innerClientAuthenticationCredentials", "admin:secret"),
        ("initAuthenticationUser", '["admin"]'),
        ("penstockRequireFresh", "always"),
        ("authenticationWhitelist", "GET_ROUTE"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        load(**{key: value})


@pytest.mark.spec("A17")
@pytest.mark.parametrize("code", [25, 26, 17, 215, 3001, 54321])
@pytest.mark.parametrize("key", ["authenticationWhitelist", "authorizationWhitelist"])
def test_requests_of_administrators_are_on_no_white_list(key: str, code: int) -> None:
    with pytest.raises(ConfigError, match=f"{key} has {code}"):
        load(**{key: f"105,{code}"})


def test_servers_made_in_python_have_the_same_rule() -> None:
    from pathlib import Path

    with pytest.raises(ConfigError, match="UPDATE_BROKER_CONFIG"):
        ServerAuth(user_file=Path("auth.json"), served_without_right=frozenset({25}))


def test_what_is_done_otherwise_is_said() -> None:
    config = load(
        authenticationEnabled="true",
        authenticationStrategy="StatefulAuthenticationStrategy",
        aclEnable="true",
    )
    first, second = config.warnings()
    assert "authenticationStrategy" in first
    assert "penstock acl import" in second
