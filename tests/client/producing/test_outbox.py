"""The outbox: a row in the user's database decides about a transaction."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
import sqlalchemy.exc
import sqlalchemy.orm
from tests.support.scripted import ThreadedCluster
from tests.support.waiting import wait_for

from penstock import Message, Outbox, PreparedMessage, Producer, StoredMessage, aio
from penstock.errors import InvalidArgument
from penstock.model import MessageQueue
from penstock.protocol.codes import RequestCode
from penstock.testing.eventually import eventually

END = RequestCode.END_TRANSACTION
NOW = 1_000_000.0


@pytest.fixture
def database(tmp_path: Path) -> str:
    path = str(tmp_path / "shop.db")
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE orders (number TEXT PRIMARY KEY)")
    connection.close()
    return path


@pytest.fixture
def outbox(database: str) -> Outbox:
    made = Outbox(lambda: sqlite3.connect(database, timeout=0.1), now=lambda: NOW)
    made.create_table()
    made.create_table()
    return made


def asked(msg_id: str, *, age: float) -> StoredMessage:
    """A question about a transaction."""
    queue = MessageQueue("orders", "broker-a", 0)
    born_ms = round((NOW - age) * 1000)
    return StoredMessage("orders", b"x", b"", queue, 0, born_timestamp=born_ms, msg_id=msg_id)


def prepared(transaction_id: str) -> PreparedMessage:
    return PreparedMessage(Message("orders", b"x", keys=["k"], tag="t"), transaction_id)


def rows(database: str, table: str = "orders") -> list[Any]:
    connection = sqlite3.connect(database)
    try:
        return connection.execute(f"SELECT * FROM {table}").fetchall()
    finally:
        connection.close()


def test_a_prepared_message_is_the_message_with_its_transaction() -> None:
    message = prepared("ID")
    assert (message.topic, message.body, message.tag) == ("orders", b"x", "t")
    assert (message.keys, message.transaction_id) == (["k"], "ID")


def test_a_row_means_that_the_transaction_was_committed(outbox: Outbox, database: str) -> None:
    connection = sqlite3.connect(database)
    outbox.record(connection, prepared("ID-1"))
    # Not committed yet: another connection does not see it, and the question is open.
    assert outbox.check(asked("ID-1", age=1)) is None
    connection.commit()
    connection.close()
    assert outbox.check(asked("ID-1", age=1)) is True
    assert outbox.check(asked("ID-1", age=10_000)) is True


def test_without_a_row_it_is_rolled_back_after_a_while_and_for_good(
    outbox: Outbox, database: str
) -> None:
    assert outbox.check(asked("ID-1", age=59)) is None
    assert outbox.check(asked("ID-1", age=61)) is False
    assert outbox.check(asked("ID-1", age=1)) is False
    # The local transaction was only slow. It must not commit any more.
    connection = sqlite3.connect(database)
    with pytest.raises(sqlite3.IntegrityError):
        outbox.record(connection, prepared("ID-1"))
    connection.close()


def test_a_local_transaction_that_is_committing_is_waited_for(
    outbox: Outbox, database: str
) -> None:
    connection = sqlite3.connect(database)
    outbox.record(connection, prepared("ID-1"))
    # Old enough to be rolled back, but its row is locked.
    assert outbox.check(asked("ID-1", age=1000)) is None
    connection.commit()
    connection.close()
    assert outbox.check(asked("ID-1", age=1000)) is True


def test_old_rows_are_purged(database: str) -> None:
    now = [NOW]
    outbox = Outbox(lambda: sqlite3.connect(database), table="main.marks", now=lambda: now[0])
    outbox.create_table()
    assert outbox.check(asked("ID-1", age=100)) is False
    now[0] += 86_400
    outbox.purge()
    assert len(rows(database, "marks")) == 1
    outbox.purge(older_than="12h")
    assert rows(database, "marks") == []


@pytest.mark.parametrize("table", ["", "a b", "x; DROP TABLE orders", "a.b.c", "1"])
def test_the_name_of_a_table_is_checked(table: str) -> None:
    with pytest.raises(InvalidArgument, match="table is"):
        Outbox(lambda: None, table=table)


class _Cursor:
    def __init__(self, log: list[tuple[str, Any]]) -> None:
        self._log = log

    def execute(self, sql: str, values: Any) -> None:
        self._log.append((sql.partition(" WHERE ")[2] or sql, values))

    def fetchone(self) -> tuple[int]:
        return (1,)


class _Connection:
    """What the outbox needs of PEP 249."""

    def __init__(self, log: list[tuple[str, Any]]) -> None:
        self._log = log

    def cursor(self) -> _Cursor:
        return _Cursor(self._log)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("style", "where", "values"),
    [
        ("qmark", "transaction_id = ?", ["ID"]),
        ("format", "transaction_id = %s", ["ID"]),
        ("numeric", "transaction_id = :1", ["ID"]),
        ("named", "transaction_id = :transaction_id", {"transaction_id": "ID"}),
        ("pyformat", "transaction_id = %(transaction_id)s", {"transaction_id": "ID"}),
    ],
)
def test_every_parameter_style_is_written(style: str, where: str, values: Any) -> None:
    log: list[tuple[str, Any]] = []
    outbox = Outbox(lambda: _Connection(log), paramstyle=style)
    assert outbox.check(asked("ID", age=1)) is True
    assert log == [(where, values)]


def test_an_unknown_parameter_style_is_explained() -> None:
    with pytest.raises(InvalidArgument, match="paramstyle is 'percent'"):
        Outbox(lambda: None, paramstyle="percent")
    outbox = Outbox(lambda: _Connection([]))
    with pytest.raises(InvalidArgument, match=r"paramstyle of .* is not known"):
        outbox.check(asked("ID", age=1))


def decisions(cluster: ThreadedCluster) -> list[str]:
    return [end.ext["commitOrRollback"] for end in cluster.broker.asked(END)]


def test_the_work_and_its_row_are_committed_together(
    cluster: ThreadedCluster, outbox: Outbox, database: str
) -> None:
    def insert(connection: sqlite3.Connection, message: PreparedMessage) -> None:
        connection.execute("INSERT INTO orders VALUES (?)", [message.body.decode()])

    with Producer("shop", namesrv=cluster.namesrv, check_transaction=outbox.check) as producer:
        receipt = outbox.send(producer, Message("T", b"1"), insert)
        assert receipt.decision is True
        # The same order again: the database refuses it, so the message is rolled back.
        with pytest.raises(sqlite3.IntegrityError):
            outbox.send(producer, Message("T", b"1"), insert)
        wait_for(lambda: len(decisions(cluster)) == 2)
    assert decisions(cluster) == ["8", "12"]
    assert rows(database) == [("1",)]
    assert rows(database, "penstock_outbox") == [(receipt.msg_id, 1, round(NOW * 1000))]


def test_a_commit_with_an_unknown_result_is_left_to_the_check(
    cluster: ThreadedCluster, database: str
) -> None:
    class Fails(sqlite3.Connection):
        def commit(self) -> None:
            super().commit()
            if self.execute("SELECT count(*) FROM orders").fetchone()[0]:
                raise sqlite3.OperationalError("the connection was lost")

    outbox = Outbox(lambda: sqlite3.connect(database, factory=Fails), now=lambda: NOW)
    outbox.create_table()

    def insert(connection: sqlite3.Connection, message: PreparedMessage) -> None:
        connection.execute("INSERT INTO orders VALUES ('1')")

    with Producer("shop", namesrv=cluster.namesrv) as producer:
        with pytest.raises(sqlite3.OperationalError):
            outbox.send(producer, Message("T", b"1"), insert)
        wait_for(lambda: decisions(cluster) == ["0"])
    [(transaction_id, _, _)] = rows(database, "penstock_outbox")
    assert outbox.check(asked(transaction_id, age=1)) is True


async def test_the_same_with_asyncio(
    cluster: ThreadedCluster, outbox: Outbox, database: str
) -> None:
    def insert(connection: sqlite3.Connection, message: PreparedMessage) -> None:
        connection.execute("INSERT INTO orders VALUES ('1')")

    async with aio.Producer(
        "shop", namesrv=cluster.namesrv, check_transaction=outbox.check
    ) as producer:
        receipt = await outbox.send_async(producer, Message("T", b"1"), insert)
        assert receipt.decision is True
        with pytest.raises(sqlite3.IntegrityError):
            await outbox.send_async(producer, Message("T", b"1"), insert)
        await eventually(lambda: len(decisions(cluster)) == 2)
    assert decisions(cluster) == ["8", "12"]
    assert len(rows(database)) == 1


def test_a_session_of_sqlalchemy_does_as_well(cluster: ThreadedCluster, database: str) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{database}")
    outbox = Outbox(sqlalchemy.orm.sessionmaker(engine), now=lambda: NOW)
    outbox.create_table()

    def insert(session: sqlalchemy.orm.Session, message: PreparedMessage) -> None:
        session.execute(sqlalchemy.text("INSERT INTO orders VALUES ('1')"))

    with Producer("shop", namesrv=cluster.namesrv) as producer:
        receipt = outbox.send(producer, Message("T", b"1"), insert)
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            outbox.send(producer, Message("T", b"1"), insert)
        wait_for(lambda: decisions(cluster) == ["8", "12"])
    assert outbox.check(asked(receipt.msg_id, age=1000)) is True
    assert outbox.check(asked("other", age=1)) is None
    assert outbox.check(asked("other", age=1000)) is False
    outbox.purge(older_than=0)
    engine.dispose()
