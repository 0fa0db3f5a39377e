"""The guard: lets a request pass to its handler, or refuses it.

The order is fixed: the user, the signature over the raw bytes, then what the request needs, then
the handler. Rights are those of the user that this very request is signed by. A request without a
valid signature learns nothing: an unknown user, a disabled one and a wrong secret get the same
answer, after the same work.

`wrap` guards the handlers of a server. The fast path of sends reads `senders`, which has only what
is certain: it leaves every refusal, with its reason, to the plain path.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeAlias

from penstock.auth.answer_filters import ROW_FILTERS, filter_rows
from penstock.auth.audit import AuditLine, AuditSink, NoAudit
from penstock.auth.evaluate import Verdict, decide
from penstock.auth.failed_lines import FailedLines
from penstock.auth.failed_tries import FailedTries
from penstock.auth.freshness import Freshness
from penstock.auth.model import Action, Decision, ResourceType, User, parse_address
from penstock.auth.need_tables import ADMINISTRATIVE
from penstock.auth.needs import PUB, Ask, Facts, Need, Rule, no_message_at, topic_need
from penstock.auth.peer_user import set_user, user_of
from penstock.auth.request_rules import FREE
from penstock.auth.unknown_peers import UnknownPeers
from penstock.auth.user_rates import UserRates
from penstock.auth.user_source import UserSource
from penstock.auth.users import Users
from penstock.errors import NoPermission, PenstockError, SystemBusy, TopicNotFound
from penstock.model.names import RETRY_PREFIX
from penstock.protocol import acl
from penstock.protocol.acl import Verifier
from penstock.protocol.codes import RequestCode, request_name
from penstock.protocol.commands import Body, Command
from penstock.remoting.peer import Handler, Peer
from penstock.remoting.promise import Promise, error_answer
from penstock.runtime.clock import Clock

log = logging.getLogger(__name__)

_MAX_CACHED_VERDICTS: Final = 4096
_MAX_FAILURES_OF_CONNECTION: Final = 100
_FAILURES: Final = "auth_failures"
_SHOWN_CHARACTERS: Final = 64
"""Of the name of a user that is not proven: in the log, the audit file and in what is counted."""
_WRONG_SIGNATURE: Final = "check signature failed."
_CLUSTER_GET: Final = frozenset({Action.GET})
_CREATE: Final = frozenset({Action.CREATE})
"""What is needed for a topic or group that does not exist yet."""
_BROKERS_ASK: Final = frozenset({RequestCode.REGISTER_BROKER, RequestCode.QUERY_DATA_VERSION})
_UNSIGNED_BROKER: Final = (
    " (a broker without a user: Apache's from 5.3 on sign with "
    "innerClientAuthenticationCredentials, older ones cannot)"
)


_SENDS: Final = frozenset({RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})

Senders: TypeAlias = Mapping[tuple[Peer, str, str], tuple[Verifier, ...]]
"""By connection, user and topic: the secrets that a send may be signed with."""


class Guard:
    """Checks the requests of one server."""

    def __init__(
        self,
        source: UserSource,
        rules: Mapping[int, Rule],
        *,
        server: str,
        clock: Clock,
        audit: AuditSink | None = None,
        audit_all: bool = False,
        served_without_user: Collection[int] = (),
        served_without_right: Collection[int] = (),
        checks_rights: bool = True,
        freshness: Freshness | None = None,
        unknown_peers: UnknownPeers | None = None,
    ) -> None:
        self.source = source
        self._rules = rules
        self._server = server
        self._now_ms = clock.time_ms
        self._monotonic = clock.monotonic
        self._audit = audit or NoAudit()
        self._audit_all = audit_all
        self._without_user = frozenset(served_without_user)
        self._without_right = frozenset(served_without_right)
        self._checks_rights = checks_rights
        self._freshness = freshness
        self._unknown_peers = unknown_peers
        self._facts: Facts | None = None
        self._served_codes: frozenset[int] = frozenset()
        self._failed_tries = FailedTries()
        self._failed_lines = FailedLines(self._audit.add, clock)
        self._rates = UserRates(clock.monotonic)
        self._verdicts: dict[tuple[str, Need, str | None], Verdict] = {}
        self._senders: dict[tuple[Peer, str, str], tuple[Verifier, ...]] = {}
        self._judged = Users()
        """The users that the remembered verdicts are about."""
        self._connections: dict[str, set[Peer]] = {}
        source.on_change(self._users_changed)

    def serve_codes(self, codes: Collection[int]) -> None:
        """The codes that the server serves; those without a row need a super user."""
        self._served_codes = frozenset(codes)

    def use_facts(self, facts: Facts) -> None:
        """What the server knows of topics, groups and records; until then only FREE rows pass."""
        self._facts = facts

    # Wrapping

    @property
    def senders(self) -> Senders:
        """Who may send what over which connection; what is allowed no longer is not in it."""
        return self._senders

    def wrap(self, handler: Handler) -> Handler:
        """A handler that serves only what is allowed."""

        def serve(peer: Peer, command: Command) -> Command | Promise | bytes | None:
            if command.code in self._without_user and self._needs_nothing(command):
                self._know(peer)
                return handler(peer, command)
            user = self.admit(peer, command)
            answer = handler(peer, command)
            self._remember_sender(peer, user, command)
            if user.is_super or not self._checks_rights:
                return answer
            if isinstance(answer, Promise):
                answer.check = lambda ready: self._recheck(peer, command, ready)
                return answer
            if command.code in ROW_FILTERS:
                return self._filtered(user, peer, command.code, answer)
            return answer

        return serve

    def _remember_sender(self, peer: Peer, user: User, command: Command) -> None:
        """Let the fast path serve further sends like this one, which was allowed."""
        topic = (command.ext or {}).get("b")
        if (
            command.code not in _SENDS
            or topic is None
            or topic.startswith(RETRY_PREFIX)
            or self._audit_all
            or user.limits.has_rates
        ):
            return
        if len(self._senders) >= _MAX_CACHED_VERDICTS:
            self._senders.clear()
        self._senders[peer, user.name, topic] = self.source.lasting_verifiers(user)

    def _needs_nothing(self, command: Command) -> bool:
        """Whether a request that is served without a user needs no right, either."""
        code = command.code
        return code in self._without_right or self._rules.get(code) is FREE

    def connected(self, peer: Peer) -> None:
        """A connection was opened; its user is not known yet."""
        if self._unknown_peers is not None:
            self._unknown_peers.add(peer)

    def _know(self, peer: Peer) -> None:
        if self._unknown_peers is not None:
            self._unknown_peers.remove(peer)

    def forget(self, peer: Peer) -> None:
        """A connection has ended."""
        self._know(peer)
        for peers in self._connections.values():
            peers.discard(peer)
        for key in [key for key in self._senders if key[0] is peer]:
            del self._senders[key]

    def close(self) -> None:
        """The server has stopped."""
        self._failed_lines.close()

    # Checking

    def admit(self, peer: Peer, command: Command) -> User:
        """The user that may send this request; raises `NoPermission`, or that nothing is there."""
        ext = command.ext or {}
        user = self._authenticate(peer, command.code, ext, command.body)
        self._join(peer, user, command.code)
        judged: list[tuple[Need, Verdict]] = []
        try:
            self._rates.check_request(user, _size(command.body))
            is_judged = not user.is_super and self._checks_rights
            if is_judged:
                self._authorise(user, peer, command, judged)
            # After the rights: a user without them must not fill what is remembered for all.
            if self._freshness is not None and command.code in ADMINISTRATIVE:
                self._freshness.check(command.code, ext, self._now_ms())
            if is_judged:
                self._rates.check_creations(user, sum(n.actions == _CREATE for n, _ in judged))
        except (NoPermission, TopicNotFound, SystemBusy) as error:
            self._audit.add(self._line(peer, user.name, command.code, judged, error=error))
            hidden_at = judged[-1][0].hidden_at if judged else None
            if hidden_at is not None and isinstance(error, NoPermission):
                raise no_message_at(hidden_at) from error
            raise
        if self._audit_all or _is_change(command.code):
            self._audit.add(self._line(peer, user.name, command.code, judged))
        return user

    def _authenticate(self, peer: Peer, code: int, ext: Mapping[str, str], body: Body) -> User:
        name = ext.get(acl.ACCESS_KEY) or ""
        shown = name[:_SHOWN_CHARACTERS]
        address = _address_text(peer)
        # Not the wall clock: one that is set back would refuse for hours.
        now = round(self._monotonic() * 1000)
        # Others at the same address may try secrets; a connection that has proven its user does
        # not wait for them.
        may_try = user_of(peer) == name or not self._failed_tries.must_wait(address, shown, now)
        if name and may_try:
            user = self.source.users.get(name)
            is_signed = self._is_signed(user, ext, body)
            if user is not None and user.is_enabled and is_signed:
                if peer.data.get(_FAILURES):
                    peer.data[_FAILURES] = 0
                    self._failed_tries.succeeded(address, shown)
                return user
        self._failed(peer, code, shown, address, now)
        raise NoPermission(_WRONG_SIGNATURE if name else "username cannot be null.")

    def _is_signed(self, user: User | None, ext: Mapping[str, str], body: Body) -> bool:
        # Of an unknown user the signature is computed, too, so that the time tells nothing.
        now = self._now_ms()
        verifiers = self.source.verifiers(user, now)
        fitting = [verifier for verifier in verifiers if verifier.verify(ext, body)]
        if user is None or not fitting:
            return False
        self.source.note_use(user, fitting[0], now)
        return True

    def _failed(self, peer: Peer, code: int, name: str, address: str, now: int) -> None:
        if self._failed_tries.failed(address, name, now):
            log.warning(
                "request refused, the signature is wrong or the user unknown "
                "user=%r remote=%s code=%d%s",
                name,
                peer.remote,
                code,
                "" if name or code not in _BROKERS_ASK else _UNSIGNED_BROKER,
            )
        line = self._line(peer, name, code, (), error=NoPermission(_WRONG_SIGNATURE))
        self._failed_lines.add(address, name, line)
        count = peer.data.get(_FAILURES)
        count = (count if isinstance(count, int) else 0) + 1
        peer.data[_FAILURES] = count
        if count >= _MAX_FAILURES_OF_CONNECTION:
            peer.close("too many requests with a wrong signature")

    def _authorise(
        self, user: User, peer: Peer, command: Command, judged: list[tuple[Need, Verdict]]
    ) -> None:
        """Raise if a need is not met; ``judged`` gets all up to it."""
        if command.code in self._without_right:
            return
        rule = self._rules.get(command.code)
        if rule is None:
            # Codes that are not served at all are answered as such, by the dispatcher.
            if command.code in self._served_codes:
                raise NoPermission(f"User:{user.name} is no super user", hint="use one that is")
            return
        body = command.body
        if self._facts is None:
            raise NoPermission("the server is starting", hint="try again in a second")
        raw = body if isinstance(body, bytes) else b"".join(body)  # type: ignore[arg-type]  # received
        for need in rule(Ask(command.ext or {}, raw, self._facts)):
            verdict = self._verdict(user, need, peer)
            judged.append((need, verdict))
            if not verdict.is_allowed:
                refusal = TopicNotFound if need.creates else NoPermission
                raise refusal(
                    f"User:{user.name} has no permission to access {need.type}:{need.name} "
                    f"from {_address_text(peer)}, {verdict.reason}.",
                    expected=str(need),
                    hint=_grant(user, need),
                )

    def _verdict(self, user: User, need: Need, peer: Peer) -> Verdict:
        """The decision, remembered until the users change."""
        address = _address_text(peer) if any(entry.sources for entry in user.entries) else None
        self._refresh()
        if need.hidden_at is not None:
            need = need._replace(hidden_at=None)
        key = (user.name, need, address)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = _decide(user, need, address)
            if len(self._verdicts) >= _MAX_CACHED_VERDICTS:
                self._verdicts.clear()
            self._verdicts[key] = verdict
        return verdict

    def _refresh(self) -> None:
        if self.source.users is not self._judged:
            self._judged = self.source.users
            self._verdicts.clear()
            self._senders.clear()

    # Answers

    def _recheck(self, peer: Peer, command: Command, answer: Command) -> Command:
        """The answer to a request that waited, if its user may still have it."""
        ext = command.ext or {}
        user = self.source.users.get(ext.get(acl.ACCESS_KEY, ""))
        try:
            if user is None or not user.is_enabled:
                raise NoPermission(_WRONG_SIGNATURE)
            if user.is_super:
                return answer
            self._authorise(user, peer, command, [])
            if command.code in ROW_FILTERS:
                return self._filtered(user, peer, command.code, answer)
        except PenstockError as error:
            return error_answer(error)
        return answer

    def _filtered(
        self, user: User, peer: Peer, code: int, answer: Command | bytes | None
    ) -> Command:
        """The rows of a list that the user may see."""
        rows = ROW_FILTERS[code]
        # A frame that is ready to go cannot be filtered, so such a handler would be a mistake.
        assert isinstance(answer, Command), f"{request_name(code)} is filtered by row"
        assert self._facts is not None, "known since the request was allowed"
        everything = Need(ResourceType.CLUSTER, self._facts.cluster, _CLUSTER_GET)
        if self._verdict(user, everything, peer).is_allowed:
            return answer

        def may_see(type_: ResourceType, name: str) -> bool:
            return any(
                self._verdict(user, Need(type_, name, frozenset({action})), peer).is_allowed
                for action in Action
                if action is not Action.ALL
            )

        return filter_rows(rows, answer, may_see)

    def may_publish(self, peer: Peer, topic: str) -> bool:
        """Whether the user of a connection may be sent a message that is to be published.

        A producer is asked about its transactions with the message itself. It says which group it
        belongs to, and that needs no right: the one on the topic decides.
        """
        user = self.source.users.get(user_of(peer) or "")
        if user is None or not user.is_enabled:
            return False
        if user.is_super or not self._checks_rights:
            return True
        return self._verdict(user, topic_need(topic, PUB), peer).is_allowed

    # Connections

    def _join(self, peer: Peer, user: User, code: int) -> None:
        """Tie the connection to the user, if it is not; a limit of connections may refuse it."""
        if user_of(peer) == user.name:
            return
        peers = self._connections.setdefault(user.name, set())
        most = user.limits.connections
        if most is not None and len(peers - {peer}) >= most:
            peer.close(f"user {user.name} has {most} connections already")
            raise NoPermission(
                f"User:{user.name} has too many connections", expected=f"at most {most}"
            )
        self._know(peer)
        peers.add(peer)
        set_user(peer, user.name)
        reason = "first request of the connection"
        self._audit.add(self._line(peer, user.name, code, (), reason=reason))

    def _users_changed(self) -> None:
        """Close the connections of users that are disabled or gone."""
        self._refresh()
        for name, peers in self._connections.items():
            user = self.source.users.get(name)
            if user is None or not user.is_enabled:
                for peer in list(peers):
                    peer.close("its user is disabled")

    # Audit

    def _line(
        self,
        peer: Peer,
        user: str,
        code: int,
        judged: Sequence[tuple[Need, Verdict]],
        *,
        error: Exception | None = None,
        reason: str | None = None,
    ) -> AuditLine:
        return AuditLine(
            self._now_ms(),
            self._server,
            user,
            peer.remote,
            peer.is_tls,
            code,
            request_name(code),
            tuple(f"{need.type}:{need.name}" for need, _ in judged),
            error is None,
            # The last one: it refused, or it was the last to allow.
            entry=_entry_text(judged[-1][1]) if judged else None,
            reason=str(error) if error is not None else reason,
        )


_CHANGE_NAMES: Final = ("UPDATE_", "DELETE_", "AUTH_", "CLEAN_", "CLONE_", "RESET_", "SET_", "PUT_")
_OTHER_CHANGES: Final = frozenset(
    {
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
    }
)
_FREQUENT: Final = frozenset({RequestCode.UPDATE_CONSUMER_OFFSET})


def _is_change(code: int) -> bool:
    return code not in _FREQUENT and (
        request_name(code).startswith(_CHANGE_NAMES) or code in _OTHER_CHANGES
    )


def _grant(user: User, need: Need) -> str:
    """The command that gives what is missing.

    It replaces the rights on the same name, so it repeats those that the user has.
    """
    resource = f"{need.type}:{need.name}"
    actions = {next(action for action in Action if action in need.actions)}
    if need.creates:
        actions.add(Action.PUB)  # A sender needs both.
    for entry in user.entries:
        is_plain = entry.decision is Decision.ALLOW and not entry.sources
        if is_plain and str(entry.resource) == resource:
            actions |= entry.actions
    words = " ".join(f"--action {action}" for action in Action if action in actions)
    return f"penstock acl grant {user.name} --resource '{resource}' {words}"


def _decide(user: User, need: Need, address: str | None) -> Verdict:
    where = None if address is None else parse_address(address)
    verdict = decide(user.entries, need.type, need.name, need.actions, where)
    # The other way is for users of whom no entry speaks; a denial is one that does.
    if verdict.is_allowed or verdict.entry is not None or need.otherwise is None:
        return verdict
    other = _decide(user, need.otherwise, address)
    return other if other.is_allowed else verdict


def _entry_text(verdict: Verdict) -> str | None:
    return None if verdict.entry is None else str(verdict.entry)


def _size(body: Body) -> int:
    if isinstance(body, bytes | bytearray | memoryview):
        return len(body)
    return sum(len(memoryview(part)) for part in body)


def _address_text(peer: Peer) -> str:
    return peer.remote.rpartition(":")[0].strip("[]")
