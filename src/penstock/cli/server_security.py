"""Users and TLS of ``penstock up | nameserver | broker``: from options to settings.

The first start with ``--auth`` makes two users: ``admin``, whose secret is shown once and saved in
the context ``local``, and one that the servers of this directory use among themselves.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from penstock.auth.auth_config import FRESH_ADMIN, Account, AuthConfig
from penstock.auth.certificate_files import CertificateFiles
from penstock.auth.model import User, UserType
from penstock.auth.server_auth import ServerAuth
from penstock.auth.user_file import FILE_NAME, UserFile, resolve_secret
from penstock.auth.users import Users, new_user
from penstock.cli import context_file
from penstock.cli.context_file import Context, Contexts
from penstock.cli.secret_files import read_secret
from penstock.errors import ConfigError
from penstock.remoting.tls import ServerTls, Tls, TlsMode

ADMIN: Final = "admin"
SERVERS: Final = "penstock-servers"
"""The user that brokers register with at the name server."""
LOCAL_CONTEXT: Final = "local"
AUDIT_NAME: Final = "audit.jsonl"
AUTOMATIC: Final = "auto"
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityPlan:
    """The options; None means that the option was not given."""

    auth: bool = False
    admin_secret_file: Path | None = None
    audit_all: bool = False
    tls: str | None = None
    tls_mode: str = TlsMode.ENFORCING
    tls_client_ca: Path | None = None
    insecure: bool = False
    checks_rights: bool = True
    """Not an option: a configuration file may have users without rights."""

    def arguments(self, data: Path) -> list[str]:
        """The options for a broker process of the same ``penstock up``."""
        arguments = ["--auth"] if self.auth else []
        arguments += ["--audit-all"] if self.audit_all else []
        arguments += ["--insecure"] if self.insecure else []
        if self.tls is not None:
            where = str(data / "tls") if self.tls == AUTOMATIC else self.tls
            arguments += ["--tls", where, "--tls-mode", self.tls_mode]
        if self.tls_client_ca is not None:
            arguments += ["--tls-client-ca", str(self.tls_client_ca)]
        return arguments


class NewAdmin(NamedTuple):
    """The administrator that this start has made."""

    name: str
    secret: str
    is_generated: bool


class Security(NamedTuple):
    """What servers need."""

    auth: ServerAuth | None = None
    tls: ServerTls | None = None
    client_tls: Tls | None = None
    """For connections of these servers to each other."""
    admin: NewAdmin | None = None
    authority: Path | None = None


def effective(plan: SecurityPlan, config: AuthConfig) -> SecurityPlan:
    """The options, with what the configuration file adds to them."""
    if not config.authentication_enabled:
        return plan
    return replace(plan, auth=True, checks_rights=config.authorization_enabled)


def prepare(
    plan: SecurityPlan,
    data: Path,
    cluster: str,
    hosts: tuple[str, ...],
    config: AuthConfig | None = None,
) -> Security:
    """Read the users and certificates of a data directory; make what is missing."""
    # Certificates first: if they cannot be made, no user is made that would stay unknown.
    files = None if plan.tls is None else _prepare_certificates(plan.tls, data, hosts)
    auth, admin = _prepare_users(plan, data, cluster, config or AuthConfig())
    if files is None:
        return Security(auth, admin=admin)
    tls = _server_tls(plan, files)
    authority = files.authority if files.authority.exists() else None
    if authority is None:
        _warn(
            f"{files.authority} is missing: connections between servers trust the authorities of "
            "this system, and only for the host name or address that they connect to"
        )
    own = files.client_certificate.exists() and files.client_key.exists()
    client = Tls(
        ca_file=authority,
        # Servers connect to each other by address; certificates often carry host names only. An
        # own authority signs for these servers only; one of the system, for any host of the world.
        check_hostname=authority is None,
        certificate_file=files.client_certificate if own else None,
        key_file=files.client_key if own else None,
    )
    return Security(auth, tls, client, admin, authority)


def server_tls(plan: SecurityPlan) -> ServerTls | None:
    """TLS with the certificates of a directory, for a server without data of its own."""
    if plan.tls is None:
        return None
    if plan.tls == AUTOMATIC:
        raise ConfigError(
            f"--tls {AUTOMATIC}", expected="a directory", hint="penstock cert --dir DIR"
        )
    return _server_tls(plan, _prepare_certificates(plan.tls, Path(), ()))


def _server_tls(plan: SecurityPlan, files: CertificateFiles) -> ServerTls:
    return ServerTls(
        mode=TlsMode(plan.tls_mode),
        certificate_file=files.certificate,
        key_file=files.key,
        client_ca_file=plan.tls_client_ca,
    )


def check_bind(host: str, plan: SecurityPlan) -> None:
    """Refuse to serve other machines without users and TLS."""
    if host in _LOOPBACK or host.startswith("127.") or plan.insecure:
        return
    missing = []
    if not plan.auth:
        missing.append("users (--auth)")
    elif not plan.checks_rights:
        missing.append("rights (authorizationEnabled=true)")
    if plan.tls is None or plan.tls_mode != TlsMode.ENFORCING:
        missing.append("TLS for all connections (--tls DIR or --tls auto)")
    if missing:
        raise ConfigError(
            f"--bind {host} serves other machines, but it lacks {' and '.join(missing)}",
            expected="a loopback address, or users and TLS",
            hint="add what is missing, or --insecure if the network is trusted",
        )


# Users


def _prepare_users(
    plan: SecurityPlan, data: Path, cluster: str, config: AuthConfig
) -> tuple[ServerAuth | None, NewAdmin | None]:
    file = UserFile(data / FILE_NAME)
    if not plan.auth:
        if file.exists():
            raise ConfigError(
                f"{file.path} has users, but --auth is missing: everyone would get in",
                hint="add --auth, or move the file away",
            )
        if config.acl_enable:
            raise ConfigError(
                "aclEnable=true, but this server has no users: everyone would get in",
                expected="users",
                hint="--auth, then penstock acl import conf/plain_acl.yml --data DIR",
            )
        return None, None
    admin = _make_users(file, plan, config) if not file.exists() else None
    _add_configured(file, config)
    users = file.load()
    _warn_of_ignored_secret(plan, users, admin)
    inner = config.inner_client
    servers = users.get(SERVERS)
    if inner is None and servers is not None and (secret := _secret_of(servers)) is not None:
        inner = Account(SERVERS, secret)
    return (
        ServerAuth(
            user_file=file.path,
            cluster=cluster,
            audit_file=data / AUDIT_NAME,
            audit_all=plan.audit_all,
            access_key=None if inner is None else inner.name,
            secret_key=None if inner is None else inner.secret,
            served_without_user=config.served_without_user,
            served_without_right=config.served_without_right,
            checks_rights=plan.checks_rights,
            requires_fresh=config.penstock_require_fresh == FRESH_ADMIN,
        ),
        admin,
    )


def _make_users(file: UserFile, plan: SecurityPlan, config: AuthConfig) -> NewAdmin:
    """The users of a first start: an administrator, and one for the servers themselves."""
    now = round(time.time() * 1000)
    first = config.first_user
    if first is None or plan.admin_secret_file is not None:
        given = (
            None
            if plan.admin_secret_file is None
            else read_secret(plan.admin_secret_file, "--admin-secret-file")
        )
        admin = new_user(ADMIN, now, value=given, type_=UserType.SUPER)
        is_generated = given is None
    else:
        admin = new_user(first.name, now, value=first.secret, type_=UserType.SUPER)
        is_generated = False
    servers = new_user(SERVERS, now, type_=UserType.SUPER)
    file.change(lambda users: Users(users.by_name).with_user(admin).with_user(servers))
    return NewAdmin(admin.name, admin.secrets[0].value, is_generated)


def _add_configured(file: UserFile, config: AuthConfig) -> None:
    """Add the users that the configuration file names, if they do not exist."""
    for key, account in (
        ("initAuthenticationUser", config.first_user),
        ("innerClientAuthenticationCredentials", config.inner_client),
    ):
        if account is None:
            continue
        known = file.load().get(account.name)
        if known is None:
            now = round(time.time() * 1000)
            user = new_user(account.name, now, value=account.secret, type_=UserType.SUPER)
            file.change(lambda users, user=user: users.with_user(user))  # type: ignore[misc]  # a default
        elif account.secret not in map(resolve_secret, (one.value for one in known.secrets)):
            _warn(
                f"{key}: user {account.name} exists with another secret, which stays; change it "
                f"with penstock user rotate {account.name}"
            )


def _secret_of(user: User) -> str | None:
    return next(
        (secret for one in user.secrets if (secret := resolve_secret(one.value)) is not None), None
    )


def _warn_of_ignored_secret(plan: SecurityPlan, users: Users, admin: NewAdmin | None) -> None:
    if plan.admin_secret_file is None or admin is not None:
        return
    known = users.get(ADMIN)
    if known is None or _secret_of(known) != read_secret(
        plan.admin_secret_file, "--admin-secret-file"
    ):
        _warn(
            f"{plan.admin_secret_file} is not used, the users exist already; "
            "change the secret with penstock user rotate admin"
        )


def _warn(text: str) -> None:
    print(f"penstock: warning: {text}", file=sys.stderr)  # noqa: T201 - the command line


# Certificates


def _prepare_certificates(where: str, data: Path, hosts: tuple[str, ...]) -> CertificateFiles:
    if where != AUTOMATIC:
        files = CertificateFiles.of(Path(where))
        if not files.certificate.exists() or not files.key.exists():
            raise ConfigError(
                f"--tls {where} has no {files.certificate.name} and {files.key.name}",
                expected="a directory with certificates",
                hint=f"penstock cert --dir {where}, or --tls auto",
            )
        return files
    files = CertificateFiles.of(data / "tls")
    if not files.certificate.exists():
        from penstock.auth.certificates import make_certificates

        names = ("localhost", "127.0.0.1", "::1", *hosts)
        make_certificates(data / "tls", (name for name in names if name))
    return files


# The context


def first_users_undone(security: Security) -> ExitStack:
    """What removes the users that this start has made, unless `ExitStack.pop_all` is called.

    A start that fails before `remember_admin` has shown no secret and saved no context. The next
    one must begin like the first.
    """
    undo = ExitStack()
    if security.admin is not None and security.auth is not None:
        undo.callback(security.auth.user_file.unlink, missing_ok=True)
    return undo


def remember_admin(security: Security, namesrv: str) -> None:
    """Save how to reach these servers, and show a secret that was made just now."""
    admin = security.admin
    if admin is None:
        return
    known = context_file.load()
    context = Context(
        namesrv=namesrv,
        access_key=admin.name,
        secret_key=admin.secret,
        tls=True if security.tls is not None else None,
        tls_ca=None if security.authority is None else str(security.authority.absolute()),
    )
    is_first = LOCAL_CONTEXT not in known.named
    where = context_file.save(
        Contexts({**known.named, LOCAL_CONTEXT: context}, known.current or LOCAL_CONTEXT)
    )
    lines = [
        f"User {admin.name} was made; it is saved as the context {LOCAL_CONTEXT!r} in {where}"
        + ("." if is_first else ", in place of the one before.")
    ]
    if admin.is_generated:
        lines.append(f"Its secret is shown only now: {admin.secret}")
    print("\n".join(lines), file=sys.stderr)  # noqa: T201 - the command line
