"""The page of a run in a real browser: it draws, filters, searches, and stays quick with 20,000 events.

Screenshots are kept in `.gym-ckpt/artefacts/`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e.browser import HOW_TO_GET_IT, Browser, find
from gym_ckpt.types import EpisodeId
from sim.picture import html
from sim.run import Verdict, run_seed
from sim.trace import Row
from sim.workload import CONTROLLER, SECOND_POLICY, SECOND_WORKER, SERVERS

pytestmark = pytest.mark.e2e

ARTEFACTS = Path(__file__).resolve().parents[1] / ".gym-ckpt" / "artefacts"
MANY = 20_000
LOAD_MS, FRAME_MS = 6000, 400
"""At most so many milliseconds until a page of `MANY` events is there, and until all of it is drawn again. On a
two-core machine it takes 150 and 50; what is far above that is a page that nobody wants."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find()
    if program is None:
        if os.environ.get("CI"):
            pytest.fail(HOW_TO_GET_IT, pytrace=False)
        pytest.skip(HOW_TO_GET_IT)
    with Browser(program) as found:
        yield found


@pytest.fixture(scope="module")
def broken() -> Verdict:
    """The first seed in which a planted bug is found, and something crashes on the way."""
    for seed in range(40):
        verdict = run_seed(seed, bug="mark-after-stop", keep_all_rows=True)
        if verdict.violations and any(row.event == "node.crashed" for row in verdict.rows):
            return verdict
    raise AssertionError("none of 40 seeds finds the planted bug")


