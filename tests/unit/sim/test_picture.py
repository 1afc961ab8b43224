"""What a picture is made of: lanes, messages, spans and marks from the rows of a run, and the file for Perfetto."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replace_of

from faults import catalogue as faults
from faults.catalogue import At, Crash, Lose, Partition, Restart
from faults.plan import Plan, Setup
from sim.oracle import Violation
from sim.picture import html, perfetto
from sim.picture.model import Diagram, diagram
from sim.picture.page import data_of
from sim.run import Verdict, run_seed

PLAN = Plan(
    setup=Setup(workload=3, every_s=0.8),
    chaos_s=4.0,
    faults=(
        Lose(dst="policy", route="completions", how="before", k=2),
        Lose(dst="inventory", route="", how="after", k=4),
        Partition(src="controller", dst="verifier", from_s=0.1, for_s=0.2),
        Crash(nodes=("agent",), when=At(1.3), restart=Restart(how="whole", after_s=0.5)),
    ),
)


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    return run_seed(5, "picture", plan=PLAN, keep_all_rows=True)


@pytest.fixture(scope="module")
def found(verdict: Verdict) -> Diagram:
    return diagram(verdict)


# ------------------------------------------------------------------------------------------------------ the model


def test_every_exchange_is_a_message_whose_rows_are_its_own(verdict: Verdict, found: Diagram) -> None:
    requests = [row for row in verdict.rows if row.event == "net.request"]
    assert len([each for each in found.messages if each.kind != "copy"]) == len(requests) > 50
    for message in found.messages:
        steps = [each for each in (message.sent, message.arrived, message.head, message.end) if each >= 0]
        assert {verdict.rows[each].fields["x"] for each in steps} == {message.number}
        assert steps[0] == min(steps)
    assert {message.kind for message in found.messages} >= {"control", "rollout", "episode", "tool", "model"}


def test_what_was_lost_says_by_which_fault(found: Diagram) -> None:
    lost = [message for message in found.messages if message.struck]
    assert [message.route for message in lost if message.arrived < 0 and message.dst == "policy"] == ["completions"]
    assert all(message.ending == "failed" for message in lost if "reset" in message.struck)
    assert any("took effect" in message.struck and message.head >= 0 for message in lost)


def test_messages_of_the_model_belong_to_their_rollout(verdict: Verdict, found: Diagram) -> None:
    calls = {row.fields["call_id"] for row in verdict.rows if row.event == "inference.started"}
    to_worker = [each for each in found.messages if each.dst in ("worker", "worker2") and each.kind == "model"]
    assert to_worker and all(each.rollout for each in to_worker)
    assert {each.rollout for each in to_worker} >= {call.split(".c")[0] for call in calls if "-a" not in call}


def test_a_lane_has_a_gap_where_its_node_is_down(verdict: Verdict, found: Diagram) -> None:
    lives = [span for span in found.spans if span.node == "agent" and span.what == "life"]
    assert len(lives) > 1
    for before, after in zip(lives, lives[1:], strict=False):
        assert before.upto < after.since
        assert verdict.rows[before.upto].event in ("node.crashed", "node.exited", "node.died")
    assert ("agent", "crash") in {(mark.node, mark.what) for mark in found.marks}


def test_phases_and_closed_admission_last_until_they_end(verdict: Verdict, found: Diagram) -> None:
    phases = [span for span in found.spans if span.what == "phase"]
    assert {span.label for span in phases} >= {"preparing", "prepared", "committed"}
    for span in phases:
        assert verdict.rows[span.since].fields["now"] == span.label
    closed = [row for row in verdict.rows if row.event == "admission.closed"]
    assert len([span for span in found.spans if span.what == "closed"]) == len(closed)


def test_planned_windows_and_struck_faults_are_there(verdict: Verdict, found: Diagram) -> None:
    assert [(each.since_s, round(each.upto_s, 3)) for each in found.windows] == [(0.1, 0.3)]
    assert len([mark for mark in found.marks if mark.what == "fault"]) == sum(verdict.faults.values()) > 2


@pytest.mark.parametrize(
    "fault",
    [
        faults.FailedReply("policy", "completions", 500, 1, 2),
        faults.Disconnect("environment", "run", 0.05, 1, 2),
        faults.SlowReader("policy", "completions", 0.01, 1, 4),
        faults.SlowWorker(0.2, 1, 3),
        faults.StuckWorker(1, 1),
        faults.Delay("agent", "responses", 1, 2, 0.01, 0.01),
    ],
)
def test_a_halo_says_that_a_fault_touched_a_message(fault: faults.Fault) -> None:
    verdict = run_seed(5, plan=replace_of(PLAN, faults=(fault,)), keep_all_rows=True)
    touched = [message for message in diagram(verdict).messages if message.struck == fault.words()]
    assert len(touched) == verdict.faults[faults.kind_of(fault)] > 0


@pytest.mark.parametrize(
    "fault",
    [
        faults.Pause("agent", At(0.5), 0.75),
        faults.LateTimers("agent", 0.5, 0.75, 0.1),
        faults.HalfOpen("environment", "agent", At(0.5), 0.75),
        faults.Slow("agent", 0.5, 0.75, 0.05),
    ],
)
def test_a_bar_says_how_long_a_fault_lasts(fault: faults.Fault) -> None:
    verdict = run_seed(5, plan=replace_of(PLAN, faults=(fault,)), keep_all_rows=True)
    (window,) = diagram(verdict).windows
    assert (round(window.since_s, 3), round(window.upto_s, 3), window.label) == (0.5, 1.25, fault.words())


def test_who_only_looks_has_no_lane(found: Diagram) -> None:
    assert found.lanes == ("controller", "environment", "agent", "inventory", "verifier", "policy", "worker", "worker2")


def test_a_violation_that_no_event_shows_stands_at_its_time(verdict: Verdict) -> None:
    late = Violation("RUN-died", verdict.rows[100].t, "", -1, "it died", "it lives")
    exact = Violation("INV-2", verdict.rows[100].t, "", 51, "two", "one")
    breaks = diagram(replace(verdict, violations=(exact, late))).breaks
    assert breaks[0].row == 50
    row = breaks[1].row
    assert verdict.rows[row].t <= late.t and (row + 1 == len(verdict.rows) or verdict.rows[row + 1].t > late.t)


# ------------------------------------------------------------------------------------------------------- the page


def test_the_page_is_one_file_that_asks_for_nothing(verdict: Verdict) -> None:
    page = html(verdict, "gym-ckpt sim replay x")
    for word in (b"src=", b'href="http', b"@import", b"url(", b"fetch(", b"XMLHttp", b"<link"):
        assert word not in page, word
    assert page.count(b"<script") == page.count(b"</script>") == 2


def test_hostile_text_stays_text(verdict: Verdict) -> None:
    evil = "</script><script>alert(1)</script><!-- \ud800"
    page = html(replace(verdict, violations=(Violation("INV-2", 0.0, "", 1, evil, evil),)), evil)
    assert b"<script>alert" not in page and page.count(b"</script>") == 2
    _, _, rest = page.partition(b'id="data">')
    assert "alert(1)" in json.loads(rest.partition(b"</script>")[0])["about"]["command"]


def test_data_of_the_page_fits_together(found: Diagram) -> None:
    data = data_of(found)
    count = len(found.rows)
    assert {len(column) for column in data["rows"].values()} == {count}
    assert all(0 <= span[3] <= span[4] < count for span in data["spans"])
    assert all(-1 <= message[9 - 1] < count for message in data["messages"])


# ------------------------------------------------------------------------------------------------------- Perfetto


def check_trace(trace: dict[str, Any]) -> Counter[str]:
    """What the Chrome trace event format asks for, and the viewers rely on. How many events of each phase there are."""
    named: set[tuple[int, int]] = set()
    processes: set[int] = set()
    slices: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    flows: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    spans: dict[tuple[str, int, str], list[dict[str, Any]]] = defaultdict(list)
    counts: Counter[str] = Counter()
    for event in trace["traceEvents"]:
        counts[event["ph"]] += 1
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int) and event["name"]
        where = (event["pid"], event["tid"])
        if event["ph"] == "M":
            assert event["args"], event
            if event["name"] == "thread_name":
                named.add(where)
            elif event["name"] == "process_name":
                processes.add(event["pid"])
            continue
        assert event["ts"] >= 0 and where in named and event["pid"] in processes, event
        match event["ph"]:
            case "X":
                assert event["dur"] >= 0
                slices[where].append((event["ts"], event["ts"] + event["dur"]))
            case "s" | "f":
                assert event["ph"] == "s" or event["bp"] == "e"
                flows[event["cat"], event["name"], event["id"]].append(event)
            case "b" | "e":
                spans[event["cat"], event["id"], event["name"]].append(event)
            case "i":
                assert event["s"] in ("g", "p", "t")
            case other:
                raise AssertionError(f"no event of this format: {other}")
    for track in slices.values():  # slices of one thread nest, or follow each other
        open_until: list[float] = []
        for since, upto in sorted(track, key=lambda each: (each[0], -each[1])):
            while open_until and open_until[-1] <= since + 1e-6:
                open_until.pop()
            assert not open_until or upto <= open_until[-1] + 1e-6, "slices of one thread overlap"
            open_until.append(upto)
    for flow in flows.values():
        assert [each["ph"] for each in flow] == ["s", "f"] and flow[0]["ts"] <= flow[1]["ts"], flow
        for end in flow:
            inside = slices[end["pid"], end["tid"]]
            assert any(since <= end["ts"] <= upto for since, upto in inside), "an end of a flow has no slice"
    for span in spans.values():
        assert [each["ph"] for each in span] == ["b", "e"] and span[0]["ts"] <= span[1]["ts"], span
    return counts


def test_the_trace_obeys_the_format(verdict: Verdict, found: Diagram) -> None:
    trace = json.loads(perfetto(verdict))
    counts = check_trace(trace)
    assert counts["s"] == counts["f"] > 50
    assert counts["b"] == counts["e"] == len(found.messages)
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert names == {"world", *found.lanes}


@pytest.mark.parametrize(
    "broken",
    [
        {"dur": 1e9, "name": "overlaps"},
        {"ph": "s", "id": "1", "name": "has no other end"},
        {"ph": "i", "s": "t", "pid": 99, "name": "of nobody"},
    ],
)
def test_the_check_of_the_format_sees_what_is_wrong(verdict: Verdict, broken: dict[str, Any]) -> None:
    trace = json.loads(perfetto(verdict))
    end = next(event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] == "message")
    trace["traceEvents"].append({**end, **broken, "ts": end["ts"] + 0.5})
    with pytest.raises((AssertionError, KeyError)):
        check_trace(trace)


def test_a_violation_is_seen_over_all_tracks(verdict: Verdict) -> None:
    broken = replace(verdict, violations=(Violation("INV-2", 1.0, "controller", 40, "two", "one"),))
    events = json.loads(perfetto(broken))["traceEvents"]
    (seen,) = [event for event in events if event["name"] == "INV-2 broken"]
    assert seen["s"] == "g" and seen["args"]["must"] == "one"
    assert seen["ts"] == round(verdict.rows[39].t * 1e6, 3)
