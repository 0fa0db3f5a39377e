"""Users and their rights over the wire, as mqadmin of 5.3 and later manages them.

The guard has checked that the caller may update or read the cluster. The rules here are about
users themselves: only a super user changes super users, and no user changes its own rights.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

import orjson

from penstock.auth.model import (
    Entry,
    Policy,
    Resource,
    User,
    UserStatus,
    UserType,
    check_user_name,
    parse_word,
)
from penstock.auth.user_file import SUBJECT_PREFIX, is_reference
from penstock.auth.user_source import UserSource
from penstock.auth.users import Users, new_secret, new_user
from penstock.broker.state import BrokerState
from penstock.errors import (
    InvalidArgument,
    NoPermission,
    PenstockError,
    ProtocolError,
    RequestCodeNotSupported,
)
from penstock.protocol.acl import access_key
from penstock.protocol.bodies.auth import (
    AclEntry,
    AclInfo,
    AclList,
    AclPolicy,
    UserInfo,
    UserList,
)
from penstock.protocol.bodies.codec import decode_body
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.auth import AclSubject, DeleteAcl, ListAcls, ListUsers, UserName
from penstock.remoting.dispatch import MAX_JSON_BYTES, Call, Reply, handles
from penstock.remoting.promise import Promise

_REFERENCE: Final = re.compile(r"\$\.policies\[(\d{1,4})\]\.entries\[(\d{1,4})\]\.(\w{1,32})")


# Users


@handles(RequestCode.AUTH_CREATE_USER)
def create_user(broker: BrokerState, ask: UserName, call: Call) -> Promise:
    """Add a user without rights."""
    name, body = check_user_name(ask.username), call.json(UserInfo)
    if not (body.password or "").strip():
        raise NoPermission("The password can not be blank")
    _check_password(body.password)
    type_ = parse_word(UserType, body.user_type or UserType.NORMAL)
    if type_ is UserType.SUPER and not _caller(broker, call).is_super:
        raise PenstockError("The super user can only be create by super user")
    user = new_user(name, broker.clock.time_ms(), value=body.password, type_=type_)
    if body.user_status:
        user = _with_status(user, body.user_status)
    return _change(broker, lambda users: users.created(user))


@handles(RequestCode.AUTH_UPDATE_USER)
def update_user(broker: BrokerState, ask: UserName, call: Call) -> Promise:
    """Change the password, type or status of a user; what is left out stays."""
    body, caller = call.json(UserInfo), _caller(broker, call)
    _check_password(body.password)
    now = broker.clock.time_ms()

    def change(users: Users) -> Users:
        user = users.require(ask.username)
        _check_power(caller, user)
        if body.user_type:
            type_ = parse_word(UserType, body.user_type)
            if type_ is UserType.SUPER and not caller.is_super:
                raise NoPermission("The super user can only be update by super user")
            user = replace(user, type=type_)
        if body.user_status:
            user = _with_status(user, body.user_status)
        if body.password is not None:
            user = replace(user, secrets=(new_secret(now, body.password),))
        return users.with_user(user)

    return _change(broker, change)


@handles(RequestCode.AUTH_DELETE_USER)
def delete_user(broker: BrokerState, ask: UserName, call: Call) -> Promise:
    """Remove a user with its rights; an unknown one is no error."""
    caller = _caller(broker, call)

    def change(users: Users) -> Users:
        user = users.get(ask.username)
        if user is None:
            return users
        _check_power(caller, user)
        return users.without_user(user.name)

    return _change(broker, change)


@handles(RequestCode.AUTH_GET_USER)
def get_user(broker: BrokerState, ask: UserName) -> Reply:
    """One user, without its secret; an unknown one gives no body."""
    user = _source(broker).users.get(ask.username)
    return Reply() if user is None else Reply(body=_user_info(user))


@handles(RequestCode.AUTH_LIST_USER)
def list_users(broker: BrokerState, ask: ListUsers) -> Reply:
    """Every user whose name contains the filter, without secrets."""
    users = sorted(_source(broker).users.by_name.values(), key=lambda user: user.name)
    found = [_user_info(user) for user in users if (ask.filter or "") in user.name]
    return Reply(body=UserList(tuple(found))) if found else Reply()


# Rights


@handles(RequestCode.AUTH_CREATE_ACL)
def create_acl(broker: BrokerState, ask: AclSubject, call: Call) -> Promise:
    """Give rights: entries of the same resource are replaced, others stay."""
    return _put_acl(broker, ask, call)


@handles(RequestCode.AUTH_UPDATE_ACL)
def update_acl(broker: BrokerState, ask: AclSubject, call: Call) -> Promise:
    """The same as giving rights."""
    return _put_acl(broker, ask, call)


def _put_acl(broker: BrokerState, ask: AclSubject, call: Call) -> Promise:
    body, caller = _acl_body(call), _caller(broker, call)
    if body.subject is not None and body.subject != ask.subject:
        raise InvalidArgument(
            f"subject {ask.subject[:64]!r} in the header, {body.subject[:64]!r} in the body",
            expected="the same",
        )
    name = _subject(ask.subject)
    entries = [
        Entry.parse(
            entry.resource or "",
            entry.actions,
            entry.decision or "",
            entry.source_ips,
            policy.policy_type or Policy.CUSTOM,
        )
        for policy in body.policies
        for entry in policy.entries
    ]
    if not entries:
        raise InvalidArgument(f"no rights for {ask.subject[:64]}", expected="at least one entry")

    def change(users: Users) -> Users:
        _check_rights_power(caller, users.get(name), ask.subject)
        return users.with_entries(name, entries)

    return _change(broker, change)


@handles(RequestCode.AUTH_DELETE_ACL)
def delete_acl(broker: BrokerState, ask: DeleteAcl, call: Call) -> Promise:
    """Take away all rights of a user, or those on one resource."""
    caller, name = _caller(broker, call), _subject(ask.subject)
    # A mistyped resource must not mean "all".
    resource = None if ask.resource is None else Resource.parse(ask.resource)
    policy = None if ask.policy_type is None else parse_word(Policy, ask.policy_type)

    def change(users: Users) -> Users:
        _check_rights_power(caller, users.get(name), ask.subject)
        return users.without_entries(name, resource, policy)

    return _change(broker, change)


@handles(RequestCode.AUTH_GET_ACL)
def get_acl(broker: BrokerState, ask: AclSubject) -> Reply:
    """The rights of one user; none gives no body."""
    name = _subject(ask.subject)
    user = _source(broker).users.get(name)
    if user is None:
        raise NoPermission(f"The subject of {ask.subject[:64]} is not exist.")
    return Reply(body=_acl_info(user, user.entries)) if user.entries else Reply()


@handles(RequestCode.AUTH_LIST_ACL)
def list_acls(broker: BrokerState, ask: ListAcls) -> Reply:
    """The rights of all users whose subject and resources contain the filters."""
    found = []
    for user in sorted(_source(broker).users.by_name.values(), key=lambda user: user.name):
        entries = [e for e in user.entries if (ask.resource_filter or "") in str(e.resource)]
        if entries and (ask.subject_filter or "") in SUBJECT_PREFIX + user.name:
            found.append(_acl_info(user, entries))
    return Reply(body=AclList(tuple(found))) if found else Reply()


# Rules about users


def _source(broker: BrokerState) -> UserSource:
    if broker.users is None:
        raise RequestCodeNotSupported(
            "this broker has no users: authentication is off", hint="start it with --auth"
        )
    return broker.users


def _check_password(password: str | None) -> None:
    """Refuse a reference: a request must not choose a file or a variable of this machine."""
    if password is not None and is_reference(password):
        raise InvalidArgument(
            "a password that refers to a variable or a file of the server",
            expected="the password itself, not env: or file:",
            hint="edit the user file on the server's machine",
        )


def _caller(broker: BrokerState, call: Call) -> User:
    """The user that signed the request, as the guard has verified."""
    return _source(broker).users.require(access_key(call.command.ext) or "")


def _check_power(caller: User, user: User) -> None:
    if user.is_super and not caller.is_super:
        raise NoPermission("The super user can only be update by super user")


def _check_rights_power(caller: User, user: User | None, subject: str) -> None:
    if user is None:
        raise NoPermission(f"The subject of {subject[:64]} is not exist.")
    _check_power(caller, user)
    if user.name == caller.name and not caller.is_super:
        raise NoPermission(
            f"User:{caller.name} may not change its own rights", hint="ask a super user"
        )


def _subject(text: str) -> str:
    if not text.startswith(SUBJECT_PREFIX):
        raise InvalidArgument(f"subject {text[:64]!r}", expected="User:NAME")
    return check_user_name(text.removeprefix(SUBJECT_PREFIX))


def _change(broker: BrokerState, change: Callable[[Users], Users]) -> Promise:
    """Change the user file off the loop; the answer follows when it is on the disk."""
    source, promise = _source(broker), Promise()

    async def work() -> None:
        try:
            await source.change(change)
        except PenstockError as error:
            promise.fail(error)
        except OSError as error:
            promise.fail(PenstockError(f"users not saved: {error.strerror or error}"))
        else:
            promise.resolve(Command(0))

    task = asyncio.get_running_loop().create_task(work(), name="change users")
    broker.background.add(task)
    task.add_done_callback(broker.background.discard)
    return promise


# Bodies


def _with_status(user: User, status: str) -> User:
    return replace(user, status=parse_word(UserStatus, status))


def _user_info(user: User) -> UserInfo:
    return UserInfo(user.name, None, user.type.value, user.status.value)


def _acl_info(user: User, entries: Iterable[Entry]) -> AclInfo:
    shown = [
        (
            entry.policy,
            AclEntry(
                str(entry.resource),
                tuple(sorted(entry.actions)),
                tuple(map(str, entry.sources)),
                entry.decision.value,
            ),
        )
        for entry in entries
    ]
    return AclInfo(
        SUBJECT_PREFIX + user.name,
        tuple(
            AclPolicy(policy.value, tuple(entry for kind, entry in shown if kind is policy))
            for policy in Policy
            if any(kind is policy for kind, _ in shown)
        ),
    )


def _acl_body(call: Call) -> AclInfo:
    """The body; clients of 5.3 replace a list that occurs twice by a reference to the first."""
    if b'"$ref"' not in call.body or len(call.body) > MAX_JSON_BYTES:
        return call.json(AclInfo)
    try:
        document = orjson.loads(call.body)
        for policy in document["policies"]:
            for entry in policy["entries"]:
                for member, value in entry.items():
                    if isinstance(value, dict):
                        entry[member] = _referred(document, str(value["$ref"]))
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise ProtocolError(f"a reference in the body cannot be followed: {error}") from error
    return decode_body(AclInfo, orjson.dumps(document))


def _referred(document: Any, reference: str) -> list[str]:
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        raise ValueError(reference[:64])
    value = document["policies"][int(found[1])]["entries"][int(found[2])][found[3]]
    if not isinstance(value, list):
        raise TypeError(reference[:64])
    return value
