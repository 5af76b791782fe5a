"""What a caller may see and use, merged from everyone who has a say into one frozen policy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits within which an endpoint may be chosen.

    Providers are named by slug or by display name, in lower case. ``only`` of ``None`` means any
    provider. A request can only tighten: see :meth:`tightened`.
    """

    only: frozenset[str] | None = None
    ignore: frozenset[str] = frozenset()
    zdr: bool = False
    no_training: bool = False

    def tightened(
        self,
        *,
        only: Iterable[str] | None = None,
        ignore: Iterable[str] = (),
        zdr: bool = False,
        no_training: bool = False,
    ) -> Self:
        """Returns the policy further limited: allow-lists intersect, the rest adds up."""
        allowed = self.only
        if only is not None:
            wanted = frozenset(name.lower() for name in only)
            allowed = wanted if allowed is None else allowed & wanted
        return replace(
            self,
            only=allowed,
            ignore=self.ignore | {name.lower() for name in ignore},
            zdr=self.zdr or zdr,
            no_training=self.no_training or no_training,
        )
