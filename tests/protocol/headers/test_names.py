"""The names on the wire, request by request, as the protocol reference lists them.

Each entry: required fields, then optional ones. The tables are written out once more here, apart
from the classes, so that a slip in a class does not go unseen.
"""

from __future__ import annotations

import pytest
from tests.support.request_types import REQUESTS

from penstock.protocol.headers.codec import Header, header_fields

SEND = "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag"
SEND_OPTIONAL = "properties reconsumeTimes unitMode maxReconsumeTimes batch bname"
PULL = (
    "consumerGroup topic queueId queueOffset maxMsgNums sysFlag commitOffset "
    "suspendTimeoutMillis subVersion"
)
PULL_OPTIONAL = "subscription expressionType maxMsgBytes requestSource proxyFrowardClientId"

REQUEST_FIELDS: dict[int, tuple[str, str]] = {
    # Producing.
    10: (SEND, SEND_OPTIONAL),
    310: ("a b c d e f g h", "i j k l m n"),
    320: ("a b c d e f g h", "i j k l m n"),
    324: (SEND, SEND_OPTIONAL),
    325: ("a b c d e f g h", "i j k l m n"),
    370: ("topic recallHandle", "producerGroup"),
    # Consuming.
    11: (PULL, PULL_OPTIONAL),
    361: (PULL, PULL_OPTIONAL),
    12: (
        "topic key maxNum beginTimestamp endTimestamp",
        "_UNIQUE_KEY_QUERY indexType lastKey",
    ),
    14: ("consumerGroup topic queueId", "setZeroIfNotFound"),
    15: ("consumerGroup topic queueId commitOffset", ""),
    29: ("topic queueId timestamp", "boundaryType"),
    30: ("topic queueId", "committed"),
    31: ("topic queueId", ""),
    32: ("topic queueId", ""),
    33: ("offset", "topic"),
    36: ("offset group delayLevel", "originMsgId originTopic unitMode maxReconsumeTimes"),
    # Clients.
    35: ("clientID", "producerGroup consumerGroup"),
    38: ("consumerGroup", ""),
    40: ("consumerGroup", ""),
    220: ("topic group timestamp", "isForce queueId offset"),
    221: ("topic group", "clientAddr"),
    222: ("topic group timestamp", "isForce queueId offset"),
    223: ("topic group", "clientAddr"),
    307: ("consumerGroup clientId", "jstackEnable"),
    309: ("consumerGroup", "clientId msgId brokerName topic topicSysFlag groupSysFlag"),
    # Transactions.
    37: (
        "producerGroup tranStateTableOffset commitLogOffset commitOrRollback msgId",
        "fromTransactionCheck transactionId topic",
    ),
    39: ("tranStateTableOffset commitLogOffset", "msgId transactionId offsetMsgId topic bname"),
    # Request and reply.
    326: (f"{SEND} bornHost storeHost storeTimestamp", "properties reconsumeTimes unitMode"),
    # Pop.
    200050: (
        "consumerGroup topic queueId maxMsgNums invisibleTime pollTime",
        "bornTime initMode expType exp order attemptId",
    ),
    200051: ("consumerGroup topic queueId extraInfo offset", ""),
    200053: ("consumerGroup topic queueId extraInfo offset invisibleTime", "suspend"),
    # Name server.
    100: ("namespace key value", ""),
    101: ("namespace key", ""),
    102: ("namespace key", ""),
    103: (
        "brokerName brokerAddr clusterName haServerAddr brokerId",
        "compressed bodyCrc32 heartbeatTimeoutMillis enableActingMaster",
    ),
    104: ("brokerName brokerAddr clusterName brokerId", ""),
    105: ("topic", "acceptStandardJsonOnly"),
    205: ("brokerName", ""),
    216: ("topic", "clusterName"),
    217: ("topic", ""),
    219: ("namespace", ""),
    224: ("cluster", ""),
    322: ("brokerName brokerAddr clusterName brokerId", ""),
    327: ("brokerName", ""),
    901: ("clusterName brokerName", ""),
    904: (
        "clusterName brokerAddr brokerName",
        "brokerId epoch maxOffset confirmOffset heartbeatTimeoutMills electionPriority",
    ),
    # Administration of a broker.
    17: (
        "topic defaultTopic readQueueNums writeQueueNums perm topicFilterType order",
        "topicSysFlag attributes force",
    ),
    21: ("", "topicSeq maxTopicNum dataVersion"),
    201: ("", "groupSeq maxGroupNum dataVersion"),
    202: ("topic", ""),
    203: ("consumerGroup", ""),
    204: ("producerGroup", ""),
    207: ("groupName", "cleanOffset removeOffset"),
    208: ("consumerGroup", "topic topicList"),
    215: ("topic", ""),
    300: ("topic", ""),
    303: ("topic group", ""),
    314: ("srcGroup destGroup", "topic offline"),
    315: ("statsName statsKey", ""),
    317: ("isOrder", ""),
    321: ("topic queueId index count", "consumerGroup"),
    343: ("group", ""),
    345: ("group topic", ""),
    351: ("topic", ""),
    352: ("group", ""),
    # Users and rights.
    **dict.fromkeys((3001, 3002, 3003, 3004), ("username", "")),
    3005: ("", "filter"),
    **dict.fromkeys((3006, 3007, 3009), ("subject", "")),
    3008: ("subject", "policyType resource"),
    3010: ("", "subjectFilter resourceFilter"),
}

