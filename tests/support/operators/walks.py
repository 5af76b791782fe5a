"""An operator's way through the console in a real browser, looked at on every screen.

``CAUSEWAY_SCREENSHOTS=DIR`` takes a picture of each stop, at each width and in both colours.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

from django.contrib.auth.models import Group, User
from django.db import connection
from playwright.sync_api import Page

from config.apps import Role
from tests.support.browser import CUT_OFF, OVERFLOW, PASSWORD, enter, page_of, set_theme
from tests.support.console import SUBMIT, fingerprint

Answer = TypeVar("Answer")
Screen: TypeAlias = tuple[int, Literal["light", "dark"]]
"""A width in pixels and a theme."""

SUPERUSER: Final = "superuser"
EVERYBODY: Final = (SUPERUSER, *Role)
CUSTOMER_CARE: Final = (SUPERUSER, Role.ADMINISTRATOR, Role.SUPPORT)
MONEY: Final = (SUPERUSER, Role.ADMINISTRATOR, Role.FINANCE)
ADMINISTRATORS: Final = (SUPERUSER, Role.ADMINISTRATOR)
WIDE: Final = 1440
_PICTURES: Final = os.environ.get("CAUSEWAY_SCREENSHOTS", "")
# Colours take no place: where no picture is taken, the narrowest window is looked at in both.
_SCREENS: Final[Sequence[Screen]] = (
    tuple(itertools.product((WIDE, 1024, 390), ("light", "dark")))
    if _PICTURES
    else ((WIDE, "light"), (1024, "light"), (390, "light"), (390, "dark"))
)
# The present tabs that are out of sight, once the page has drawn itself for the window.
_HIDDEN_TABS: Final = """async () => {
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    return [...document.querySelectorAll('.cw-tabs [aria-current]')].filter(tab => {
        const [bar, place] = [tab.parentElement, tab].map(each => each.getBoundingClientRect());
        return place.left < bar.left - 1 || place.right > bar.right + 1;
    }).map(tab => tab.innerText);
}"""
# The names of cells on a phone that are not those of their columns.
_WRONG_NAMES: Final = """() => {
    const heads = [...document.querySelectorAll('#result_list thead th .text')];
    const names = new Set(heads.map(head => head.textContent.trim().toLowerCase()));
    const cells = [...document.querySelectorAll('#result_list .data-row > [data-label]')];
    const own = cells.filter(cell => !cell.matches('.action-checkbox, .field-actions_holder'));
    return own.map(cell => cell.dataset.label).filter(name => !names.has(name.toLowerCase()));
}"""
# A refusal that a story asks for is no complaint of the browser.
_ASKED_FOR: Final = re.compile("status of 40[34]")


class Walk:
    """One operator's way through the console, which is looked at on every screen at each stop.

    ``name`` begins the names of the pictures.
    """

    def __init__(self, page: Page, *, name: str = "") -> None:
        self.page = page
        self.name = name
        self.faults: list[Any] = []

    def look(self, stop: str) -> None:
        """Notes what does not fit at this stop."""
        for width, theme in _SCREENS:
            self.page.set_viewport_size({"width": width, "height": 900})
            set_theme(self.page, theme)
            beyond, cut = self.page.evaluate(OVERFLOW), self.page.evaluate(CUT_OFF)
            hidden = self.page.evaluate(_HIDDEN_TABS)
            names = self.page.evaluate(_WRONG_NAMES)
            if beyond > 0 or cut or hidden or names:
                self.faults.append((stop, width, theme, beyond, cut, hidden, names))
            if _PICTURES:
                name = "-".join(filter(None, (self.name, stop, str(width), theme)))
                self.page.screenshot(path=Path(_PICTURES) / f"{name}.png", full_page=True)
        self.page.set_viewport_size({"width": WIDE, "height": 900})
        set_theme(self.page, "light")

    def said(self) -> str:
        """Returns the message that the last action displayed."""
        return self.page.locator("#main li > div.rounded-default").first.inner_text()

    def find_links(self, *names: str) -> list[str]:
        """Returns the names of links that the page has."""
        role = self.page.get_by_role
        return [name for name in names if role("link", name=name, exact=True).count()]

    def assert_refused(self, path: str, roles: str) -> None:
        """Opens an address and sends it a form; asserts that both are refused in plain English."""
        answer = self.page.goto(path)
        assert answer is not None
        text = " ".join(self.page.locator("main").inner_text().split())
        expected = (
            "Your account may not open this page or do this. Nothing was changed. "
            f"Your roles: {roles}. Ask an administrator if you need another one."
        )
        assert (answer.status, expected in text) == (403, True), (path, answer.status, text)
        token = next(
            each["value"]
            for each in self.page.context.cookies()
            if each["name"].endswith("csrftoken")
        )
        sent = self.page.request.post(path, form={**SUBMIT, "csrfmiddlewaretoken": token})
        plain = " ".join(re.sub("<[^>]*>", "", sent.text()).split())
        assert (sent.status, expected in plain) == (403, True), (path, sent.status, plain)


def ask_database(read: Callable[[], Answer]) -> Answer:
    """Reads in another thread, because the browser's driver runs an event loop in this one."""

    def run() -> Answer:
        try:
            return read()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def assert_refused(walk: Walk, role: str, *paths: str) -> None:
    """Asserts that a role can neither open these addresses nor send them a form."""
    before = ask_database(fingerprint)
    for path in paths:
        walk.assert_refused(path, role)
    assert ask_database(fingerprint) == before


def make_operator(role: Role | None, name: str = "operator") -> User:
    """Returns a new operator with a role, or a superuser."""
    operator = User.objects.create_user(
        name, password=PASSWORD, is_staff=True, is_superuser=role is None
    )
    if role is not None:
        operator.groups.add(Group.objects.get(name=role))
    return operator


def take_walk(
    server: str, operator: User, story: Callable[[Walk], None], *, name: str = ""
) -> list[Any]:
    """Walks a story; returns what the browser complained of, and what did not fit on a screen."""
    with page_of(server) as (page, complaints):
        enter(page, name=operator.get_username())
        path = Walk(page, name=name)
        story(path)
    return [*(each for each in complaints if not _ASKED_FOR.search(each)), *path.faults]
