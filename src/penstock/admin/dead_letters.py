"""Dead letters: found, given to their group again, put aside.

RocketMQ has no request for any of this, so it is made of what every broker knows. Nothing is ever
taken out of a dead-letter topic; instead it has a mark, one for each queue:

    min_offset             settled                max_offset
        |  redriven, purged   |  pending              |

The mark is the offset that RocketMQ's group for tools, ``TOOLS_CONSUMER``, has committed in
``%DLQ%group``. Brokers keep it as they keep all offsets, and the lag of the group itself stays what
it was. *Purging* moves the mark; the messages stay readable until their files expire, which is when
RocketMQ gives any space back. *Redriving* sends a copy to ``%RETRY%group``, which only the
group reads, under the message's first id and with the property ``PENSTOCK_REDRIVEN_FROM``: by it a
letter beyond the mark is known to be redriven already, so stopping half-way and starting again, or
redriving some and then all, sends nothing twice.

A mark beyond the end is left over from a topic that was deleted and created again; it counts for
nothing. (`Admin.delete_topic` takes the mark away; 4.9's own tools do not.)
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
from collections.abc import Iterable, Mapping

from penstock.admin.cluster_requests import on_host
from penstock.admin.messages import MAX_QUERY, TOPICS_AT_ONCE, MessageActions
from penstock.admin.reports import DeadLetterQueue, DeadLetterRow, LetterEdit
from penstock.client import requests
from penstock.client.producing.receipts import Receipt
from penstock.client.session.client_session import INNER_PRODUCER
from penstock.client.settings import ProducerSettings
from penstock.errors import InvalidArgument, PenstockError, ServiceNotAvailable
from penstock.model import MessageQueue, StoredMessage
from penstock.model.names import (
    DLQ_PREFIX,
    TOOLS_GROUP,
    Failure,
    Property,
    Redrive,
    dead_letter_topic,
    retry_topic,
)
from penstock.protocol import bodies
from penstock.protocol.records.sys_flags import SysFlag
from penstock.protocol.validation import check_sendable, check_topic

_END_OF_TIME = 2**63 - 1
_FRESH_RETRIES = 16
"""maxReconsumeTimes of the copy, whose retry count starts at zero."""

_NOT_COPIED = frozenset(
    {
        # The reason. If the copy fails again without a recorded reason, this one would be wrong.
        Failure.TYPE,
        Failure.MESSAGE,
        Failure.HOST,
        Failure.ATTEMPT,
        # What brokers and clients set on the way.
        Property.DELAY,
        Property.REAL_TOPIC,
        Property.REAL_QUEUE_ID,
        Property.MIN_OFFSET,
        Property.MAX_OFFSET,
        Property.CONSUME_START_TIME,
        Property.RECONSUME_TIME,
        Property.MAX_RECONSUME_TIMES,
        Property.TRANSACTION_PREPARED,
        Property.POP_RECEIPT,
        "1ST_POP_TIME",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "__CRC32#",
    }
)


def redriven_properties(letter: DeadLetterRow, *, to_group: bool) -> dict[str, str]:
    """The properties of the copy that is sent.

    A copy for the group's retry topic says where it comes from, so that the group's consumers hand
    it to the handler of that topic; a copy for any other topic belongs there.
    """
    said = letter.message.properties
    properties = {key: value for key, value in said.items() if key not in _NOT_COPIED}
    properties.pop(Property.RETRY_TOPIC, None)
    if to_group:
        if letter.origin_topic is None:
            raise InvalidArgument(
                f"dead letter {letter.message.msg_id} does not say which topic it comes from",
                expected="a letter with RETRY_TOPIC or DLQ_ORIGIN_TOPIC",
                hint="say which topic to send it to",
            )
        properties[Property.RETRY_TOPIC] = letter.origin_topic
    properties[Property.ORIGIN_MESSAGE_ID] = letter.origin_msg_id or letter.message.msg_id
    properties[Redrive.FROM] = letter.message.offset_msg_id
    properties[Redrive.TIMES] = str(letter.redrives + 1)
    return properties


class DeadLetterActions(MessageActions):
    """Actions on dead letters."""

    @on_host
    async def dead_letter_groups(self) -> list[str]:
        """The groups that have a dead-letter topic."""
        topics = await self.topics(internal=True)
        return sorted(t.removeprefix(DLQ_PREFIX) for t in topics if t.startswith(DLQ_PREFIX))

    @on_host
    async def dead_letter_queues(self, group: str) -> list[DeadLetterQueue]:
        """The queues with a group's dead letters, and where the pending ones start."""
        return await self._dead_letter_queues(dead_letter_topic(self.long_name(group)))

    async def _dead_letter_queues(self, topic: str) -> list[DeadLetterQueue]:
        if await self.find_route(topic) is None:
            return []
        masters = await self.topic_masters(topic)
        ends = await self._ranges(topic)
        queues = [MessageQueue(topic, row.broker_name, row.queue_id) for row in ends]
        marks = await asyncio.gather(
            *(
                self.session.calls.call(
                    masters[queue.broker_name], requests.committed(TOOLS_GROUP, queue)
                )
                for queue in queues
            )
        )
        return [
            DeadLetterQueue(
                queue,
                row.min_offset,
                _settled(mark, row.min_offset, row.max_offset),
                row.max_offset,
                row.last_timestamp,
            )
            for queue, row, mark in zip(queues, ends, marks, strict=True)
        ]

    @on_host
    async def dead_letters(
        self, group: str, *, count: int = 100, settled: bool = False
    ) -> list[DeadLetterRow]:
        """The newest dead letters of a group, oldest first, with the reason if known.

        ``settled`` adds redriven and purged ones.
        """
        topic = dead_letter_topic(self.long_name(group))
        queues = await self._dead_letter_queues(topic)
        if not queues:
            return []
        masters = await self.topic_masters(topic)
        parts = await asyncio.gather(
            *(
                self._read(
                    masters[place.queue.broker_name],
                    place.queue,
                    max(place.min_offset if settled else place.settled, place.max_offset - count),
                    count,
                )
                for place in queues
                if (place.count if settled else place.pending)
            )
        )
        found = sorted(
            (message for part in parts for message in part.messages),
            key=lambda m: (m.store_timestamp, m.queue, m.queue_offset),
        )
        return [DeadLetterRow.from_message(message) for message in self.shown(found[-count:])]

    @on_host
    async def redriven(
        self, group: str, letters: Iterable[DeadLetterRow], *, to: str | None = None
    ) -> set[str]:
        """The offset ids of those letters that were redriven already, to the group or to ``to``.

        Copies are found by the key index, which a broker may be configured to do without.
        """
        topic = self._redrive_topic(group, to)
        if await self.find_route(topic) is None:
            return set()
        wanted = list(letters)
        found: set[str] = set()
        for first in range(0, len(wanted), TOPICS_AT_ONCE):
            part = wanted[first : first + TOPICS_AT_ONCE]
            answers = await asyncio.gather(
                *(
                    self._query(topic, one.message.msg_id, MAX_QUERY, 0, _END_OF_TIME, unique=True)
                    for one in part
                )
            )
            found.update(
                one.message.offset_msg_id
                for one, copies in zip(part, answers, strict=True)
                if any(_is_copy(copy, one) for copy in copies)
            )
        return found

    @on_host
    async def redrive(
        self,
        group: str,
        letters: Iterable[DeadLetterRow],
        *,
        to: str | None = None,
        edits: Mapping[str, LetterEdit] | None = None,
    ) -> list[Receipt]:
        """Deliver dead letters to their group again, with a fresh retry count.

        No other group receives them. With ``to`` they are sent to that topic instead, for every
        group that reads it. A letter that fails again becomes a new dead letter. Redriven letters
        stay pending until `settle_dead_letters`. ``edits`` has what to send instead, by offset id.
        """
        topic = self._redrive_topic(group, to)
        chosen = list(letters)
        # All of them are looked at before the first is sent.
        ready = [(one, redriven_properties(one, to_group=to is None)) for one in chosen]
        for one in chosen:
            if one.message.sys_flag & SysFlag.COMPRESSED:
                raise InvalidArgument(
                    f"dead letter {one.message.msg_id} has a body that does not inflate",
                    expected="a body that can be read, since it is compressed again",
                )
        if to is None and ready:
            await self._refuse_orderly(group)
        from penstock.client.producing.producer import ProducerCore

        producer = ProducerCore(self.session, ProducerSettings(group=INNER_PRODUCER))
        producer.join_quietly()
        receipts: list[Receipt] = []
        for letter, properties in ready:
            message = letter.message
            edit = (edits or {}).get(message.offset_msg_id)
            if edit is not None:
                message = _edited(message, edit, properties)
            receipt = await producer.resend(
                topic,
                message,
                properties,
                reconsume_times=0,
                max_reconsume_times=_FRESH_RETRIES,
            )
            if not receipts and to is None:
                await self._refuse_burial(group, receipt)
            receipts.append(receipt)
        return receipts

    def _redrive_topic(self, group: str, to: str | None) -> str:
        if to is None:
            return retry_topic(self.long_name(group))
        return check_sendable(check_topic(self.long_name(to)))

    async def _refuse_orderly(self, group: str) -> None:
        """A broker buries what is sent to the retry topic of a group that locks its queues."""
        for client in await self.clients(group):
            try:
                info = await self.running_info(group, client.client_id)
            except PenstockError:
                continue  # It went away, or is of a kind that does not tell.
            if info.properties.get(bodies.running.RunningProperty.ORDERLY, "").lower() == "true":
                raise InvalidArgument(
                    f"group {group!r} consumes in order (client {client.client_id}), so brokers "
                    f"turn everything sent to its retry topic into dead letters",
                    expected="a topic to send to, or a group whose consumers have stopped",
                    hint="redrive to the topic they came from: to=..., or --to-topic",
                )

    async def _refuse_burial(self, group: str, receipt: Receipt) -> None:
        """See where the first copy went: locks outlive the consumers that held them."""
        stored = await self._at_offset_id(receipt.offset_msg_id)
        if stored is not None and stored.topic.startswith(DLQ_PREFIX):
            raise ServiceNotAvailable(
                f"the broker stored the copy of {receipt.msg_id} as a dead letter of {group!r} at "
                f"once: the group holds locks of an orderly consumer",
                hint="wait a minute until they expire, or give the topic it came from: --to-topic",
            )

    @on_host
    async def settle_dead_letters(
        self, group: str, offsets: Mapping[MessageQueue, int] | None = None
    ) -> dict[MessageQueue, int]:
        """Settle all dead letters before these offsets; return the settled offset by queue.

        Without ``offsets``, all of them. A settled offset may also be moved back.
        """
        topic = dead_letter_topic(self.long_name(group))
        places = {
            (place.queue.broker_name, place.queue.queue_id): place
            for place in await self._dead_letter_queues(topic)
        }
        if offsets is None:
            wanted = {key: place.max_offset for key, place in places.items()}
        else:
            wanted = {(q.broker_name, q.queue_id): offset for q, offset in offsets.items()}
        for key, offset in wanted.items():
            here = places.get(key)
            if here is None or not 0 <= offset <= here.max_offset:
                raise InvalidArgument(
                    f"offset {offset} in queue {key[1]} of the dead letters of {group!r} on "
                    f"broker {key[0]!r}",
                    expected=f"0 to {here.max_offset}" if here else "an existing queue",
                )
        masters = await self.topic_masters(topic) if wanted else {}
        for key, offset in wanted.items():
            commit = requests.commit(TOOLS_GROUP, places[key].queue, offset)
            await self.session.calls.call(masters[key[0]], commit)
        return {places[key].queue: offset for key, offset in wanted.items()}

    @on_host
    async def delete_dead_letters(self, group: str) -> None:
        """Delete a group's dead-letter topic, with its mark; the next dead letter creates it again.

        The letters are lost, including those that arrive meanwhile.
        """
        topic = dead_letter_topic(self.long_name(group))
        await self.require_route(topic)
        await self._delete(topic)

    async def _delete(self, name: str) -> None:
        if name.startswith(DLQ_PREFIX):
            # 4.9 keeps the offsets of a deleted topic: the next one of that name would begin with
            # letters that count as settled.
            masters = await self.topic_masters(name)
            for place in await self._dead_letter_queues(name):
                commit = requests.commit(TOOLS_GROUP, place.queue, 0)
                await self.session.calls.call(masters[place.queue.broker_name], commit)
        await super()._delete(name)


def _edited(message: StoredMessage, edit: LetterEdit, properties: dict[str, str]) -> StoredMessage:
    """The copy to be sent; its properties say that it is not the message that died."""
    changed = copy.copy(message)
    changed.body = edit.body
    for key, value in ((Property.TAGS, edit.tag), (Property.KEYS, " ".join(edit.keys))):
        if value:
            properties[key] = value
        else:
            properties.pop(key, None)
    died = hashlib.sha256(message.body).hexdigest()
    properties[Redrive.EDITED] = f"{len(message.body)} {died}"
    return changed


def _settled(mark: int | None, low: int, high: int) -> int:
    return low if mark is None or mark > high else max(mark, low)


def _is_copy(copy: StoredMessage, letter: DeadLetterRow) -> bool:
    return copy.properties.get(Redrive.FROM) == letter.message.offset_msg_id
