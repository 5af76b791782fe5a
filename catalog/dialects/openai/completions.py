"""Parses whole answers of chat and text completions."""

from __future__ import annotations

import msgspec

from catalog.dialects.base import InvalidReply, Reply
from catalog.dialects.openai.choices import (
    add_long_reasoning,
    add_reasoning,
    find_finish_reason,
    measure_choices,
    parse_choices,
)
from catalog.dialects.openai.members import parse_usage, read_text
from catalog.dialects.shared.raw import LONG_BYTES, is_null


def parse_chat(fields: dict[str, msgspec.Raw]) -> Reply:
    """Returns a reply of messages."""
    return _parse(fields, is_text=False)


def parse_text(fields: dict[str, msgspec.Raw]) -> Reply:
    """Returns a reply of texts."""
    return _parse(fields, is_text=True)


def _parse(fields: dict[str, msgspec.Raw], *, is_text: bool) -> Reply:
    choices = parse_choices(fields)
    if not choices:
        raise InvalidReply("The answer has no choices.")
    add = add_long_reasoning if len(fields["choices"]) > LONG_BYTES else add_reasoning
    members = {**fields, "choices": add(fields["choices"])}
    for choice in choices:
        if is_null(choice.text) if is_text else choice.message is None:
            raise InvalidReply("A choice of the answer has no content.")
    return Reply(
        fields=members,
        model=read_text(fields, "model"),
        usage=parse_usage(fields),
        finish_reason=find_finish_reason(choices),
        output_bytes=measure_choices(choices),
        upstream_id=read_text(fields, "id"),
        choices=len(choices),
    )
