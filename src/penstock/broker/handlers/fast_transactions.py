"""The fast path of transactions: halves as property text, decisions about halves just stored.

A usual half differs from what its producer sent in three properties at its end, so the text is not
parsed. What a commit will store is known then, too: the same text without the last two. It is kept
for the latest halves (`RecentHalves`), and a usual decision, which follows within milliseconds,
neither reads the log nor parses anything. The plain paths (`send._store_half`,
`transactions.end_transaction`) are the specification and serve all other requests.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, NamedTuple

import msgspec

from penstock.broker.handlers.known_texts import CutText, KnownTexts, cut_id
from penstock.broker.handlers.property_text import enclose, is_regular, value_behind
from penstock.broker.send_rules import RULES
from penstock.broker.state import BrokerState
from penstock.broker.transactions.open_transactions import OpenTransaction
from penstock.errors import PenstockError
from penstock.model.names import HALF_TOPIC, Property
from penstock.model.properties import END_MARK, MAX_PROPERTIES_BYTES, VALUE_MARK
from penstock.protocol.commands import ONEWAY, RESPONSE, Command, encode_command
from penstock.protocol.half_messages import HALF_QUEUE, TransactionKey
from penstock.protocol.headers.transactions import TransactionDecision
from penstock.protocol.records.sys_flags import SysFlag
from penstock.remoting import Peer
from penstock.store import Appended, DraftFields

_new_tuple: Final = tuple.__new__
_HALF_MARK: Final = Property.TRANSACTION_PREPARED + VALUE_MARK
_GROUP_MARK: Final = Property.PRODUCER_GROUP + VALUE_MARK
_SPECIAL_KEYS: Final = (
    Property.PRODUCER_GROUP,
    Property.TRANSACTION_ID,
    Property.REAL_TOPIC,
    Property.REAL_QUEUE_ID,
    Property.TRANSACTION_CHECK_TIMES,
    Property.TRANSACTION_FIRST_OFFSET,
    Property.CHECK_IMMUNITY_SECONDS,
)
_MARKS: Final = (*(rule.mark for rule in RULES), *(key + VALUE_MARK for key in _SPECIAL_KEYS))
_find_marks: Final = re.compile(f"{END_MARK}({'|'.join(map(re.escape, _MARKS))})").findall
_USUAL_MARKS: Final = ([_HALF_MARK, _GROUP_MARK], [_GROUP_MARK, _HALF_MARK])
_DECISIONS: Final = {
    str(TransactionDecision.COMMIT): TransactionDecision.COMMIT,
    str(TransactionDecision.ROLLBACK): TransactionDecision.ROLLBACK,
}


class _HalfText(NamedTuple):
    """What is known of the property text of halves."""

    before: str
    """What is stored before the id."""
    behind: str
    """What is stored behind it, up to the second place of the id."""
    group: str


class HalfSend(NamedTuple):
    """A message of a transaction as it is stored."""

    properties: str
    visible: int
    """How many characters of them a commit shows."""
    key: TransactionKey


class _End(
    msgspec.Struct,
    gc=False,
    rename={
        "group": "producerGroup",
        "offset": "tranStateTableOffset",
        "position": "commitLogOffset",
        "decision": "commitOrRollback",
        "message_id": "msgId",
        "is_from_check": "fromTransactionCheck",
        "transaction_id": "transactionId",
    },
):
    """The ext fields of a decision, as text."""

    group: str
    offset: str
    position: str
    decision: str
    message_id: str
    is_from_check: str = "false"
    transaction_id: str | None = None
    topic: str | None = None


class _Header(msgspec.Struct, gc=False, rename={"ext": "extFields", "request_id": "opaque"}):
    ext: _End
    request_id: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    flag: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] = 0
    version: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] = 0
    remark: str | None = None


_decode = msgspec.json.Decoder(_Header).decode


class FastTransactions:
    """Stores usual halves of one broker, and usual decisions about them."""

    def __init__(self, broker: BrokerState) -> None:
        self._broker = broker
        self._topics = broker.topics
        self._transactions = broker.transactions
        self._turn = broker.transactions.turn
        self._added = broker.broker_properties.added
        self._count = broker.stats.put
        self._texts: KnownTexts[_HalfText] = KnownTexts()
        # Signed requests are checked on the plain path, and with sync flush an answer waits.
        self._is_allowed = (
            broker.senders is None
            and not broker.storage.is_sync_flush
            and not broker.config.is_slave
        )

    # Halves

    def prepare(self, text: str, topic: str, queue_id: int) -> HalfSend | None:
        """What to store for the properties of a send; None leaves it to the plain path."""
        if _HALF_MARK not in text or self._broker.config.reject_transaction_message:
            return None
        cut = cut_id(enclose(text))
        if cut is None:
            return None
        before, unique_id, behind = cut
        known = self._texts.get(before + behind) or self._read(cut)
        if known is None:
            return None
        before, behind, group = known
        shown = f"{before}{unique_id}{behind}{unique_id}\x02"
        properties = (
            f"{shown}{Property.REAL_TOPIC}\x01{topic}\x02{Property.REAL_QUEUE_ID}\x01{queue_id}\x02"
        )
        # Of ASCII text the length is that of its bytes.
        if not properties.isascii() or len(properties) > MAX_PROPERTIES_BYTES:
            return None
        return _new_tuple(
            HalfSend,
            (properties, len(shown), _new_tuple(TransactionKey, (group, topic, unique_id))),
        )

    def _read(self, text: CutText) -> _HalfText | None:
        """Find out about a text that is not known; None leaves it to the plain path."""
        enclosed = "".join(text)
        if (
            _find_marks(enclosed) not in _USUAL_MARKS
            or not is_regular(enclosed)
            or value_behind(enclosed, END_MARK + _HALF_MARK) != "true"
        ):
            return None
        found = _HalfText(
            text.before[1:],
            f"{text.behind}{self._added}{Property.TRANSACTION_ID}\x01",
            value_behind(enclosed, END_MARK + _GROUP_MARK),
        )
        self._texts.add(text, found)
        return found

    def stored(self, half: HalfSend, draft: DraftFields, queue_id: int, appended: Appended) -> None:
        """Open the transaction of a half when it is written."""
        log_position, queue_offset, size, stored_ms = appended
        self._count(HALF_TOPIC, HALF_QUEUE, size)
        _, visible, key = half
        _, _, body, properties, flag, sys_flag, born, born_host, store_host, times, _, id_ = draft
        final = (
            key.topic,
            queue_id,
            body,
            properties[:visible],
            flag,
            sys_flag & ~SysFlag.TRANSACTION_MASK | SysFlag.TRANSACTION_COMMIT,
            born,
            born_host,
            store_host,
            times,
            log_position,
            id_,
        )
        entry = OpenTransaction(key, [queue_offset], log_position, stored_ms)
        self._turn.add(entry, final)

    # Decisions

    def end(self, peer: Peer, header: bytes, body: bytes) -> bytes | None:
        """The answer to END_TRANSACTION, empty if it is one-way; None: left to the plain path."""
        if not self._is_allowed:
            return None
        try:
            head = _decode(header)
            flag, ext = head.flag, head.ext
            if not flag:
                self._turn.settle()
            decision = _DECISIONS[ext.decision]
            entry, queue_offset, final = self._transactions.recent[ext.position]
        except (msgspec.DecodeError, KeyError):
            return None
        key = entry.key
        if (
            flag & ~ONEWAY
            or entry.decision
            or ext.group != key.group
            or ext.offset != queue_offset
            or ext.is_from_check not in ("false", "true")
            or entry not in self._transactions.open
            or key.topic not in self._topics
        ):
            return None
        stored = final if decision == TransactionDecision.COMMIT else None
        if flag:
            self._turn.decide_later(entry, decision, stored)
            return b""
        try:
            self._turn.decide(entry, decision, stored)
        except PenstockError:
            return None  # Nothing has changed; the plain path says why it cannot be.
        return encode_command(Command(0, head.request_id, flag=RESPONSE))
