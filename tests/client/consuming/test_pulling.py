"""The pull loop: one request a queue, what follows each answer, and when it waits."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest
from msgspec import structs
from tests.support.loop_clients import Bench, on_bench
from tests.support.scripted import Recorded, pull_result

from penstock.client.consuming.pulling import LARGEST_PULL
from penstock.client.observing.consumer_stats import consumer_stats
from penstock.client.settings import PROFILES, StartFrom
from penstock.errors import RequestRefused
from penstock.model import Message, MessageQueue, StoredMessage
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.extensions import PULL_BYTES, PULL_COUNT
from penstock.protocol.headers.codec import decode_header
from penstock.protocol.headers.pull import PullFlag, PullMessage
from penstock.remoting.peer import Peer

GROUP = "billing"
PULL = RequestCode.PULL_MESSAGE
FIRST = StartFrom("first")


def ignore(message: StoredMessage) -> None:
    """A handler that is always done."""


class Gate:
    """A handler that lets no message through until it is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.seen: list[int] = []

    async def __call__(self, message: StoredMessage) -> None:
        self.seen.append(message.queue_offset)
        await self.opened.wait()


def offsets(requests: list[Recorded]) -> list[int]:
    return [int(request.ext["queueOffset"]) for request in requests]


@pytest.mark.spec("S1")
@on_bench()
async def test_an_idle_queue_has_exactly_one_pull_outstanding(bench: Bench) -> None:
    await bench.consumer(ignore)
    for _ in range(8):
        await asyncio.sleep(7)
        for queue_id in range(4):
            assert len(bench.broker.queue("T", queue_id).held) == 1
    # Held for 15 s each and asked again at once: no more than that adds up to.
    assert len(bench.broker.asked(PULL, topic="T", queueId=0)) == 4


@pytest.mark.spec("S1")
@on_bench()
async def test_a_held_pull_brings_a_message_as_soon_as_it_is_stored(bench: Bench) -> None:
    arrived: list[float] = []
    await bench.consumer(lambda message: arrived.append(bench.loop.time()))
    await asyncio.sleep(10)
    stored_at = bench.loop.time()
    bench.broker.put("T", 2, b"now")
    await asyncio.sleep(1)
    assert len(arrived) == 1
    assert arrived[0] - stored_at < 0.1


@pytest.mark.spec("S35")
@on_bench(topics={"T": 16})
async def test_one_unanswered_pull_does_not_stop_the_others(bench: Bench) -> None:
    seen: list[int] = []
    await bench.consumer(lambda message: seen.append(message.queue.queue_id))
    await asyncio.sleep(2)
    assert len(bench.broker.peers) == 1
    assert sum(len(bench.broker.queue("T", n).held) for n in range(16)) == 16
    bench.broker.put("T", 9, b"x")
    await asyncio.sleep(0.5)
    assert seen == [9]


@pytest.mark.spec("S45")
@on_bench()
async def test_after_messages_the_next_pull_comes_at_once_where_they_ended(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 80)
    await bench.consumer(ignore, start_from=FIRST)
    await asyncio.sleep(1)
    pulls = bench.broker.asked(PULL, topic="T", queueId=0)
    assert offsets(pulls) == [0, 32, 64, 80]
    assert pulls[-1].at - pulls[0].at < 0.1


