"""Renders an event as the body of a webhook, as a chat message and as a mail."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from config.api.text import CONTROL_CHARACTERS
from config.apps import event_kinds

_MAX_SUBJECT: Final = 150
# They turn the text behind them around, so that it reads otherwise than it is written.
_DIRECTIONS: Final = re.compile("[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# Where a chat begins a mention, an address or a link in Markdown. An invisible space ends it.
_SYNTAX: Final = re.compile(r"@(?=\w)|:(?=//)|\](?=\()|(?<=\w)\.(?=[^\W\d_]{2})")
_INVISIBLE: Final = "\u200b"
_FOOTER: Final = (
    "You get this mail because your address is subscribed to these events. An operator of the "
    "service changes that under Webhooks."
)


@dataclass(frozen=True, slots=True)
class WebhookMessage:
    """An event as every receiver gets it; ``id`` is its ``webhook-id``.

    ``organization`` is the name that operators read in chats and mails.
    """

    id: str
    kind: str
    created_at: datetime
    organization_id: str | None
    data: Mapping[str, Any] = field(repr=False)
    organization: str = ""

    @property
    def sentence(self) -> str:
        """The event in one line, without control characters and marks of direction.

        It begins with the name of the organization, unless the event itself names it.
        """
        kind = event_kinds().get(self.kind)
        text = self.kind if kind is None else kind.sentence(self.data)
        if self.organization and "organization" not in self.data:
            text = f"{self.organization}: {text}"
        return _clean(text)


def render_webhook(message: WebhookMessage) -> bytes:
    """Returns the body of a webhook, in the members that Standard Webhooks recommends."""
    return json.dumps(
        {
            "type": message.kind,
            "timestamp": _stamp(message.created_at),
            "organization_id": message.organization_id,
            "data": message.data,
        },
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode()


def render_chat(message: WebhookMessage) -> bytes:
    """Returns the body of a chat message, as Slack, Mattermost and Discord take it.

    A name in it cannot mention a channel, and neither be nor hide a link.
    """
    text = _SYNTAX.sub(rf"\g<0>{_INVISIBLE}", message.sentence)
    for character, escape in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, escape)
    return json.dumps({"text": text}, ensure_ascii=False).encode()


def render_mail(message: WebhookMessage) -> tuple[str, str]:
    """Returns the subject and the text of a mail."""
    subject = f"[Causeway] {message.sentence}"
    if len(subject) > _MAX_SUBJECT:
        subject = f"{subject[: _MAX_SUBJECT - 1]}…"
    lines = [message.sentence, "", *_list_members(message.data), ""]
    lines += [f"Event: {message.kind} at {_stamp(message.created_at)}, {message.id}"]
    if message.organization_id:
        name = f"{message.organization}, " if message.organization else ""
        lines.append(_clean(f"Organization: {name}{message.organization_id}"))
    return subject, "\n".join([*lines, "", _FOOTER, ""])


def _list_members(data: Mapping[str, Any]) -> Iterator[str]:
    for name, value in data.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield f"{name}: {_clean(text)}"


def _clean(text: str) -> str:
    return CONTROL_CHARACTERS.sub(" ", _DIRECTIONS.sub("", text))


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
