from __future__ import annotations

import io
from typing import NoReturn

import pytest
from django.core.management import call_command

from accounts.models import Organization
from billing import ledger
from catalog.pricing import NANO
from inference.models import Generation
from tests.bench.fill.filling import main
from tests.support import factories
from tests.support.database import snapshots
from tests.support.factories import Tenant


class Terminal(io.StringIO):
    """A terminal that interrupts the process when a text appears on it."""

    def __init__(self, last: str) -> None:
        super().__init__()
        self._last = last

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._last in text:
            self._last = "\0"
            _interrupt()
        return super().write(text)


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt


def test_fill_refuses_a_database_with_customers(tenant: Tenant) -> None:
    factories.make_generation(tenant)
    before = snapshots.everything()

    messages = io.StringIO()

    assert main([], messages=messages) == 1

    assert messages.getvalue() == (
        "The database holds organizations already ('Acme'). Demo data goes into an empty database, "
        "or into that of a demo, once.\n"
    )
    assert snapshots.everything() == before


def test_fill_accepts_the_database_of_a_demo_and_shows_its_progress(db: None) -> None:
    organization = Organization.objects.create_organization(name="Demo")
    ledger.grant(organization.pk, 10 * NANO, actor="demo", note="To try things out.")

    terminal = Terminal("\0")

    assert main(["--scale", "0.0001"], output=io.StringIO(), messages=terminal) == 0

    assert Organization.objects.count() == 51
    assert Generation.objects.count() == 100
    call_command("verify_ledger", stdout=io.StringIO(), stderr=io.StringIO())
    lines = [line.removeprefix("\x1b[K") for line in terminal.getvalue().split("\r")]
    assert lines[:4] == [
        "", "the catalogue and the organizations", "private endpoints", "top-ups"
    ]  # fmt: skip
    assert "generations: day 1 of 36" in lines
    assert lines[-2:] == ["balances and sums", ""]


@pytest.mark.parametrize("step", ["private endpoints", "generations: day 20", "balances"])
def test_an_interrupted_fill_stores_nothing(db: None, step: str) -> None:
    before = snapshots.everything()
    terminal = Terminal(step)

    assert main(["--scale", "0.0001"], messages=terminal) == 130

    assert terminal.getvalue().endswith("Stopped. Nothing was changed.\n")
    assert snapshots.everything() == before


@pytest.mark.parametrize("scale", ["0", "-1", "10.1", "NaN", "many"])
def test_fill_refuses_an_invalid_scale(
    db: None, scale: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshots.everything()

    with pytest.raises(SystemExit) as stopped:
        main(["--scale", scale])

    assert stopped.value.code == 2
    assert "argument --scale: must be " in capsys.readouterr().err
    assert snapshots.everything() == before
