"""The prepared answer to a send is, byte for byte, what the general encoder makes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.commands import RESPONSE, Command, decode_command, encode_command
from penstock.protocol.frames import FrameDecoder
from penstock.protocol.send_answers import SendAnswers

PREFIX = "7F00000100002A9F"

texts = st.text(st.characters(codec="utf-8"), max_size=40)
offsets = st.integers(0, 2**63 - 1)


@given(
    region=texts,
    trace_on=st.booleans(),
    request_id=st.integers(-(2**31), 2**31 - 1),
    log_position=offsets,
    queue_id=st.integers(0, 2**31 - 1),
    queue_offset=offsets,
    unique_id=texts,
)
def test_a_prepared_answer_has_the_bytes_of_an_encoded_one(
    region: str,
    trace_on: bool,
    request_id: int,
    log_position: int,
    queue_id: int,
    queue_offset: int,
    unique_id: str,
) -> None:
    answers = SendAnswers(id_prefix=PREFIX, region=region, trace_on=trace_on)
    ext = answers.ext(f"{PREFIX}{log_position:016X}", queue_id, queue_offset, unique_id)
    frame = answers.frame(request_id, log_position, queue_id, queue_offset, unique_id)
    assert frame == encode_command(Command(0, request_id, RESPONSE, ext))


def test_it_says_where_the_message_went() -> None:
    answers = SendAnswers(id_prefix=PREFIX, region="DefaultRegion", trace_on=True)
    (frame,) = FrameDecoder().feed(answers.frame(77, 0xABCDEF, 3, 42, "unique-1"))
    answer = decode_command(frame)
    assert (answer.code, answer.request_id, answer.is_response) == (0, 77, True)
    assert answer.ext == {
        "msgId": "7F00000100002A9F0000000000ABCDEF",
        "queueId": "3",
        "queueOffset": "42",
        "transactionId": "unique-1",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }


def test_marks_of_the_template_in_a_region_do_no_harm() -> None:
    """A region is the operator's text: it may look like anything, a percent sign included."""
    for region in ('100%d"', "*msgId*", '"opaque":0', "%s%b%%"):
        answers = SendAnswers(id_prefix=PREFIX, region=region, trace_on=False)
        (frame,) = FrameDecoder().feed(answers.frame(1, 2, 3, 4, "u"))
        ext = decode_command(frame).ext
        assert ext is not None
        assert ext["MSG_REGION"] == region
        assert ext["msgId"] == f"{PREFIX}{2:016X}"


@given(st.lists(offsets, min_size=1, max_size=70))
def test_the_ids_of_a_batch_are_those_of_its_messages(positions: list[int]) -> None:
    answers = SendAnswers(id_prefix=PREFIX, region="r", trace_on=False)
    assert answers.ids(positions).split(",") == [f"{PREFIX}{one:016X}" for one in positions]


@given(
    region=texts,
    request_id=st.integers(-(2**31), 2**31 - 1),
    positions=st.lists(offsets, min_size=1, max_size=70),
    queue_id=st.integers(0, 2**31 - 1),
    queue_offset=offsets,
    unique_id=texts,
)
def test_a_prepared_answer_to_a_batch_has_the_bytes_of_an_encoded_one(
    region: str,
    request_id: int,
    positions: list[int],
    queue_id: int,
    queue_offset: int,
    unique_id: str,
) -> None:
    answers = SendAnswers(id_prefix=PREFIX, region=region, trace_on=True)
    ids = ",".join(f"{PREFIX}{one:016X}" for one in positions)
    ext = answers.ext(ids, queue_id, queue_offset, unique_id)
    frame = answers.frame_of_batch(request_id, positions, queue_id, queue_offset, unique_id)
    assert frame == encode_command(Command(0, request_id, RESPONSE, ext))
