"""The cluster a command is for: from options, a context, the environment, else this machine.

A command that needs a cluster is decorated with `on_cluster` and gets a `Target`. The options that
choose the cluster are the same for all commands and are declared here:

    @app.command("list")
    @on_cluster
    @json_flag
    def list_things(target: Target, as_json: bool) -> None:
        with target.admin() as admin:
            ...
        with penstock.Producer("tools", **target.access.as_keywords()) as producer:
            ...

The first of these wins: ``--namesrv``, ``--context``, ``NAMESRV_ADDR``, the context in use,
``127.0.0.1:9876``. A context supplies its address together with its keys. An address from
``--namesrv`` or ``NAMESRV_ADDR`` disables the context in use completely, so that the keys of one
cluster are never sent to another. ``PENSTOCK_ACCESS_KEY`` names another user for the context in
use, but not for one that ``--context`` asks for.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from penstock.cli import context_file
from penstock.cli.commands import PATH, F, option
from penstock.cli.context_file import Context
from penstock.cli.secret_files import read_secret
from penstock.errors import InvalidArgument, PenstockError, RemotingError

if TYPE_CHECKING:
    from penstock import Admin
    from penstock.client.cluster_access import ClusterAccess

_P = ParamSpec("_P")

DEFAULT_NAMESRV = "127.0.0.1:9876"


WHICH_CLUSTER = "Which cluster"

access_key_option = option(
    "--access-key",
    metavar="KEY",
    help="Your access key; also PENSTOCK_ACCESS_KEY.",
    section=WHICH_CLUSTER,
)
secret_key_option = option(
    "--secret-key-file",
    type=PATH,
    metavar="FILE",
    help="File with its secret, - for stdin; also PENSTOCK_SECRET_KEY, which is the secret.",
    section=WHICH_CLUSTER,
)
security_token_option = option(
    "--security-token",
    metavar="TOKEN",
    help="For temporary keys; also PENSTOCK_SECURITY_TOKEN.",
    section=WHICH_CLUSTER,
)
tls_option = option(
    "--tls/--no-tls", default=None, help="Use TLS; also PENSTOCK_TLS.", section=WHICH_CLUSTER
)
tls_ca_option = option(
    "--tls-ca",
    type=PATH,
    metavar="FILE",
    help="Certificates to trust; implies --tls.",
    section=WHICH_CLUSTER,
)
namespace_option = option(
    "--namespace",
    metavar="NAME",
    help="Prefix of topics and groups; also PENSTOCK_NAMESPACE.",
    section=WHICH_CLUSTER,
)
_ACCESS_OPTIONS = (
    access_key_option,
    secret_key_option,
    security_token_option,
    tls_option,
    tls_ca_option,
    namespace_option,
)
_NAMES = (
    "namesrv",
    "context",
    "access_key",
    "secret_key_file",
    "security_token",
    "tls",
    "tls_ca",
    "namespace",
)


def access_options(command: F) -> F:
    """Add the options for keys, TLS and the namespace to a command."""
    for added in reversed(_ACCESS_OPTIONS):
        command = added(command)
    return command


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The cluster a command is for."""

    context: Context
    origin: str | None = None
    """The source of the address, unless it was typed with the command."""

    @classmethod
    def from_options(
        cls,
        *,
        namesrv: str | None = None,
        context: str | None = None,
        tls_ca: Path | None = None,
        secret_key_file: Path | None = None,
        **access: Any,
    ) -> Target:
        """Choose the cluster; an option that is None was not given."""
        # The error that ends the command reports what clients log on the way.
        logging.getLogger("penstock").addHandler(logging.NullHandler())
        if namesrv is not None and namesrv.isdecimal():
            raise InvalidArgument(
                f"-n {namesrv}: -n is short for --namesrv",
                expected="HOST:PORT",
                hint=f"to limit the output, --last {namesrv} or --limit {namesrv}",
            )
        address, origin = namesrv, None
        if not address and not context and (address := os.environ.get("NAMESRV_ADDR")):
            origin = "NAMESRV_ADDR"
        base = Context(namesrv=address or DEFAULT_NAMESRV)
        if context is not None or not address:
            known = context_file.load()
            name = context or known.current
            if name is not None:
                base = known.get(name)
                origin = f"context {name}"
            if context is None and os.environ.get("PENSTOCK_ACCESS_KEY"):
                # The user that the environment names; only a context that is asked for wins.
                base = dataclasses.replace(
                    base, access_key=None, secret_key=None, security_token=None
                )
        given: dict[str, Any] = {
            **access,
            "namesrv": address or None,
            "tls_ca": None if tls_ca is None else str(tls_ca),
        }
        if secret_key_file is not None:
            given["secret_key"] = read_secret(secret_key_file, "--secret-key-file")
        changed = {field: value for field, value in given.items() if value is not None}
        return cls(context=dataclasses.replace(base, **changed), origin=origin)

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> Target:
        """Choose the cluster from all parameters of a command."""
        return cls.from_options(**{name: parameters.get(name) for name in _NAMES})

    @property
    def namesrv(self) -> str:
        """The addresses of the name servers, ``host:port;host:port``."""
        return self.context.namesrv

    @property
    def access(self) -> ClusterAccess:
        """How clients reach the cluster; the environment supplies what is not set here."""
        from penstock.client.cluster_access import ClusterAccess
        from penstock.remoting.tls import Tls

        saved = self.context
        tls: Tls | bool | None = saved.tls
        if saved.tls_ca is not None and saved.tls is not False:
            tls = Tls(ca_file=Path(saved.tls_ca))
        return ClusterAccess.of(
            saved.namesrv,
            access_key=saved.access_key,
            secret_key=saved.secret_key,
            security_token=saved.security_token,
            tls=tls,
            namespace=saved.namespace,
        )

    def is_cause_of(self, error: PenstockError) -> bool:
        """Whether an error is about the connection to the cluster."""
        return isinstance(error, RemotingError) or any(
            repr(address) in error.what for address in (self.namesrv, *self.namesrv.split(";"))
        )

    def admin(self, *, timeout: float = 5) -> Admin:
        """An administrator of the cluster, for a ``with`` block."""
        from penstock import Admin

        return Admin(timeout=timeout, **self.access.as_keywords())


def on_cluster(
    command: Callable[Concatenate[Target, _P], None], *, default: str = DEFAULT_NAMESRV
) -> Callable[..., None]:
    """Add the options that choose a cluster to a command; its first argument is the `Target`.

    ``default`` is the cluster that the help names as the default.
    """

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        target = Target.from_parameters({name: kwargs.pop(name, None) for name in _NAMES})
        try:
            command(target, *args, **kwargs)
        except (RemotingError, InvalidArgument) as error:
            if target.origin is not None and target.is_cause_of(error):
                # The address was not typed with this command, so say where it came from.
                error.what = f"{target.origin}: {error.what}"
            raise

    namesrv = option(
        "--namesrv",
        "-n",
        metavar="HOST:PORT",
        help="Name servers, host:port;host:port; also NAMESRV_ADDR.",
        show_default=default,
        section=WHICH_CLUSTER,
    )
    context = option(
        "--context",
        metavar="NAME",
        help="A cluster saved with `penstock context add`.",
        shell_complete=context_file.complete_names,
        section=WHICH_CLUSTER,
    )
    return namesrv(context(access_options(run)))
