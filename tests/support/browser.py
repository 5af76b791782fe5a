"""A real browser over the whole service, and how an operator uses its dialogs and lists."""

from __future__ import annotations

import asyncio
import sys
from asyncio import AbstractEventLoop, _set_running_loop
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import pytest
from playwright.sync_api import Browser, Error, Page, Playwright, sync_playwright

CHROMIUM: Final = Path("/usr/bin/chromium")
PASSWORD: Final = "a long enough password"
# How often a shortcut is pressed until the page hears it.
_MOST_KEYS: Final = 6
OVERFLOW: Final = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# What lies beyond the right edge and cannot be scrolled to: each is named by tag and class.
CUT_OFF: Final = """() => [...document.querySelectorAll('#main *')].filter(element => {
    const place = element.getBoundingClientRect();
    if (!place.width || !place.height || place.right <= innerWidth + 1) return false;
    for (let above = element.parentElement; above; above = above.parentElement) {
        if (['auto', 'scroll'].includes(getComputedStyle(above).overflowX)) return false;
    }
    return true;
}).map(element => element.tagName + '.' + element.className)"""
MARKS: Final = (
    # An alarm in the middle of the driver's event loop would leave every later test waiting for
    # ever, so a test that hangs ends its process.
    pytest.mark.timeout(600, method="thread"),
    # WhiteNoise hands its files to an asynchronous server by a synchronous iterator.
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous:Warning"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Debian's chromium"),
)
_ARGUMENTS: Final = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
)  # fmt: skip


_RULES: Final = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}


class Chromium(NamedTuple):
    """The browser of this process, and the event loop that its driver runs in this thread."""

    driver: Playwright
    browser: Browser
    loop: AbstractEventLoop


@cache
def _start_chromium() -> Chromium:
    driver = sync_playwright().start()
    browser = driver.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
    return Chromium(driver, browser, asyncio.get_running_loop())


@contextmanager
def _use_chromium() -> Iterator[Chromium]:
    """Yields the browser, which a process starts once: to start it costs more than a page.

    Its event loop stands still outside of this, so that nothing else takes it for a running one.
    """
    chromium = _start_chromium()
    _set_running_loop(chromium.loop)
    try:
        yield chromium
    finally:
        sys.set_asyncgen_hooks(None, None)
        _set_running_loop(None)


def end_chromium() -> None:
    """Ends the browser of this process, if it has one."""
    if _start_chromium.cache_info().currsize:
        with _use_chromium() as chromium:
            chromium.browser.close()
            chromium.driver.stop()
        _start_chromium.cache_clear()


@contextmanager
def page_of(server: str, *, width: int = 1440, **options: Any) -> Iterator[tuple[Page, list[str]]]:
    """Opens a page that shares nothing with others; yields it and what it complained of.

    These are errors of its scripts and requests to other hosts. The database cannot be used
    inside: the driver runs an event loop in this thread.
    """
    complaints: list[str] = []

    def complain(text: str, *, when: bool = True) -> None:
        if when:
            complaints.append(text)

    with _use_chromium() as chromium:
        viewport = {"width": width, "height": 900}
        page = chromium.browser.new_page(base_url=server, viewport=viewport, **options)
        page.set_default_timeout(60_000)
        page.on("console", lambda said: complain(said.text, when=said.type in ("error", "warning")))
        page.on("pageerror", lambda error: complain(str(error)))
        page.on(
            "request",
            lambda request: complain(request.url, when=not request.url.startswith(server)),
        )
        try:
            yield page, complaints
        finally:
            page.context.close()


def log_in(page: Page, *, name: str = "operator", code: str = "") -> None:
    """Enters as an operator, with the code of an app where one was set up."""
    page.goto("/admin/login/?next=/admin/")
    page.fill("#id_username", name)
    page.fill("#id_password", PASSWORD)
    page.fill("#id_otp_token", code)
    page.click("button[type=submit]")
    page.wait_for_url("**/admin/")


