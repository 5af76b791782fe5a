"""Writes a request as an endpoint states that it reads one: its roles, its texts, its switch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Any, Final, get_args

import msgspec

from catalog.abilities import BUDGETS, Abilities, Effort, Reasoning
from catalog.dialects.base import Untranslatable, read_count
from catalog.dialects.shared.raw import decode_list, decode_members, first_byte, read_text

# The efforts from the least thinking to the most.
_EFFORTS: Final[tuple[str, ...]] = get_args(Effort)
# The efforts that every server with efforts knows.
_COMMON: Final = ("low", "medium", "high")
_SYSTEM: Final = frozenset(("system", "developer"))
_LEAD: Final = "\n\n"
# The fields that say how many tokens a thought may have.
_NUMBERS: Final = frozenset(("thinking_budget", "reasoning"))
# The member of a message that sets another effort than the request does.
UPDATE: Final = "configuration_update"
_UPDATED: Final = re.compile(rb'"configuration_update"')
# No thought is longer, as no answer is.
_MOST_THOUGHT: Final = 100_000_000
_encode = msgspec.json.Encoder().encode


class Wish(msgspec.Struct):
    """The thinking that a caller asks for: an effort or a number of tokens, on or off."""

    effort: str | None = None
    max_tokens: int | None = None
    enabled: bool | None = None

    @property
    def is_on(self) -> bool | None:
        """Whether the model shall think; ``None`` leaves it to the model."""
        if self.enabled is False or self.effort == "none":
            return False
        asks = self.enabled or self.effort is not None or self.max_tokens is not None
        return True if asks else None


_decode_reasoning = msgspec.json.Decoder(Wish | None).decode


class _Numbers(msgspec.Struct):
    thinking_budget: Any = None
    reasoning: Any = None


_decode_numbers = msgspec.json.Decoder(_Numbers).decode


def read_wish(fields: Mapping[str, Any]) -> Wish:
    """Returns the thinking that the fields of a request ask for; raises :class:`Untranslatable`."""
    options = decode_wish(fields.get("reasoning")) or Wish()
    if (effort := read_text(fields.get("reasoning_effort"))) is not None:
        options.effort = options.effort or effort
    return options


def decode_wish(reasoning: Any) -> Wish | None:
    """Decodes the member ``reasoning`` of a request; raises :class:`Untranslatable`."""
    try:
        options: Wish | None = _decode_reasoning(_encode(reasoning))
    except (msgspec.DecodeError, RecursionError):
        raise Untranslatable("The reasoning of the request has an unexpected shape.") from None
    return options


def settle_effort(fields: dict[str, Any]) -> bool:
    """Gives a request the last effort that its messages set; returns whether they set one.

    The messages lose it, because servers of this format do not know the member.
    """
    given = fields.get("messages", b"")
    # They are decoded already where names of functions were fitted.
    raw = given if isinstance(given, bytes | msgspec.Raw) else _encode(given)
    if not _UPDATED.search(raw):
        return False
    messages = decode_list(msgspec.Raw(raw)) or []
    updates = [decode_members(each.pop(UPDATE)) or {} for each in messages if UPDATE in each]
    options = [decode_members(update.get("reasoning")) or {} for update in updates]
    efforts = [effort for each in options if (effort := read_text(each.get("effort")))]
    fields["messages"] = messages
    if efforts:
        fields.pop("reasoning", None)
        fields["reasoning_effort"] = msgspec.Raw(_encode(efforts[-1]))
    return bool(efforts)


def has_word(wish: Wish, stated: Reasoning, listed: Set[str] | None) -> bool:
    """Returns whether an endpoint is told of the thinking that a caller asks for, or refuses it.

    ``listed`` are the parameters that it lists, or ``None`` without a list.
    """
    if stated.switch == "none":
        return wish.is_on is False or (wish.effort is None and wish.max_tokens is None)
    if stated.switch is not None or listed is None:
        return True
    return "reasoning_effort" in listed or "reasoning" not in listed


def write_switch(fields: dict[str, Any], wish: Wish, stated: Reasoning) -> None:
    """Writes the thinking that a caller asks for in the endpoint's own member.

    Raises :class:`Untranslatable` if it shall not think, and cannot be told so.
    """
    is_on = wish.is_on
    if is_on is None:
        return
    match stated.switch:
        case "reasoning_effort":
            if (effort := fit_effort(wish, stated.efforts)) is not None:
                fields["reasoning_effort"] = effort
        case "thinking.type":
            fields["thinking"] = {"type": "enabled" if is_on else "disabled"}
        case "enable_thinking":
            fields["enable_thinking"] = is_on
        case "thinking_budget":
            if not is_on:
                fields["thinking_budget"] = 0
            elif (budget := wish.max_tokens or BUDGETS.get(wish.effort or "")) is not None:
                fields["thinking_budget"] = budget
        case "none":
            if not is_on:
                raise Untranslatable("reasoning: The thinking of this model cannot be turned off.")


def find_budget(
    fields: Mapping[str, Any], stated: Reasoning, listed: Set[str] | None
) -> int | None:
    """Returns the most tokens of a thought that an endpoint is sent; ``None`` without a number.

    ``listed`` are the parameters that it lists, or ``None`` without a list: ``reasoning`` itself is
    sent without one alone, and where no switch takes its place. A number below zero says nothing:
    some providers take -1 for a thought of any length.
    """
    sent = {name: fields[name] for name in _NUMBERS & fields.keys()}
    if stated.switch is not None or listed is not None:
        sent.pop("reasoning", None)
    try:
        if stated.switch is not None:
            settled = {**fields}
            settle_effort(settled)
            write_switch(sent, read_wish(settled), stated)
        told = _decode_numbers(_encode(sent))
    except (Untranslatable, msgspec.DecodeError):
        return None  # refused, or not a number
    nested = told.reasoning.get("max_tokens") if isinstance(told.reasoning, dict) else None
    counts = map(read_count, (told.thinking_budget, nested))
    most = max((each for each in counts if each is not None), default=None)
    return None if most is None else min(most, _MOST_THOUGHT)


def choose_effort(wish: Wish) -> str | None:
    """Returns the effort that a caller asks for; ``None`` leaves it to the model.

    A number of tokens becomes the effort with the closest number of thinking tokens.
    """
    if wish.enabled is False:
        return "none"
    tokens = wish.max_tokens
    if wish.effort or tokens is None:
        return wish.effort or None
    return min(_COMMON, key=lambda effort: abs(BUDGETS[effort] - tokens))


def fit_effort(wish: Wish, efforts: tuple[str, ...] | None) -> str | None:
    """Returns the effort that an endpoint knows: the highest one up to what the caller asks for.

    Raises :class:`Untranslatable` if a model shall not think that always does.
    """
    wanted = choose_effort(wish)
    if wanted is None or not efforts or wanted not in _EFFORTS:
        return wanted
    if wanted == "none" and "none" not in efforts:
        raise Untranslatable("reasoning: The thinking of this model cannot be turned off.")
    most = _EFFORTS.index(wanted)
    known = [each for each in _EFFORTS if each in efforts and (each != "none" or wanted == each)]
    return next((each for each in reversed(known) if _EFFORTS.index(each) <= most), known[0])


def shape_messages(fields: dict[str, Any], abilities: Abilities) -> None:
    """Writes messages with the roles and the texts that an endpoint reads.

    Where it knows one system message alone, or no developer, the leading ones become one text.
    Later ones keep their place, as the user's if no later system message may stand there.
    """
    roles = abilities.roles
    is_joined = roles.developer is False or roles.later_system is False
    if not (is_joined or abilities.string_content):
        return
    if (messages := decode_list(fields.get("messages"))) is None:
        return
    if is_joined:
        lead = 0
        while lead < len(messages) and read_text(messages[lead].get("role")) in _SYSTEM:
            lead += 1
        texts = [_join_texts(each.get("content")) for each in messages[:lead]]
        if lead and None not in texts:
            joined = _LEAD.join(filter(None, texts))
            messages[:lead] = [{"role": "system", "content": joined}]
        for message in messages[1:]:
            if read_text(message.get("role")) in _SYSTEM:
                name = "user" if roles.later_system is False else "system"
                message["role"] = name
    for message in messages if abilities.string_content else ():
        if first_byte(message.get("content")) == b"[":
            text = _join_texts(message["content"])
            if text is not None:
                message["content"] = text
    fields["messages"] = messages


def _join_texts(content: Any) -> str | None:
    """Returns the text of a content; ``None`` if it holds anything else."""
    if first_byte(content) == b'"':
        return read_text(content)
    parts = decode_list(content)
    if parts is None:
        return None
    texts = [read_text(part.get("text")) for part in parts]
    return None if None in texts else "".join(text or "" for text in texts)
