"""The pages in a real browser: seen by eye, keyboard and screen reader, in light and dark, wide and narrow."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from lifecycle import Server, load_config
from lifecycle.fleet.chart import FLEET
from lifecycle.journal import Kind, Record
from lifecycle.trace import lives_of
from lifecycle.trace.page import page as trace_page
from lifecycle.ui.live import LivePage
from tests.trace.journals import FOUND, crash, walk

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 30_000
"""Milliseconds for something to be seen, on a loaded machine."""
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium"),
]
expect.set_options(timeout=PATIENCE)

# The contrast of every text with what is behind it, by WCAG 2.2's formula (1.4.3): those below 4.5.
CONTRAST = """() => {
  const part = (v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const light = (c) => 0.2126 * part(c[0]) + 0.7152 * part(c[1]) + 0.0722 * part(c[2]);
  const colour = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = colour(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const e of document.querySelectorAll("body *")) {
    if (e.closest("svg, [hidden], noscript, script") || !e.checkVisibility()) continue;
    const own = [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.textContent).join("").trim();
    if (!own || e.disabled) continue;
    const a = light(colour(getComputedStyle(e).color)), b = light(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push(`${own}: ${ratio.toFixed(2)}`);
  }
  return bad;
}"""
NAMELESS = """() => [...document.querySelectorAll("button, input, select, [role=img], [role=group], [tabindex]")]
  .filter((e) => e.checkVisibility() && !e.getAttribute("aria-label") && !e.textContent.trim())
  .filter((e) => !(e.labels || []).length)
  .map((e) => e.outerHTML.slice(0, 80))"""


class Nobody:
    """A service that says nothing of its work."""

    async def load(self) -> None:
        return None


def phase_of(record: Record, done: int) -> Record:
    """A phase of a start."""
    detail = {"phase": "loading weights", "done": done, "total": 8}
    return replace(record, kind=Kind.PHASE, event=None, before="Starting", detail=detail)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The page is served on asyncio, and the driver of the browser needs it as well."""
    return "asyncio"


@pytest.fixture(scope="module")
async def seen(anyio_backend: str) -> AsyncIterator[Browser]:
    """The browser; each test has a profile of its own in it."""
    async with async_playwright() as driver:
        words = ["--disable-gpu", "--disable-dev-shm-usage"] + (["--no-sandbox"] if os.getuid() == 0 else [])
        started = await driver.chromium.launch(executable_path=CHROMIUM, args=words)
        yield started
        await started.close()


@asynccontextmanager
async def looking(seen: Browser, url: str, width: int = 1280, scheme: str = "light") -> AsyncIterator[Page]:
    """A page; what its scripts complain of fails the test."""
    errors: list[str] = []
    context = await seen.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page = await context.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    await page.goto(url)
    yield page
    await context.close()
    assert errors == []


async def is_good(page: Page) -> None:
    """Nothing is cut off, illegible or without a name."""
    assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert await page.evaluate(CONTRAST) == []
    assert await page.evaluate(NAMELESS) == []


async def test_a_server_is_seen_to_serve_to_die_to_serve_again_and_to_end(tmp_path: Path, seen: Browser) -> None:
    config, _ = load_config("echo", state_dir=str(tmp_path), backoff_initial=0.2, crash_after=3)
    live = LivePage(config)
    server = Server(config, listener=live)
    async with live.served(server) as url, looking(seen, url) as page:
        async with server:
            await expect(page.locator("#state")).to_have_text("Healthy")
            await expect(page.locator("#link")).to_have_text("live")
            await expect(page.locator(".chart [data-state=Healthy].here")).to_have_count(1)
            await expect(page.locator("#log")).to_contain_text("listening")
            await is_good(page)
            for _ in range(4):  # the third one that the first attempt gets kills it
                await server.chat({"messages": [{"role": "user", "content": "hello"}]})
            await expect(page.locator("#fact-attempt")).to_have_text("2")
            await expect(page.locator(".attempt.bad")).to_contain_text("was killed by SIGKILL")
            await expect(page.locator("#plot-answered svg")).to_have_attribute("aria-label", re.compile("requests/s"))
        await expect(page.locator("#state")).to_have_text("Stopped")
        await expect(page.locator("[data-state=Stopped].here")).to_have_count(1)


async def test_the_page_says_that_the_command_has_ended_and_keeps_what_it_showed(seen: Browser) -> None:
    live = LivePage(load_config("echo")[0])
    for record in crash("echo"):
        live(record)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(live.served(Nobody()))
        async with looking(seen, url) as page:
            await expect(page.locator("#state")).to_have_text("Stopped")
            await stack.aclose()
            await expect(page.locator("#link")).to_have_text("the command has ended")
            await expect(page.locator("#state")).to_have_text("Stopped")


async def test_a_start_shows_how_far_it_is_then_its_failure_and_texts_of_logs_do_nothing(seen: Browser) -> None:
    live = LivePage(load_config("echo")[0])
    records = list(crash("echo"))
    for record in (*records[:4], phase_of(records[3], 1), phase_of(records[3], 3)):
        live(record)
    async with live.served(Nobody()) as url, looking(seen, url) as page:
        bar = page.get_by_role("progressbar", name="loading weights")
        await expect(bar).to_have_attribute("value", "3")
        await expect(bar).to_have_attribute("max", "8")
        live(phase_of(records[3], 4))
        await expect(bar).to_have_attribute("value", "4")
        await is_good(page)
        for record in records[4:7]:
            live(record)
        alarm = page.get_by_role("alert")
        await expect(alarm).to_contain_text(FOUND["summary"])
        await expect(alarm).to_contain_text(FOUND["advice"])
        await alarm.get_by_text("last log lines").click()
        await expect(alarm.locator("pre")).to_contain_text("<img src=x onerror=alert(1)>")
        assert await page.locator("#alarm img").count() == 0
        await is_good(page)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 360)])
