"""Transactions whose decisions are in a table of the user's own database.

    prepare ─▶ local transaction: the user's rows and one row of the outbox ─▶ commit, END
                                                              ▲
    a broker asks ─▶ check: is the row there? ────────────────┘

The row and the data are committed together or not at all, so the row is the decision. Where there
is none, the check writes a row that says "rolled back" before it answers so: if the local
transaction is still running, it then fails at its own row, which has the same key. A local
transaction gets some time before that happens.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.client.producing.receipts import Receipt
from penstock.client.producing.transactions import PreparedMessage
from penstock.errors import InvalidArgument
from penstock.model import Message, StoredMessage
from penstock.runtime.durations import Duration, milliseconds

if TYPE_CHECKING:
    from penstock.client.blocking.producer import Producer as BlockingProducer
    from penstock.client.nonblocking.producer import Producer as AsyncProducer

log = logging.getLogger(__name__)

Connection: TypeAlias = Any
"""A connection of PEP 249 (sqlite3, psycopg, ...), or a session or connection of SQLAlchemy."""
Work: TypeAlias = Callable[[Connection, PreparedMessage], object]
"""The local transaction: changes rows over the connection, and neither commits nor rolls back."""

_TABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
_STYLES: Final[dict[str, Callable[[str, int], str]]] = {
    "qmark": lambda name, number: "?",
    "format": lambda name, number: "%s",
    "numeric": lambda name, number: f":{number}",
    "named": lambda name, number: f":{name}",
    "pyformat": lambda name, number: f"%({name})s",
}
_BY_NAME: Final = ("named", "pyformat")
_PLACE: Final = re.compile(r":(\w+)")


class Outbox:
    """Answers questions about transactions from a table of a database.

    ``connect`` returns a new connection, or a new session of SQLAlchemy; the outbox closes what it
    opens. ``table`` is made by `create_table`. A transaction without a row is rolled back when its
    message is older than ``rollback_after``. ``paramstyle`` is that of the database module, which
    usually is found by itself.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        table: str = "penstock_outbox",
        rollback_after: Duration = 60,
        paramstyle: str | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        if not _TABLE.fullmatch(table):
            raise InvalidArgument(
                f"table is {table!r}", expected="the name of a table, perhaps with its schema"
            )
        if paramstyle is not None and paramstyle not in _STYLES:
            raise InvalidArgument(
                f"paramstyle is {paramstyle!r}", expected=f"one of {', '.join(_STYLES)}"
            )
        self._connect = connect
        self._table = table
        self._rollback_after_ms = milliseconds(rollback_after)
        self._paramstyle = paramstyle
        self._now = now

    # The table

    def create_table(self) -> None:
        """Create the table, unless it is there."""
        self._run(
            f"CREATE TABLE IF NOT EXISTS {self._table} ("
            "transaction_id VARCHAR(64) NOT NULL PRIMARY KEY, "
            "committed SMALLINT NOT NULL, "
            "recorded_ms BIGINT NOT NULL)",
            {},
        )

    def purge(self, older_than: Duration = "7d") -> None:
        """Delete old rows.

        They must be older than any transaction that a broker may still ask about: it keeps asking
        for three days (``fileReservedTime``) at most.
        """
        before_ms = self._now_ms() - milliseconds(older_than)
        self._run(f"DELETE FROM {self._table} WHERE recorded_ms < :before_ms",
                  {"before_ms": before_ms})  # fmt: skip

    def record(self, connection: Connection, message: PreparedMessage) -> None:
        """Write the row of a transaction, in the transaction of ``connection``.

        Call it from a local transaction of your own, before you commit; `send` does it by itself.
        """
        self._insert(connection, message.transaction_id, is_committed=True)

    # Sending

    def send(self, producer: BlockingProducer, message: Message, work: Work) -> Receipt:
        """Send a message and change the database: both happen, or neither.

        ``work`` is called with a connection and the message, and its changes are committed after
        it. If it raises, they are rolled back, consumers never see the message, and the error is
        raised here.
        """
        local = _LocalTransaction(self, work)
        receipt = producer.send_in_transaction(message, local.run)
        local.raise_error()
        return receipt

    async def send_async(self, producer: AsyncProducer, message: Message, work: Work) -> Receipt:
        """The same for `penstock.aio.Producer`; ``work`` runs in a thread."""
        local = _LocalTransaction(self, work)

        async def run(prepared: PreparedMessage) -> bool | None:
            return await asyncio.to_thread(local.run, prepared)

        receipt = await producer.send_in_transaction(message, run)
        local.raise_error()
        return receipt

    # Being asked

    def check(self, message: StoredMessage) -> bool | None:
        """Whether a transaction was committed; for ``check_transaction`` of the producer."""
        transaction_id = message.msg_id
        connection = self._connect()
        try:
            decision = self._find(connection, transaction_id)
            if decision is not None:
                return decision
            if self._now_ms() - message.born_timestamp < self._rollback_after_ms:
                # It may be running: neither the row nor its absence says anything yet.
                return None
            try:
                self._insert(connection, transaction_id, is_committed=False)
                connection.commit()
            except Exception as error:
                # Another row was faster, or its transaction holds a lock: what does it say?
                connection.rollback()
                log.info("outbox row not written id=%s error=%s", transaction_id, error)
                return self._find(connection, transaction_id)
            return False
        finally:
            connection.close()

    # Statements

    def _find(self, connection: Connection, transaction_id: str) -> bool | None:
        row = self._execute(
            connection,
            f"SELECT committed FROM {self._table} WHERE transaction_id = :transaction_id",
            {"transaction_id": transaction_id},
        ).fetchone()
        return None if row is None else bool(row[0])

    def _insert(self, connection: Connection, transaction_id: str, *, is_committed: bool) -> None:
        self._execute(
            connection,
            f"INSERT INTO {self._table} (transaction_id, committed, recorded_ms) "
            "VALUES (:transaction_id, :committed, :recorded_ms)",
            {
                "transaction_id": transaction_id,
                "committed": int(is_committed),
                "recorded_ms": self._now_ms(),
            },
        )

    def _run(self, sql: str, values: Mapping[str, object]) -> None:
        connection = self._connect()
        try:
            self._execute(connection, sql, values)
            connection.commit()
        finally:
            connection.close()

    def _execute(self, connection: Connection, sql: str, values: Mapping[str, object]) -> Any:
        if type(connection).__module__.partition(".")[0] == "sqlalchemy":
            text = sys.modules["sqlalchemy"].text
            return connection.execute(text(sql), dict(values))
        style = self._paramstyle or _paramstyle_of(connection)
        names = _PLACE.findall(sql)
        for number, name in enumerate(names, 1):
            sql = sql.replace(f":{name}", _STYLES[style](name, number), 1)
        cursor = connection.cursor()
        cursor.execute(sql, dict(values) if style in _BY_NAME else [values[name] for name in names])
        return cursor

    def _now_ms(self) -> int:
        return round(self._now() * 1000)


