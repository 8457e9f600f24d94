"""The page: its colours by calculation, and in a headless Chromium with a phone's profile what a person sees and does."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec.demo.page import page_source
from edgespec.demo.server import Events, Server
from edgespec.demo.service import Service
from tests.demo.conftest import SETTINGS, WAIT_S
from tests.helpers.chromium import PHONE, Chromium, chromium

TEXT = ("--front", "--quiet", "--accent", "--drafted")


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb as in WCAG 2."""
    channels = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_colours_can_be_told_apart_in_light_and_dark() -> None:
    """4.5 to 1 for every text on everything that it stands on: WCAG 2 AA."""
    schemes = re.findall(r":root \{(.*?)\}", page_source(), re.DOTALL)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"(--[a-z-]+): (#[0-9a-f]{6})", scheme))
        pairs = [("--front", "--back"), ("--front", "--card"), ("--front", "--mine"), ("--quiet", "--back"), ("--quiet", "--card")]
        pairs += [("--on-accent", "--accent"), ("--drafted", "--drafted-back"), ("--bad", "--bad-back")]
        for text, back in pairs:
            assert contrast(colours[text], colours[back]) >= 4.5, (text, back, colours[text], colours[back])


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with chromium(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture
def server(tmp_path: Path, bundles: Path) -> Iterator[Server]:
    """On the tiny bundle; for pictures on the one that EDGESPEC_TEST_BUNDLE names."""
    events, real = Events(), os.environ.get("EDGESPEC_TEST_BUNDLE")
    folder = Path(real) if real else bundles / "first"
    chosen = {"drafter": "auto", "draft_length": 0} if real else {}
    settings = SETTINGS.changed({"max_new_tokens": 120, "threads": 2, **chosen})
    service = Service(tmp_path / "state", folder.parent, events.emit, settings=settings)
    service.open(folder)
    assert service.wait(600 if real else WAIT_S)
    made = Server(events, service.receive, service.state)
    yield made
    made.close()
    service.close()


@pytest.fixture
def page(browser: Chromium, server: Server) -> Iterator[Chromium]:
    browser.problems.clear()
    browser.dark(False)
    browser.open(server.url)
    browser.wait("state && state.bundle && !busy")
    yield browser
    assert browser.problems == []
    browser.open("about:blank")


def say(page: Chromium, text: str) -> None:
    page.run(f"document.querySelector('#text').value = {json.dumps(text)}")
    page.press("#send")


@pytest.mark.slow
def test_a_chat_with_streaming_marks_and_figures(page: Chromium, server: Server) -> None:
    assert page.run("location.search") == "", "the token is not in the address bar"
    say(page, "Repeat this three times: The ferry was late because of fog, so the band missed the concert.")
    text = "document.querySelector('.assistant .text').textContent"
    page.wait(f"document.querySelectorAll('.assistant mark').length > 0 && ({text}.length > 200 || !busy)")
    page.screenshot("demo-chat.png")
    page.wait("!busy && document.querySelectorAll('.message').length === 2")
    state = server.state()
    shown = page.run("document.querySelector('.assistant .text').textContent")
    parts = state["messages"][1]["parts"]
    assert shown == "".join(text for text, _ in parts)
    marked = page.run("[...document.querySelectorAll('.assistant mark')].map(mark => mark.textContent)")
    assert marked == [text for text, accepted in parts if accepted]
    figures = page.run("document.querySelector('.assistant .figures').textContent")
    for word in ("tokens/s", "tokens per pass", "of drafts accepted", "first token after"):
        assert word in figures
    assert page.run("document.documentElement.scrollWidth") <= PHONE["width"], "nothing is wider than the phone"
    page.dark(True)
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(22, 23, 26)"
    page.screenshot("demo-dark.png")
    page.open(server.url)  # loaded again, as after a rotation
    page.wait("document.querySelectorAll('.message').length === 2")
    assert page.run("document.querySelector('.assistant .text').textContent") == shown
    page.press("[data-view=settings]")
    page.press("#clear")
    page.wait("!busy && document.querySelectorAll('.message').length === 0")


@pytest.mark.slow
def test_stop(page: Chromium, server: Server) -> None:
    server.receive(b'{"type": "settings", "values": {"max_new_tokens": 400, "drafter": "none"}}')
    page.wait("state.settings.max_new_tokens === 400 && !busy")
    # A tiny model writes faster than a test can tap: the page itself taps at the first piece.
    page.run("const through = receive; window.receive = event => { through(event); if (event.type === 'piece') byId('stop').click(); }; 0")
    say(page, "go")
    page.wait("document.querySelector('.assistant .text')?.textContent && !busy")  # one piece may be one letter
    assert "stopped" in page.run("document.querySelector('.assistant .figures').textContent")
    assert page.run("document.querySelector('#send').checkVisibility()")


@pytest.mark.slow
def test_side_by_side(page: Chromium) -> None:
    page.press("[data-view=compare]")
    page.press("#compare-go")
    page.wait("document.querySelector('#verdict').textContent")
    assert "The two texts are the same." in page.run("document.querySelector('#verdict').textContent")
    texts = page.run("[...document.querySelectorAll('.arm .text')].map(arm => arm.textContent)")
    assert texts[0] == texts[1] != ""
    speeds = page.run("[...document.querySelectorAll('.arm .speed')].map(arm => Number(arm.textContent))")
    assert all(speed > 0 for speed in speeds)
    assert page.run("document.querySelectorAll('#arm-plain mark').length") == 0
    assert page.run("document.querySelectorAll('#arm-speculative mark').length") > 0
    page.screenshot("demo-compare.png")


@pytest.mark.slow
def test_errors_are_sentences(page: Chromium) -> None:
    page.press("[data-view=settings]")
    page.run("document.querySelector('[name=memory_budget]').value = '1MB'")
    page.press("#settings-form .main")
    page.wait("!document.querySelector('#error').hidden && !busy")
    text = page.run("document.querySelector('#error span').textContent")
    assert "budget" in text
    assert page.run("document.querySelector('#error').getAttribute('role')") == "alert"
    page.screenshot("demo-error.png")
    page.press("#error button")
    assert page.run("document.querySelector('#error').hidden")


@pytest.mark.slow
def test_everything_has_a_name_and_is_large_enough_to_touch(page: Chromium) -> None:
    for view in ("chat", "compare", "settings"):
        page.press(f"[data-view={view}]")
        controls = "[...document.querySelectorAll('button, input, select, textarea')].filter(item => item.checkVisibility())"
        names = page.run(
            f"{controls}.map(item => item.getAttribute('aria-label') || item.textContent.trim() || item.labels?.[0]?.textContent.trim())"
        )
        assert all(names), names
        assert page.run(f"Math.min(...{controls}.map(item => item.getBoundingClientRect().height))") >= 44


@pytest.mark.slow
def test_in_the_app_it_talks_to_java(browser: Chromium, tmp_path: Path) -> None:
    """The file as Java loads it, with an object in place of Java's: an import that fails."""
    (tmp_path / "page.html").write_text(page_source(), encoding="utf-8")
    said = "window.said = []; window.Android = { receive: text => said.push(JSON.parse(text)) };"
    script = browser.call("Page.addScriptToEvaluateOnNewDocument", source=said)["identifier"]
    try:
        browser.problems.clear()
        browser.open((tmp_path / "page.html").as_uri())
        assert browser.run("said") == [{"type": "hello"}]
        memory = {"type": "memory", "used": 10**8, "peak": 2 * 10**8, "budget": None}
        state = {"type": "state", "abilities": ["import"], "bundles": [], "bundle": None, "messages": [], "busy": "", "memory": memory}
        state["settings"] = {"memory_budget": "", "threads": 0, "max_new_tokens": 9, "temperature": 0, "drafter": "auto", "draft_length": 0}
        browser.run(f"receive({json.dumps(state)})")
        browser.press("#import")
        assert browser.run("said.at(-1)") == {"type": "import"}
        browser.run(f"receive({json.dumps({**state, 'busy': 'importing'})})")
        browser.run('receive({"type": "progress", "file": "weights.bin", "done": 50000000, "total": 100000000})')
        assert browser.run("document.querySelector('#notice span').textContent") == "Copying weights.bin – 50 MB of 100 MB"
        browser.screenshot("demo-import.png")
        browser.press("#stop")
        assert browser.run("said.at(-1)") == {"type": "stop"}
        browser.run('receive({"type": "error", "text": "Weights.bin: damaged, its sha256 is not the manifest\'s; copy it again."})')
        browser.run(f"receive({json.dumps(state)})")
        assert "damaged" in browser.run("document.querySelector('#error span').textContent")
        assert browser.problems == []
    finally:
        browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