async def test_a_fleet_has_a_row_a_replica_which_the_keyboard_reaches(scheme: str, width: int, seen: Browser) -> None:
    live = LivePage(load_config("echo", name="many")[0])
    for record in list(walk(FLEET, "many"))[:4]:
        live(record)
    for number, count in enumerate((5, 6, 3)):
        for record in list(crash(f"many-{number}"))[:count]:
            live(record)
    async with live.served(Nobody()) as url, looking(seen, url, width, scheme) as page:
        await expect(page.locator("#rows tr")).to_have_count(4)
        await expect(page.locator("#whose")).to_have_text("fleet many")
        await is_good(page)
        await page.get_by_role("button", name="many-1").focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("#whose")).to_have_text("server many-1")
        await expect(page.get_by_role("button", name="many-1")).to_be_focused()
        await expect(page.get_by_role("button", name="many-1")).to_have_attribute("aria-pressed", "true")
        await expect(page.get_by_role("alert")).to_contain_text(FOUND["cause"])
        await is_good(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_trace_is_stepped_through_by_keyboard_and_needs_no_network(
    tmp_path: Path, scheme: str, seen: Browser
) -> None:
    file = tmp_path / "trace.html"
    file.write_text(trace_page(lives_of([*crash(), *walk(FLEET, "all")]), [], "a run"))
    async with looking(seen, file.as_uri(), 900, scheme) as page:
        await page.context.set_offline(True)
        await expect(page.locator("#state")).to_have_text("Stopped")
        await page.keyboard.press("Home")
        await expect(page.locator("#state")).to_have_text("Idle")
        for state in ("Locking", "PortBound", "Starting", "Healthy", "Draining"):
            await page.keyboard.press("ArrowRight")
            await expect(page.locator("#state")).to_have_text(state)
            await expect(page.locator(f"[data-state={state}].here")).to_have_count(1)
        await expect(page.locator("path.latest")).to_have_count(1)
        await expect(page.locator(".attempt.bad")).to_contain_text(FOUND["summary"])
        await page.keyboard.press("ArrowLeft")
        await expect(page.locator(".attempt.bad")).to_have_count(0)
        await is_good(page)
        await page.get_by_label("Life", exact=True).select_option("1")
        await expect(page.locator("[data-state=Locking]")).to_have_count(0)
        await page.get_by_label("Record", exact=True).focus()
        await page.keyboard.press("Home")
        await expect(page.locator("#count")).to_have_text(re.compile("^1 of "))