def enter(page: Page, *, name: str = "operator") -> None:
    """Signs an operator in without drawing the form and the first page, which cost a second."""
    path = "/admin/login/"
    page.request.get(path)
    [token] = [each["value"] for each in page.context.cookies() if "csrftoken" in each["name"]]
    form = {"username": name, "password": PASSWORD, "csrfmiddlewaretoken": token}
    answer = page.request.post(path, form=form, max_redirects=0)
    assert answer.status == 302, answer.text()


def browse(server: str, visit: Callable[[Page], None], *, width: int = 1440) -> list[str]:
    """Signs in, makes the visit, and returns what the browser complained of."""
    with page_of(server, width=width) as (page, complaints):
        enter(page)
        visit(page)
    return complaints


def press(page: Page, name: str) -> None:
    """Sends a form by the button of this name."""
    with page.expect_navigation():
        page.get_by_role("button", name=name, exact=True).click()


def open_search(page: Page) -> None:
    """Opens the field that finds anything; a key that Alpine does not listen to yet is lost."""
    page.wait_for_function(
        "[...document.querySelectorAll('[x-data]')].every(each => each._x_dataStack)"
    )
    field = page.locator("#search-input-command:focus")
    # The first Escape only empties it.
    if field.is_visible():
        return
    # Django puts the cursor into the first field of a new row, where the keys are the field's.
    page.evaluate("document.activeElement.blur()")
    for _ in range(_MOST_KEYS):
        page.keyboard.press("Control+k")
        with suppress(Error):
            field.wait_for(timeout=5_000)
            return
    field.wait_for()


def submit_dialog(page: Page, title: str, **fields: str) -> None:
    """Opens the dialog of an action, fills in its fields, and sends it."""
    page.get_by_role("link", name=title, exact=False).first.click()
    for name, value in fields.items():
        page.locator(f"#dialog [name={name}]").fill(value)
    with page.expect_navigation():
        page.locator("#dialog button[type=submit]").click()


def choose(page: Page, field: str, name: str) -> None:
    """Searches a list for the first word of a name, and takes what has this name."""
    page.locator(f"#id_{field} + .select2-container").click()
    page.locator(".select2-search__field").press_sequentially(name.split()[0])
    page.get_by_role("option", name=name, exact=True).click()


def is_file(page: Page, path: str) -> bool:
    """Returns whether an address answers with a file, which a browser does not show."""
    return "attachment" in page.request.get(path).headers.get("content-disposition", "")


def set_theme(page: Page, theme: Literal["light", "dark"]) -> None:
    """Shows a page in light or dark colours; the console's script reads the setting once."""
    page.emulate_media(color_scheme=theme)
    page.evaluate(
        "theme => document.documentElement.classList.toggle('dark', theme === 'dark')", theme
    )


def find_faults(page: Page, *, inside: str = "body", but: str = "") -> list[str]:
    """Returns the serious and critical findings of axe-core in the light and the dark colours."""
    place: dict[str, Any] = {"include": [[inside]], "exclude": [[but]] if but else []}
    found = []
    themes: tuple[tuple[Literal["light", "dark"], Any], ...] = (
        ("light", _RULES),
        ("dark", ["color-contrast"]),
    )
    for theme, rules in themes:
        set_theme(page, theme)
        options = {"resultTypes": ["violations"], "runOnly": rules}
        page.evaluate(_read_axe())
        run = "async ([place, options]) => (await axe.run(place, options)).violations"
        results = page.evaluate(run, [place, options])
        found += [
            f"{theme} {rule['id']} {node['target'][0]}: {node['failureSummary']}"
            for rule in results
            for node in rule["nodes"]
            if node["impact"] in ("serious", "critical")
        ]
    return found


@cache
def _read_axe() -> str:
    """Returns the script of axe-core, which a package for Playwright carries."""
    found = find_spec("axe_playwright_python")
    assert found is not None, "axe-core is missing: run `python3 manage.py test --version`."
    return Path(str(found.origin)).with_name("axe.min.js").read_text()