SENT = ("msgId queueId queueOffset", "transactionId batchUniqId recallHandle MSG_REGION TRACE_ON")
PULLED = (
    "suggestWhichBrokerId nextBeginOffset minOffset maxOffset",
    "offsetDelta topicSysFlag groupSysFlag forbiddenType",
)
RESPONSE_FIELDS: dict[int, tuple[str, str]] = {
    **dict.fromkeys((10, 310, 320, 324, 325), SENT),
    370: ("msgId", "MSG_REGION"),
    **dict.fromkeys((11, 361), PULLED),
    12: ("indexLastUpdateTimestamp indexLastUpdatePhyoffset", ""),
    **dict.fromkeys((14, 29, 30, 31), ("offset", "")),
    32: ("timestamp", ""),
    34: ("", "IS_SUPPORT_HEART_BEAT_V2 IS_SUB_CHANGE"),
    200050: (
        "popTime invisibleTime reviveQid restNum",
        "startOffsetInfo msgOffsetInfo orderCountInfo",
    ),
    200053: ("popTime invisibleTime reviveQid", ""),
    101: ("", "value"),
    103: ("", "haServerAddr masterAddr"),
    205: ("wipeTopicCount", ""),
    322: ("changed", ""),
    327: ("addTopicCount", ""),
    21: ("", "totalTopicNum"),
    26: ("", "version"),
    201: ("", "totalGroupNum"),
}

# Without fields of their own, in both directions.
BARE = {18, 25, 28, 41, 42, 43, 45, 46, 106, 200, 206, 225, 304, 305, 318, 319, 328, 400, 401}

I64_FIELDS = {
    *{"queueOffset", "commitOffset", "suspendTimeoutMillis", "subVersion", "offset", "timestamp"},
    *{"bornTimestamp", "storeTimestamp", "beginTimestamp", "endTimestamp", "commitLogOffset"},
    *{"tranStateTableOffset", "invisibleTime", "pollTime", "bornTime", "popTime", "restNum"},
    *{"brokerId", "heartbeatTimeoutMillis", "heartbeatTimeoutMills", "nextBeginOffset"},
    *{"minOffset", "maxOffset", "offsetDelta", "suggestWhichBrokerId", "confirmOffset", "index"},
    *{"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset", "g"},
}


def names(cls: type[Header] | None) -> tuple[set[str], set[str]]:
    """The required and the optional names of a header."""
    fields = header_fields(cls) if cls else []
    required = {field.wire for field in fields if field.is_required}
    return required, {field.wire for field in fields} - required


@pytest.mark.parametrize("code", REQUEST_FIELDS)
def test_a_request_has_the_fields_of_the_reference(code: int) -> None:
    required, optional = REQUEST_FIELDS[code]
    assert names(REQUESTS[code].header) == (set(required.split()), set(optional.split()))


@pytest.mark.parametrize("code", RESPONSE_FIELDS)
def test_a_response_has_the_fields_of_the_reference(code: int) -> None:
    required, optional = RESPONSE_FIELDS[code]
    assert names(REQUESTS[code].header_of_response(0)) == (
        set(required.split()),
        set(optional.split()),
    )


@pytest.mark.parametrize("code", sorted(REQUEST_FIELDS.keys() - RESPONSE_FIELDS.keys()))
def test_other_responses_have_no_fields(code: int) -> None:
    assert REQUESTS[code].header_of_response(0) is None


@pytest.mark.parametrize("code", sorted(BARE))
def test_a_bare_request_has_no_fields_and_neither_has_its_answer(code: int) -> None:
    assert REQUESTS[code].header is None
    assert REQUESTS[code].header_of_response(0) is None


@pytest.mark.parametrize("code", sorted(REQUEST_FIELDS.keys() | RESPONSE_FIELDS.keys()))
def test_what_counts_bytes_messages_or_milliseconds_has_64_bits(code: int) -> None:
    for cls in (REQUESTS[code].header, REQUESTS[code].header_of_response(0)):
        for field in header_fields(cls) if cls else ():
            if field.kind in ("int32", "int64"):
                assert (field.kind == "int64") == (field.wire in I64_FIELDS), field.wire


def test_a_refused_send_or_pull_says_little() -> None:
    assert names(REQUESTS[310].header_of_response(13)) == (set(), {"MSG_REGION", "TRACE_ON"})
    assert names(REQUESTS[11].header_of_response(16)) == (set(), {"forbiddenType"})