@on_bench(topics={"T": 1})
async def test_a_pull_that_goes_backwards_is_reported(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.broker.put("T", 0, *[b"x"] * 3)
    bench.broker.offsets["billing", "T", 0] = 2
    answer = bench.broker.pull_answer

    def earlier(peer: Peer, request: Command) -> Command:
        del bench.broker.script[PULL]
        return answer(structs.replace(decode_header(PullMessage, request.ext), queue_offset=0))

    await bench.consumer(ignore)
    assert "went backwards" not in caplog.text
    bench.broker.script[PULL] = earlier
    await asyncio.sleep(2)
    assert "a pull went backwards queue=T@broker-a:0 offset=2 first=0 next=3" in caplog.text
    assert caplog.text.count("went backwards") == 1


@pytest.mark.parametrize("count", [3, 200])
@on_bench(topics={"T": 1})
async def test_what_cannot_be_read_of_an_answer_is_asked_for_again(
    bench: Bench, count: int
) -> None:
    bench.broker.put("T", 0, *[b"x"] * count)
    answer = bench.broker.pull_answer

    def broken(peer: Peer, request: Command) -> Command:
        del bench.broker.script[PULL]
        whole = answer(decode_header(PullMessage, request.ext))
        assert isinstance(whole.body, bytes)
        return replace(whole, body=whole.body[:-1])

    bench.broker.script[PULL] = broken
    seen: list[int] = []
    await bench.consumer(lambda message: seen.append(message.queue_offset), start_from=FIRST)
    await asyncio.sleep(10)
    assert offsets(bench.broker.asked(PULL, topic="T", queueId=0))[:2] == [0, min(count, 32) - 1]
    assert seen == list(range(count))


@on_bench(topics={"T": 1})
async def test_how_far_a_queue_is_behind_is_what_the_last_pull_left_at_the_broker(
    bench: Bench,
) -> None:
    go_on = asyncio.Event()

    async def handler(message: StoredMessage) -> None:
        await go_on.wait()

    def behind() -> int:
        (queue,) = consumer_stats(consumer).queues.values()
        return queue.behind

    bench.broker.put("T", 0, *[b"wanted"] * 40, properties={"TAGS": "Aa"})
    bench.broker.put("T", 0, *[b"other"] * 2, properties={"TAGS": "no"})
    consumer = await bench.consumer(handler, start_from=FIRST, tags="Aa", queue_limit=31)
    await asyncio.sleep(2)
    assert behind() == 10
    go_on.set()
    await asyncio.sleep(2)
    assert behind() == 0


@pytest.mark.spec("S46")
@on_bench()
async def test_the_pull_interval_is_kept_between_pulls(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 80)
    await bench.consumer(ignore, start_from=FIRST, pull_interval=0.5)
    await asyncio.sleep(4)
    times = [pull.at for pull in bench.broker.asked(PULL, topic="T", queueId=0)]
    assert len(times) == 4
    assert all(later - earlier >= 0.5 for earlier, later in itertools.pairwise(times))


@pytest.mark.spec("S47", "S55")
@on_bench()
async def test_an_answer_without_a_wanted_tag_is_followed_by_the_next_pull_at_once(
    bench: Bench,
) -> None:
    seen: list[bytes] = []
    # The broker compares hashes; these two tags have the same one.
    bench.broker.put("T", 0, *[b"other"] * 40, properties={"TAGS": "BB"})
    bench.broker.put("T", 0, b"wanted", properties={"TAGS": "Aa"})
    await bench.consumer(lambda message: seen.append(message.body), start_from=FIRST, tags="Aa")
    await asyncio.sleep(1)
    assert offsets(bench.broker.asked(PULL, topic="T", queueId=0)) == [0, 32, 41]
    assert seen == [b"wanted"]


@pytest.mark.spec("S48", "S49")
@pytest.mark.parametrize("code", [ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND])
@on_bench(topics={"T": 1})
async def test_nothing_found_moves_on_and_commits_when_nothing_is_cached(
    bench: Bench, code: int
) -> None:
    asked = []

    def answer(peer: Peer, request: Command) -> Command | None:
        ask = decode_header(PullMessage, request.ext)
        asked.append(ask)
        if len(asked) == 1:
            return pull_result(code, 70, 0, 100)
        return None  # never answered

    bench.broker.offsets[GROUP, "T", 0] = 5
    bench.broker.script[PULL] = answer
    await bench.consumer(ignore)
    await asyncio.sleep(12)
    assert [ask.queue_offset for ask in asked] == [5, 70]
    assert asked[1].commit_offset == 70
    assert asked[1].sys_flag & 1
    assert bench.broker.offsets[GROUP, "T", 0] == 70


@pytest.mark.parametrize(
    "code",
    [ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND],
)
@on_bench(topics={"T": 1})
async def test_a_broker_that_leads_nowhere_is_asked_ever_less(bench: Bench, code: int) -> None:
    seen: list[bytes] = []

    def nowhere(peer: Peer, request: Command) -> Command | None:
        if len(bench.broker.asked(PULL, topic="T")) > 1000:
            return None  # enough is enough: no time passes between such questions
        ask = decode_header(PullMessage, request.ext)
        answer = pull_result(code, ask.queue_offset, 0, 100)
        answer.body = b""
        return answer

    bench.broker.script[PULL] = nowhere
    await bench.consumer(lambda message: seen.append(message.body), start_from=FIRST)
    await asyncio.sleep(60)
    times = [pull.at for pull in bench.broker.asked(PULL, topic="T")]
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert 15 <= len(waits) <= 100
    assert waits[0] < 0.1, "once may be chance"
    assert waits[-1] >= 0.9
    # It is accepted again as soon as it is right.
    del bench.broker.script[PULL]
    bench.broker.put("T", 0, *[b"x"] * 80)
    await asyncio.sleep(4)
    assert len(seen) == 80
    pulls = bench.broker.asked(PULL, topic="T")[len(times) :]
    assert offsets(pulls)[-3:] == [32, 64, 80]
    assert pulls[-1].at - pulls[-3].at < 0.1


@pytest.mark.spec("S49")
@on_bench(topics={"T": 1})
async def test_the_offset_does_not_pass_cached_messages(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 3)
    gate = Gate()
    await bench.consumer(gate, start_from=FIRST)
    await asyncio.sleep(1)
    assert gate.seen == [0, 1, 2]

    def nothing_matches(peer: Peer, request: Command) -> Command | None:
        ask = decode_header(PullMessage, request.ext)
        if ask.queue_offset < 50:
            return pull_result(ResponseCode.PULL_RETRY_IMMEDIATELY, 50, 0, 100)
        return None

    bench.broker.script[PULL] = nothing_matches
    bench.broker.put("T", 0, b"wakes the held pull")
    await asyncio.sleep(12)
    assert bench.broker.offsets.get((GROUP, "T", 0), 0) == 0


@pytest.mark.spec("S50")
@pytest.mark.parametrize("profile", ["current", "documents"])
@on_bench(topics={"T": 1})
async def test_an_illegal_offset_is_repaired_committed_and_pulled_again_from_there(
    bench: Bench, profile: str
) -> None:
    broker = bench.broker
    broker.queue("T", 0).min_offset = 500
    broker.offsets[GROUP, "T", 0] = 3
    await bench.consumer(ignore, profile=profile)
    await asyncio.sleep(40)
    pulls = broker.asked(PULL, topic="T", queueId=0)
    assert offsets(pulls)[:2] == [3, 500]
    gap = pulls[1].at - pulls[0].at
    delay = PROFILES[profile].offset_repair_delay
    assert gap >= delay
    if not delay:
        assert gap < 2.0
    commits = [c for c in broker.asked(RequestCode.UPDATE_CONSUMER_OFFSET) if c.at < pulls[1].at]
    assert {commit.ext["commitOffset"] for commit in commits} == {"500"}


@pytest.mark.spec("S50")
@on_bench(topics={"T": 1})
async def test_a_handler_that_ends_late_does_not_undo_the_repair(bench: Bench) -> None:
    broker = bench.broker
    broker.put("T", 0, b"0", b"1")
    gate = Gate()
    await bench.consumer(gate, start_from=FIRST)
    await asyncio.sleep(1)
    assert gate.seen == [0, 1]
    broker.queue("T", 0).min_offset = 500
    broker.queue("T", 0).records.clear()
    for held in broker.queue("T", 0).held:
        held.promise.resolve(pull_result(ResponseCode.PULL_OFFSET_MOVED, 500, 500, 500))
    await asyncio.sleep(0.2)
    gate.opened.set()
    await asyncio.sleep(15)
    assert broker.offsets[GROUP, "T", 0] == 500
    assert offsets(broker.asked(PULL, topic="T", queueId=0))[-1] == 500


@pytest.mark.spec("S52")
@pytest.mark.parametrize("profile", ["current", "documents"])
@on_bench(topics={"T": 1})
async def test_after_a_lost_connection_the_same_offset_is_pulled_again(
    bench: Bench, profile: str
) -> None:
    bench.broker.put("T", 0, *[b"x"] * 5)
    await bench.consumer(ignore, start_from=FIRST, profile=profile)
    await asyncio.sleep(5)
    lost_at = bench.loop.time()
    for peer in list(bench.broker.peers):
        peer.abort("for a test")
    await asyncio.sleep(10)
    later = [p for p in bench.broker.asked(PULL, topic="T", queueId=0) if p.at > lost_at]
    assert offsets(later)[0] == 5
    delay = PROFILES[profile].pull_retry_delay
    assert delay <= later[0].at - lost_at < delay + 1.0


@pytest.mark.spec("S52")
@on_bench(topics={"T": 1})
async def test_a_refused_pull_waits_and_a_flow_controlled_one_only_a_moment(bench: Bench) -> None:
    codes = iter([ResponseCode.SYSTEM_ERROR, ResponseCode.FLOW_CONTROL])

    def refuse(peer: Peer, request: Command) -> Command | None:
        code = next(codes, None)
        return None if code is None else Command(code, remark="not now")

    bench.broker.script[PULL] = refuse
    await bench.consumer(ignore)
    await asyncio.sleep(4)
    first, second, third = (pull.at for pull in bench.broker.asked(PULL))
    assert 1.0 <= second - first < 1.2
    assert 0.02 <= third - second < 0.1


@pytest.mark.parametrize(
    "code", [ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST]
)
@on_bench(topics={"T": 1})
async def test_a_broker_without_the_subscription_gets_it_at_once(bench: Bench, code: int) -> None:
    await bench.consumer(ignore)
    await asyncio.sleep(5)
    bench.broker.script[PULL] = lambda peer, request: Command(code, remark="who are you?")
    bench.broker.put("T", 0, b"wakes the held pull")
    bench.broker.forget()
    await asyncio.sleep(3)
    assert bench.broker.asked(RequestCode.HEART_BEAT)


@pytest.mark.spec("S37", "S149")
@on_bench(topics={"T": 1})
async def test_pulling_goes_on_until_the_count_limit_and_again_after_draining(
    bench: Bench,
) -> None:
    bench.broker.put("T", 0, *[b"x"] * 3000)
    gate = Gate()
    consumer = await bench.consumer(gate, start_from=FIRST)
    await asyncio.sleep(10)
    held = consumer.state.queues[MessageQueue("T", "broker-a", 0)]
    assert 1000 < held.count <= 1000 + 32
    assert consumer.state.statistics.flow_stops
    gate.opened.set()
    await asyncio.sleep(10)
    assert sorted(gate.seen) == list(range(3000))


@pytest.mark.spec("S37")
@on_bench(topics={"T": 1})
async def test_handlers_that_drain_a_full_queue_do_not_wait_for_the_clock(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 3000)
    gate = Gate()
    consumer = await bench.consumer(gate, start_from=FIRST)
    await asyncio.sleep(10)
    held = consumer.state.queues[MessageQueue("T", "broker-a", 0)]
    # One millisecond after a look at the limits: by the clock the next one is 49 away.
    await asyncio.sleep(held.last_pull_at + 0.051 - bench.loop.time())
    asked = len(bench.broker.asked(PULL))
    gate.opened.set()
    await asyncio.sleep(0.02)
    assert len(bench.broker.asked(PULL)) > asked


@on_bench(topics={"T": 1})
async def test_our_own_broker_is_asked_for_as_much_as_there_is_room_for(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 3000)
    await bench.consumer(Gate(), start_from=FIRST)
    await asyncio.sleep(10)
    pulls = bench.broker.asked(PULL, topic="T")
    assert {pull.ext["maxMsgNums"] for pull in pulls} == {"32"}
    assert pulls[0].ext[PULL_BYTES] == str(256 * 1024)
    # Never past the limit of 1000 cached messages, but for the 32 that any broker may bring.
    for pull, offset in zip(pulls, offsets(pulls), strict=True):
        room = 1000 - offset
        asked = str(min(room, LARGEST_PULL)) if room > 32 else None
        assert pull.ext.get(PULL_COUNT) == asked


@on_bench(topics={"T": 1})
async def test_who_sets_the_size_of_a_pull_gets_it_from_every_broker(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 100)
    await bench.consumer(ignore, start_from=FIRST, pull_batch_size=16)
    await asyncio.sleep(10)
    for pull in bench.broker.asked(PULL, topic="T"):
        assert pull.ext["maxMsgNums"] == "16"
        assert PULL_BYTES not in pull.ext
        assert PULL_COUNT not in pull.ext


@on_bench(topics={"T": 1})
async def test_who_sets_more_than_32_gets_it_from_our_own_broker(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 1500)
    await bench.consumer(Gate(), start_from=FIRST, pull_batch_size=300)
    await asyncio.sleep(10)
    pulls = bench.broker.asked(PULL, topic="T")
    for pull, offset in zip(pulls, offsets(pulls), strict=True):
        assert pull.ext["maxMsgNums"] == "300"
        room = 1000 - offset
        assert pull.ext.get(PULL_COUNT) == (str(min(room, 300)) if room > 32 else None)


@pytest.mark.spec("S38")
@on_bench(topics={"T": 1})
async def test_pulling_stops_when_bodies_pass_the_size_limit(bench: Bench) -> None:
    bench.broker.put("T", 0, *[bytes(1024 * 1024)] * 12)
    bench.broker.max_pull = 1
    gate = Gate()
    consumer = await bench.consumer(gate, start_from=FIRST, queue_limit_mib=4)
    await asyncio.sleep(5)
    held = consumer.state.queues[MessageQueue("T", "broker-a", 0)]
    assert held.count == 5  # whole MiB must exceed the limit
    gate.opened.set()
    await asyncio.sleep(5)
    assert len(gate.seen) == 12


@pytest.mark.spec("S39")
@on_bench(topics={"T": 1})
async def test_pulling_stops_when_one_message_holds_the_span_open(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 5000)
    release = asyncio.Event()
    seen: list[int] = []

    async def first_one_blocks(message: StoredMessage) -> None:
        if message.queue_offset == 0:
            await release.wait()
        seen.append(message.queue_offset)

    await bench.consumer(first_one_blocks, start_from=FIRST)
    await asyncio.sleep(20)
    assert 2000 <= max(seen) <= 2000 + 64
    release.set()
    await asyncio.sleep(20)
    assert sorted(seen) == list(range(5000))


@pytest.mark.spec("S40")
@on_bench(topics={"T": 1})
async def test_an_orderly_queue_is_pulled_with_any_span(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 200)
    gate = Gate()
    consumer = await bench.consumer(gate, start_from=FIRST, orderly=True, max_span=10)
    await asyncio.sleep(5)
    assert consumer.state.queues[MessageQueue("T", "broker-a", 0)].count == 200


@pytest.mark.spec("S41")
@on_bench(topics={"T": 1})
async def test_sparse_matches_stop_pulling_by_span_although_few_are_cached(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 6000)
    everything = bench.broker.queue("T", 0).records

    def every_thousandth(peer: Peer, request: Command) -> Command | None:
        ask = decode_header(PullMessage, request.ext)
        matching = [n for n in range(ask.queue_offset, 6000) if n % 1000 == 0][:1]
        if not matching:
            return None
        return pull_result(ResponseCode.SUCCESS, matching[0] + 1, 0, 6000, everything[matching[0]])

    bench.broker.script[PULL] = every_thousandth
    gate = Gate()
    consumer = await bench.consumer(gate, start_from=FIRST)
    await asyncio.sleep(5)
    held = consumer.state.queues[MessageQueue("T", "broker-a", 0)]
    assert held.cached_range == (0, 3000, 4)


@pytest.mark.spec("S44")
@on_bench(brokers=("broker-a", "broker-b"), topics={})
async def test_pulls_follow_a_broker_that_moved(bench: Bench) -> None:
    bench.cluster.add_topic("T", 1, brokers=["broker-a"])
    await bench.consumer(ignore)
    await asyncio.sleep(2)
    moved = bench.cluster.brokers["broker-b"]
    assert not moved.asked(PULL)
    # The name broker-a now belongs to the other address.
    old = bench.cluster.brokers["broker-a"]
    bench.cluster.brokers["broker-a"] = moved
    await asyncio.sleep(31)
    for peer in list(old.peers):
        peer.abort("the machine is gone")
    await asyncio.sleep(5)
    assert moved.asked(PULL, topic="T", queueId=0)


@pytest.mark.spec("S88")
@on_bench(topics={"T": 1})
async def test_a_pull_commits_only_what_is_above_zero(bench: Bench) -> None:
    bench.broker.put("T", 0, b"x", b"y")
    await bench.consumer(ignore, start_from=FIRST)
    await asyncio.sleep(1)
    bench.broker.put("T", 0, b"z")
    await asyncio.sleep(1)
    flags = [
        (pull.ext["commitOffset"], int(pull.ext["sysFlag"]) & 1)
        for pull in bench.broker.asked(PULL, topic="T", queueId=0)
    ]
    assert flags[0] == ("0", 0)
    assert flags[-1] == ("2", 1)


@on_bench(topics={"T": 1})
async def test_a_paused_consumer_pulls_nothing_and_goes_on_when_resumed(bench: Bench) -> None:
    seen: list[bytes] = []
    consumer = await bench.consumer(lambda message: seen.append(message.body), start_from=FIRST)
    await asyncio.sleep(2)
    consumer.pause()
    bench.broker.put("T", 0, b"answers the held pull")
    await asyncio.sleep(1)
    bench.broker.forget()
    bench.broker.put("T", 0, b"waits")
    await asyncio.sleep(20)
    assert not bench.broker.asked(PULL)
    assert not bench.broker.asked(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    await consumer.resume()
    await asyncio.sleep(2)
    assert seen == [b"answers the held pull", b"waits"]


@on_bench(topics={"T": 1})
async def test_a_filter_hook_may_take_messages_out(bench: Bench) -> None:
    seen: list[bytes] = []

    def odd_only(messages: list[StoredMessage]) -> list[StoredMessage]:
        return [message for message in messages if message.queue_offset % 2]

    def broken(messages: list[StoredMessage]) -> None:
        raise ValueError("only logged")

    def leaves(messages: list[StoredMessage]) -> None:
        raise SystemExit("ends neither the loop nor the program")

    bench.broker.put("T", 0, b"0", b"1", b"2", b"3")
    await bench.consumer(
        lambda message: seen.append(message.body),
        start_from=FIRST,
        filter_hooks=[broken, leaves, odd_only],
    )
    await asyncio.sleep(2)
    assert seen == [b"1", b"3"]


@on_bench(topics={"T": 1})
async def test_pulled_messages_tell_the_ends_of_their_queue(bench: Bench) -> None:
    seen: list[dict[str, str]] = []
    bench.broker.put("T", 0, *[b"x"] * 40)
    await bench.consumer(lambda message: seen.append(dict(message.properties)), start_from=FIRST)
    await asyncio.sleep(1)
    assert {(p["MIN_OFFSET"], p["MAX_OFFSET"]) for p in seen} == {("0", "40")}


@on_bench(topics={"T": 1})
async def test_the_offset_delta_of_an_answer_is_added_to_its_messages(bench: Bench) -> None:
    """Static topics of RocketMQ 5 move queues between brokers; a broker counts from 0 again."""

    def from_another_broker(peer: Peer, request: Command) -> Command | None:
        ask = decode_header(PullMessage, request.ext)
        if ask.queue_offset >= 1000:
            return None
        answer = pull_result(ResponseCode.SUCCESS, 1003, 1000, 1003)
        assert answer.ext is not None
        answer.ext["offsetDelta"] = "1000"
        answer.body = b"".join(bench.broker.queues["T", 0].records)
        return answer

    bench.broker.put("T", 0, *[b"x"] * 3)
    bench.broker.script[PULL] = from_another_broker
    seen: list[int] = []
    consumer = await bench.consumer(lambda m: seen.append(m.queue_offset), start_from=FIRST)
    await asyncio.sleep(2)
    assert seen == [1000, 1001, 1002]
    assert consumer.state.offsets.snapshot() == {MessageQueue("T", "broker-a", 0): 1003}


def suggest_slave(peer: Peer, request: Command) -> Command | None:
    ask = decode_header(PullMessage, request.ext)
    if ask.queue_offset >= 5:
        return None
    answer = pull_result(ResponseCode.PULL_RETRY_IMMEDIATELY, 5, 0, 9)
    assert answer.ext is not None
    answer.ext["suggestWhichBrokerId"] = "1"
    return answer


@on_bench(brokers=("broker-a", "slave-a"), topics={})
async def test_a_slave_that_is_suggested_is_pulled_from_and_keeps_no_offset(bench: Bench) -> None:
    master, slave = bench.broker, bench.cluster.broker("slave-a")
    bench.cluster.add_topic("T", 1, brokers=["broker-a"])
    bench.cluster.slaves["broker-a"] = ["slave-a"]
    for broker in (master, slave):
        broker.put("T", 0, *[b"x"] * 9)
    master.offsets[GROUP, "T", 0] = 2
    master.script[PULL] = suggest_slave
    seen: list[int] = []
    await bench.consumer(lambda message: seen.append(message.queue_offset))
    await asyncio.sleep(2)
    assert seen == [5, 6, 7, 8]
    (first,) = master.asked(PULL, queueOffset=2)
    (second,) = slave.asked(PULL)
    assert offsets([second]) == [5]
    # Only the master gets committed offsets, and only its answers confirm them.
    assert int(first.ext["sysFlag"]) & PullFlag.COMMIT_OFFSET
    assert not int(second.ext["sysFlag"]) & PullFlag.COMMIT_OFFSET
    # The slave said nothing of a slave, so the master goes on.
    assert offsets(master.asked(PULL)) == [2, 9]
    # Consumers send heartbeats to slaves, too.
    assert slave.asked(RequestCode.HEART_BEAT)


@on_bench(brokers=("broker-a", "slave-a"), topics={})
async def test_a_producer_alone_does_not_greet_slaves(bench: Bench) -> None:
    bench.cluster.add_topic("T", 1, brokers=["broker-a"])
    bench.cluster.slaves["broker-a"] = ["slave-a"]
    await bench.producer().deliver(Message("T", b"x"))
    await asyncio.sleep(65)
    assert len(bench.broker.asked(RequestCode.HEART_BEAT)) >= 3
    assert not bench.cluster.broker("slave-a").requests


@on_bench(topics={"T": 1})
async def test_an_unknown_slave_is_replaced_by_the_master(bench: Bench) -> None:
    bench.broker.script[PULL] = suggest_slave
    consumer = await bench.consumer(ignore, start_from=FIRST)
    await asyncio.sleep(2)
    assert offsets(bench.broker.asked(PULL)) == [0, 5]
    assert consumer.assignment()


@on_bench(topics={"T": 1})
async def test_a_queue_whose_pulls_got_lost_is_taken_anew_after_two_minutes(bench: Bench) -> None:
    consumer = await bench.consumer(ignore)
    await asyncio.sleep(5)
    for task in asyncio.all_tasks():
        if task.get_name().endswith(" pull T@broker-a:0"):
            task.cancel()
    lost_at = consumer.state.queues[MessageQueue("T", "broker-a", 0)].last_pull_at
    bench.broker.forget()
    await asyncio.sleep(150)
    pulls = bench.broker.asked(PULL)
    assert pulls
    # At the first rebalance after that, which comes every 20 s.
    assert 120 < pulls[0].at - lost_at < 142


def test_an_unusual_answer_to_a_pull_is_an_error_with_its_code() -> None:
    from penstock.client.requests import refusal

    error = refusal(Command(ResponseCode.NO_PERMISSION, remark="sealed"), PULL, "b:1", "T@b:0")
    assert isinstance(error, RequestRefused)
    assert "b:1 refused PULL_MESSAGE for T@b:0 with NO_PERMISSION (16): sealed" in str(error)


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("lie", ["stays", "goes back"])
@on_bench(topics={"T": 1})
async def test_a_broker_that_finds_the_same_messages_for_ever_is_asked_less_and_less(
    bench: Bench, caplog: pytest.LogCaptureFixture, lie: str, count: int
) -> None:
    """Each message is handled once, and pulls come once a second in the end."""
    bench.broker.put("T", 0, *[b"x"] * count)
    bench.broker.max_pull = count
    everything = bench.broker.queue("T", 0).records

    def lead_nowhere(peer: Peer, request: Command) -> Command:
        asked = decode_header(PullMessage, request.ext).queue_offset
        then = asked if lie == "stays" else 0
        return pull_result(ResponseCode.SUCCESS, then, 0, count, b"".join(everything))

    bench.broker.script[PULL] = lead_nowhere
    seen: list[int] = []
    consumer = await bench.consumer(
        lambda messages: seen.extend(message.queue_offset for message in messages),
        start_from=FIRST,
        batch_size=16,
    )
    await asyncio.sleep(60)
    assert seen == list(range(count))
    assert len(bench.broker.asked(PULL, topic="T")) < 80
    assert 5 <= caplog.text.count("made no progress") <= 9
    await consumer.persist_offsets()
    await asyncio.sleep(1)
    assert bench.broker.offsets[GROUP, "T", 0] == count
    del bench.broker.script[PULL]
    bench.broker.put("T", 0, b"at last")
    await asyncio.sleep(5)
    assert seen == list(range(count + 1))