@pytest.fixture(scope="module")
def page(broken: Verdict, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "timeline.html"
    path.write_bytes(html(broken, "gym-ckpt sim replay default-1"))
    return path


def facts(browser: Browser) -> dict[str, Any]:
    """What the page says of itself; numbers as numbers."""
    said: dict[str, str] = browser.value("({...document.documentElement.dataset})")
    return {key: float(value) if value.replace(".", "", 1).isdecimal() else value for key, value in said.items()}


def ready(browser: Browser) -> dict[str, Any]:
    """After the next frame has been drawn."""
    browser.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
    return facts(browser)


def lanes_of(run: Verdict) -> list[str]:
    """The nodes of a run, in the order in which the page shows them."""
    nodes = {row.node for row in run.rows}
    lanes = (CONTROLLER, *SERVERS[:-1], SECOND_POLICY, SERVERS[-1], SECOND_WORKER)
    known = [name for name in lanes if name in nodes]
    return [*known, *({"stranger"} & nodes)]


def test_the_page_shows_the_run_and_what_broke(browser: Browser, page: Path, broken: Verdict) -> None:
    browser.open(page)
    said = ready(browser)
    assert said["rows"] == len(broken.rows) and said["lanes"] == len(lanes_of(broken)) and said["arrows"] > 2
    lanes = browser.value("[...document.querySelectorAll('.lane')].map(each => each.textContent)")
    assert lanes == ["faults", *lanes_of(broken)]
    first = broken.violations[0]
    assert first.invariant in browser.value("document.querySelector('h1').textContent")
    assert first.seen[:60] in browser.value("document.getElementById('broke').textContent")
    assert said["selected"] == first.event_index, "the violating event is chosen when the page opens"
    where = browser.value("px(S.sel)")
    assert 112 < where < browser.value("W"), "and in sight"
    assert browser.value("document.querySelector('#list .row.on').classList.contains('broken')")
    browser.screenshot(ARTEFACTS / "timeline.png")
    # Something is drawn, in the colours of messages and of what broke.
    colours = browser.value(
        "(() => { const c = document.getElementById('view'), d = c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data, seen = new Set();"
        " for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]); return seen.size; })()"
    )
    assert colours > 30
    assert browser.errors == []


def test_an_episode_alone(browser: Browser, page: Path, broken: Verdict) -> None:
    browser.open(page)
    everything = ready(browser)
    key = next(row.fields["episode"] for row in broken.rows if row.event == "episode.started")
    rollout = EpisodeId.from_key(key).rollout_id
    browser.open(page, f"#episode={key}")
    alone = ready(browser)
    assert 10 < alone["shown"] < everything["shown"] / 2
    foreign = browser.value(
        f"[...shown].filter(r => R.whose[r].length && !R.whose[r].includes(D.rollouts.indexOf({rollout!r}))"
        " && !brokenAt.has(r)).length"
    )
    assert foreign == 0
    assert browser.value("document.getElementById('episode').selectedOptions[0].textContent") == rollout
    browser.screenshot(ARTEFACTS / "timeline-episode.png")
    browser.value("location.hash = ''")
    browser.wait(f"document.documentElement.dataset.shown == '{everything['shown']:.0f}'")


def test_search_by_keyboard(browser: Browser, page: Path, broken: Verdict) -> None:
    browser.open(page)
    browser.key("/")
    browser.type("node.crashed")
    crashes = [index for index, row in enumerate(broken.rows) if row.event == "node.crashed"]
    assert ready(browser)["hits"] == len(crashes)
    browser.key("Enter")
    first = ready(browser)["selected"]
    browser.key("Enter")
    second = ready(browser)["selected"]
    assert {first - 1, second - 1} <= set(crashes)
    assert (first != second) == (len(crashes) > 1)
    browser.key("Escape")
    browser.key("v")
    assert ready(browser)["selected"] == broken.violations[0].event_index
    browser.key("ArrowRight")
    assert ready(browser)["selected"] > broken.violations[0].event_index
    browser.key("t")
    assert browser.value("S.axis") == "time"
    assert browser.errors == []


def test_hovering_tells_and_clicking_keeps(browser: Browser, page: Path, broken: Verdict) -> None:
    browser.open(page)
    ready(browser)
    box = browser.value("(() => { const b = C.getBoundingClientRect(); return [b.left, b.top]; })()")
    x, y = browser.value("[px(D.breaks[0].row), laneY(D.breaks[0].lane)]")
    browser.point(box[0] + x, box[1] + y)
    assert broken.violations[0].must[:40] in browser.value("document.getElementById('tip').textContent")
    browser.key("Escape")
    assert ready(browser)["selected"] == ""
    browser.point(box[0] + x, box[1] + y, click=True)
    assert ready(browser)["selected"] == broken.violations[0].event_index
    before = browser.value("S.scale")
    browser.wheel(box[0] + x, box[1] + y, -400)
    browser.wait(f"S.scale > {before}")
    assert abs(browser.value("px(D.breaks[0].row)") - x) < 2, "zoom keeps what is under the pointer there"


def stretched(verdict: Verdict, events: int) -> Verdict:
    """The same run again and again, until there are so many events: each time later, its messages numbered anew."""
    rows: list[Row] = []
    rounds = 0
    while len(rows) < events:
        later = rounds * (verdict.virtual_s + 1)
        for row in verdict.rows[: events - len(rows)]:
            number = {"x": row.fields["x"] + rounds * 100_000} if "x" in row.fields else {}
            rows.append(Row(row.t + later, row.node, row.event, {**row.fields, **number}))
        rounds += 1
    return replace(verdict, rows=tuple(rows), events=len(rows), virtual_s=rows[-1].t)


def test_twenty_thousand_events(browser: Browser, broken: Verdict, tmp_path: Path) -> None:
    path = tmp_path / "long.html"
    path.write_bytes(html(stretched(broken, MANY)))
    browser.open(path)
    said = ready(browser)
    assert said["rows"] == MANY and said["messages"] > MANY / 12
    assert said["load"] < LOAD_MS
    browser.key("0")
    whole = ready(browser)
    assert whole["arrows"] > MANY / 20 and whole["ms"] < FRAME_MS, "the whole run at once"
    browser.screenshot(ARTEFACTS / "timeline-20000.png")
    browser.key("v")
    assert ready(browser)["ms"] < FRAME_MS
    browser.key("/")
    browser.type("retire")
    searched = browser.value(
        "(() => { const a = performance.now(); search('retire'); return performance.now() - a; })()"
    )
    assert searched < FRAME_MS and facts(browser)["hits"] > 10
    drawn = f"loaded in {said['load']:.0f} ms, drawn whole in {whole['ms']} ms, searched in {searched:.0f} ms"
    print(f"{path.stat().st_size} bytes, {drawn}")
    assert browser.errors == []