class _LocalTransaction:
    """One call of the user's work, with its row of the outbox."""

    def __init__(self, outbox: Outbox, work: Work) -> None:
        self._outbox = outbox
        self._work = work
        self._error: Exception | None = None

    def run(self, message: PreparedMessage) -> bool | None:
        """Do the work; the decision about the message."""
        connection = self._outbox._connect()
        try:
            try:
                self._work(connection, message)
                self._outbox.record(connection, message)
            except Exception as error:
                self._error = error
                connection.rollback()
                return False
            try:
                connection.commit()
            except Exception as error:
                # The database knows whether it has committed; a broker will ask for it.
                self._error = error
                return None
            return True
        finally:
            connection.close()

    def raise_error(self) -> None:
        """Raise what went wrong."""
        if self._error is not None:
            raise self._error


def _paramstyle_of(connection: Connection) -> str:
    """The parameter style of the module that a connection is from."""
    for base in type(connection).__mro__:
        parts = base.__module__.split(".")
        for end in range(len(parts), 0, -1):
            module = sys.modules.get(".".join(parts[:end]))
            style = getattr(module, "paramstyle", None)
            if style in _STYLES:
                return str(style)
    raise InvalidArgument(
        f"the paramstyle of {type(connection).__module__} is not known",
        hint="Outbox(..., paramstyle='qmark'), or what the documentation of the module says",
    )
