"""A failed attempt that was traced is one event, not two."""

from __future__ import annotations

from penstock.admin.message_life import LifeEvent, TracedCall, join_traces


def _record(at_ms: int, kind: str, text: str, group: str = "billing") -> LifeEvent:
    return LifeEvent(at_ms, kind, text, group, "ValueError: amount", f"record-{at_ms}")


def test_a_traced_attempt_has_the_time_of_its_call_and_the_reason_of_its_record() -> None:
    records = [
        _record(2000, "failed", "attempt 1 failed; delivered again"),
        _record(4000, "failed", "attempt 2 failed; delivered again"),
        _record(6000, "dead", "died after 3 attempts"),
    ]
    calls = [
        TracedCall(1000, False, "at a in 5 ms (trace)", "billing"),
        TracedCall(2100, False, "at b in 6 ms (trace)", "billing"),
        TracedCall(4100, False, "at a in 7 ms (trace)", "billing"),
        TracedCall(1001, False, "at c in 8 ms (trace)", "shipping"),
        TracedCall(9000, True, "at a in 9 ms (trace)", "billing"),
    ]
    joined = sorted(join_traces(records, calls), key=lambda one: (one.group or "", one.at_ms))
    assert [(one.at_ms, one.kind, one.reason) for one in joined if one.group == "billing"] == [
        (1000, "failed", "ValueError: amount"),
        (2100, "failed", "ValueError: amount"),
        (4100, "failed", "ValueError: amount"),
        (6000, "dead", "ValueError: amount"),
        (9000, "handled", None),
    ]
    assert joined[0].text == "attempt 1 failed; delivered again; at a in 5 ms (trace)"
    assert joined[0].offset_msg_id == "record-2000"
    # Another group's failure is its own, and there is nothing that tells why.
    [other] = [one for one in joined if one.group == "shipping"]
    assert (other.kind, other.reason) == ("failed", None)


def test_records_without_traces_stay_as_they_are() -> None:
    records = [_record(2000, "failed", "attempt 1 failed"), _record(3000, "dead", "died")]
    assert join_traces(records, []) == records


def test_a_call_after_a_record_is_not_the_one_that_it_tells() -> None:
    records = [_record(2000, "failed", "attempt 1 failed; delivered again")]
    later = TracedCall(2500, False, "in 1 ms (trace)", "billing")
    joined = join_traces(records, [later])
    assert [(one.at_ms, one.text) for one in joined] == [
        (2000, "attempt 1 failed; delivered again"),
        (2500, "a handler failed in 1 ms (trace)"),
    ]
