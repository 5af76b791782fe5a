"""The page of events names every kind, and its sample verifies what the service signs."""

from __future__ import annotations

import json
import time

import pytest

from accounts.webhooks import delivering, dispatching, signing
from accounts.webhooks.models import choosable_kinds
from config.apps import event_kinds
from config.local.bootstrap import PROJECT
from tests.support.markdown import PYTHON, read_blocks

PAGE = PROJECT / "docs" / "events.md"


def render_table() -> str:
    """Returns the table of kinds; a kind of its own is sent to one receiver alone."""
    own = {kind.name for kind in choosable_kinds(by_operators=False)}
    lines = ["| kind | when | to | data |", "|---|---|---|---|"]
    for kind in event_kinds().values():
        to = "the receiver itself" if kind.direct else "operators"
        to = "all" if kind.name in own else to
        data = ", ".join(map(render_member, kind.sample.items()))
        lines.append(f"| `{kind.name}` | {kind.description} | {to} | {data} |")
    return "\n".join(lines)


def render_member(member: tuple[str, object]) -> str:
    """Returns the name of a member, with those of its items where it is a list of objects."""
    match member:
        case name, [dict() as item, *_]:
            return f"`{name}[{','.join(item)}]`"
        case name, _:
            return f"`{name}`"


def test_the_table_has_every_kind_and_its_data() -> None:
    assert render_table() in PAGE.read_text()


def test_the_message_of_the_page_is_a_sample() -> None:
    [block] = read_blocks(PAGE, "json")
    message = json.loads(block.text)
    assert message["data"] == event_kinds()[message["type"]].sample


def test_the_sample_verifies_what_the_service_signs() -> None:
    [block] = read_blocks(PAGE, PYTHON)
    names: dict[str, object] = {}
    exec(block.text, names)
    verify = names["verify"]
    assert callable(verify)
    old, new = signing.make_secret(), signing.make_secret()
    body = b'{"type":"webhook.test"}'
    headers = signing.sign([new, old], message_id="1", timestamp=int(time.time()), body=body)
    for secret in (old, new):
        verify(secret.reveal(), headers, body)
    with pytest.raises(ValueError, match="not ours"):
        verify(signing.make_secret().reveal(), headers, body)
    with pytest.raises(ValueError, match="not ours"):
        verify(new.reveal(), headers, body + b" ")
    late = signing.sign([new], message_id="1", timestamp=int(time.time()) - 301, body=body)
    with pytest.raises(ValueError, match="old"):
        verify(new.reveal(), late, body)


def test_the_page_says_the_pauses_and_limits() -> None:
    text = " ".join(PAGE.read_text().split())
    pauses = ["5 s", "1 min", "5 min", "30 min", "2 h", "5 h", "10 h", "14 h", "18 h", "24 h"]
    seconds = {"s": 1, "min": 60, "h": 3600}
    said = [int(number) * seconds[unit] for number, unit in (each.split() for each in pauses)]
    assert tuple(said) == delivering._PAUSES
    assert f"{', '.join(pauses[:-1])} and {pauses[-1]}" in text
    assert (dispatching.HOURLY["email"], dispatching.HOURLY["webhook"]) == (20, 1_000)
