"""The declaration of a kind of event; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_NAME: Final = re.compile(r"[a-z_]+\.[a-z_]+")


@dataclass(frozen=True, slots=True)
class EventKind:
    """A kind of event, such as ``endpoint.activated``.

    ``description`` says when it happens. ``text`` is the sentence of mails and chat messages; its
    places are names of the data.
    ``sample`` has the data of an example: every event of the kind has the same names.
    ``for_operators`` kinds are never sent to organizations. A ``direct`` kind is sent to the one
    subscription that it is about, and cannot be chosen.
    """

    name: str
    description: str
    text: str
    sample: Mapping[str, Any]
    for_operators: bool = False
    direct: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not of the form subject.verb")
        self.text.format_map(self.sample)

    def require_names(self, data: Mapping[str, Any]) -> None:
        """Raises ``ValueError`` for data with other names than the sample."""
        if data.keys() != self.sample.keys():
            raise ValueError(f"{self.name} has {sorted(self.sample)}, and not {sorted(data)}")

    def sentence(self, data: Mapping[str, Any]) -> str:
        """Returns the sentence of an event; an earlier release may have stored other names."""
        try:
            return self.text.format_map(data)
        except KeyError:
            return self.name
