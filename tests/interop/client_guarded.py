"""Our client with Apache's servers that require TLS or signed requests (ACL)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from tests.interop.client_lab import Failed, Lab, same
from tests.interop.client_scenarios import RUNS, Run, run_clients
from tests.interop.results import Cell
from tests.interop.servers import (
    Cluster,
    apache_broker,
    apache_home,
    apache_namesrv,
    write_properties,
)
from tests.interop.toolchain import QUICK, Toolchain

from penstock import Message, PenstockError, Producer
from penstock.remoting.tls import Tls

# One scenario per family of requests: signing and encryption do not depend on the rest.
SHARED = (
    "send_sync",
    "send_linger",
    "request_reply",
    "push_concurrent",
    "push_orderly",
    "retry_to_dead_letters",
    "pull_subscribe",
    "admin_topics",
    "admin_clients",
)
ACCESS_KEY, SECRET_KEY = "penstock", "a secret of the tests"
ACCOUNTS = f"""\
accounts:
- accessKey: {ACCESS_KEY}
  secretKey: {SECRET_KEY}
  admin: true
- accessKey: onlooker
  secretKey: another secret of the tests
  admin: false
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
"""


def _refusal(producer: Producer, topic: str) -> str:
    """Send a message that must be refused; return the error."""
    producer.start()
    try:
        producer.send(Message(topic, b"never"), timeout=5)
    except PenstockError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        producer.stop()
    raise Failed("the message was accepted")


def plain_refused(lab: Lab) -> str:
    topic = lab.topic()
    settings = {**lab.settings, "tls": False}
    said = _refusal(Producer(lab.name("plain"), **settings, retries=0), topic)
    same(0, len(lab.read(topic)), "messages")
    return said


def wrong_certificate_refused(lab: Lab) -> str:
    topic = lab.topic()
    settings = {**lab.settings, "tls": Tls()}  # trusts the system's authorities, not the test's
    return _refusal(Producer(lab.name("distrust"), **settings, retries=0), topic)


def wrong_secret_refused(lab: Lab) -> str:
    topic = lab.topic()
    said = _refusal(
        Producer(lab.name("wrong"), **{**lab.settings, "secret_key": "not the secret"}), topic
    )
    if SECRET_KEY in said or "not the secret" in said:
        raise Failed("the error shows a secret")
    return said


def unsigned_refused(lab: Lab) -> str:
    settings = {**lab.settings, "access_key": None, "secret_key": None}
    return _refusal(Producer(lab.name("unsigned"), **settings), lab.topic())


TLS_RUNS: Mapping[str, Run] = {
    **{f"client_tls_{name}": RUNS[f"client_{name}"] for name in SHARED},
    "client_tls_plain_refused": plain_refused,
    "client_tls_wrong_certificate_refused": wrong_certificate_refused,
}
ACL_RUNS: Mapping[str, Run] = {
    **{f"client_acl_{name}": RUNS[f"client_{name}"] for name in SHARED},
    "client_acl_wrong_secret_refused": wrong_secret_refused,
    "client_acl_unsigned_refused": unsigned_refused,
}
NAMES: tuple[str, ...] = (*TLS_RUNS, *ACL_RUNS)


def run_guarded(
    toolchain: Toolchain, directory: Path, names: Sequence[str], column: str
) -> Iterator[Cell]:
    """Run ``names`` on servers of the toolchain's version; yield a cell as each ends."""
    if tls := [name for name in names if name in TLS_RUNS]:
        with tls_only(toolchain, directory / "tls") as (cluster, settings):
            yield from run_clients(cluster, tls, column, runs=TLS_RUNS, tls=settings)
    if acl := [name for name in names if name in ACL_RUNS]:
        with signed_only(toolchain, directory / "acl") as cluster:
            yield from run_clients(
                cluster,
                acl,
                column,
                runs=ACL_RUNS,
                access_key=ACCESS_KEY,
                secret_key=SECRET_KEY,
            )


@contextmanager
def tls_only(toolchain: Toolchain, directory: Path) -> Iterator[tuple[Cluster, Tls]]:
    """Apache's servers in enforcing mode, and the TLS settings for a client."""
    directory.mkdir(parents=True, exist_ok=True)
    authority, trusted = trustme.CA(), directory / "authority.pem"
    authority.cert_pem.write_to_path(str(trusted))
    issued = authority.issue_cert("127.0.0.1", "localhost")
    certificate, key = directory / "server.pem", directory / "server.key"
    certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    # Netty reads private keys only in PKCS 8 form.
    private = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    conf = write_properties(
        directory / "tls.properties",
        {
            "tls.test.mode.enable": "false",
            "tls.server.certPath": str(certificate),
            "tls.server.keyPath": str(key),
            "tls.server.need.client.auth": "none",
        },
    )
    # tls.enable applies to the broker as a client of its name server.
    options = (
        *QUICK,
        f"-Dtls.config.file={conf}",
        "-Dtls.server.mode=enforcing",
        "-Dtls.enable=true",
    )
    tls = Tls(ca_file=trusted)
    with (
        apache_namesrv(toolchain, directory, options=options) as namesrv,
        apache_broker(
            toolchain, directory, namesrv, options=options, access={"tls": tls}
        ) as cluster,
    ):
        yield cluster, tls


@contextmanager
def signed_only(toolchain: Toolchain, directory: Path) -> Iterator[Cluster]:
    """Apache's servers with a broker that accepts only signed requests of known accounts."""
    home = Path(apache_home(directory)["ROCKETMQ_HOME"])
    (home / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    settings = {"aclEnable": "true"}
    if not toolchain.version.startswith("4."):
        settings = accounts_of_5(directory)
    access = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY}
    with (
        apache_namesrv(toolchain, directory) as namesrv,
        apache_broker(toolchain, directory, namesrv, settings, access=access) as cluster,
    ):
        yield cluster


def accounts_of_5(
    directory: Path, name: str = ACCESS_KEY, secret: str = SECRET_KEY
) -> dict[str, str]:
    """The settings of 5.x, which creates its first user at the first start."""
    user = {"username": name, "password": secret}
    inner = {"accessKey": name, "secretKey": secret}
    authentication = "org.apache.rocketmq.auth.authentication.provider"
    authorization = "org.apache.rocketmq.auth.authorization.provider"
    return {
        "authenticationEnabled": "true",
        "authenticationProvider": f"{authentication}.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{authentication}.LocalAuthenticationMetadataProvider",
        "initAuthenticationUser": json.dumps(user),
        "innerClientAuthenticationCredentials": json.dumps(inner),
        "authorizationEnabled": "true",
        "authorizationProvider": f"{authorization}.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": f"{authorization}.LocalAuthorizationMetadataProvider",
        "authConfigPath": str(directory / "auth"),
    }
