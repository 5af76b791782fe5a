"""The policy of a caller: the intersection of all rules that apply to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Self

from config.api.errors import Forbidden
from config.server.regions import GLOBAL


class RegionNotAllowed(Forbidden):
    """A guardrail refuses requests through this host."""

    error_type = "region_not_allowed"


class Fallback(StrEnum):
    """Which public endpoints of a private model a request may use; the strictest comes first.

    ``LISTED`` are those whose provider the request names.
    """

    NONE = "none"
    LISTED = "listed"
    ANY = "any"


_STRICTNESS: Final = {level: place for place, level in enumerate(Fallback)}


def find_strictest(*levels: Fallback | None) -> Fallback | None:
    """Returns the strictest of the levels that are set; ``None`` if none is."""
    return min(
        (one for one in levels if one is not None), key=_STRICTNESS.__getitem__, default=None
    )


def find_level(*levels: Fallback | None) -> Fallback:
    """Returns the level of a private model: the strictest that is set, ``LISTED`` if none is."""
    return find_strictest(*levels) or Fallback.LISTED


class Family(StrEnum):
    """The model families for which zero data retention can be required separately."""

    ANTHROPIC = "anthropic"
    GOOGLE = "google"
    OPENAI = "openai"
    XAI = "xai"
    OTHER = "other"

    @classmethod
    def of(cls, model_slug: str) -> Family:
        """Returns the family of a model by the author in its slug."""
        return _FAMILIES.get(model_slug.partition("/")[0], cls.OTHER)


_FAMILIES: Final = {
    "anthropic": Family.ANTHROPIC,
    "google": Family.GOOGLE,
    "openai": Family.OPENAI,
    "x-ai": Family.XAI,
    "xai": Family.XAI,
}


def author_pattern(slug: str) -> str:
    """Returns the name that lists use for all models of a model's author: ``author/*``."""
    return f"{slug.partition('/')[0]}/*"


# Each empty set that is made takes 216 bytes, and a worker keeps thousands of policies.
_NOTHING: Final[frozenset[Any]] = frozenset()


@dataclass(frozen=True)
class Policy:
    """The rules that an endpoint must satisfy; the empty policy permits every endpoint.

    Providers are named by slug or by display name, in lower case; models by public or canonical
    slug, or as ``author/*``, which names all models of an author. Every allow-list in ``only`` must
    name the provider. For the other allow-lists ``None`` means any. Endpoints of the families in
    ``no_retention``, and with ``no_free_retention`` free ones, must keep nothing; ``zdr`` demands
    the same of the gateway itself. A request must arrive through a host of ``ingress_regions`` and
    be served in one of ``served_in``. ``fallback`` is the level of organization, workspace and
    guardrails for private models; ``None`` if none of them is set.

    ``a & b`` permits what both permit: ``only`` collects the allow-lists of both, other allow-lists
    intersect, and everything else is united. The operation commutes, and each further policy can
    only tighten the result, except that ``fallback: any`` loosens the level of private models while
    no other is set.
    """

    only: frozenset[frozenset[str]] = frozenset()
    ignore: frozenset[str] = frozenset()
    models: frozenset[str] | None = None
    ignored_models: frozenset[str] = frozenset()
    zdr: frozenset[Family] = frozenset()
    no_retention: frozenset[Family] = frozenset()
    no_free_retention: bool = False
    no_training: bool = False
    no_free_training: bool = False
    ingress_regions: frozenset[str] | None = None
    served_in: frozenset[str] | None = None
    fallback: Fallback | None = None

    @classmethod
    def of(
        cls,
        *,
        only: Iterable[str] | None = None,
        ignore: Iterable[str] | None = None,
        models: Iterable[str] | None = None,
        ignored_models: Iterable[str] | None = None,
        zdr: bool | Iterable[Family] = False,
        no_retention: Iterable[Family] = (),
        no_free_retention: bool = False,
        no_training: bool = False,
        no_free_training: bool = False,
        ingress_regions: Iterable[str] | None = None,
        served_in: str | None = None,
        fallback: str | None = None,
    ) -> Self:
        """Returns the policy of lists and flags; ``zdr=True`` stands for every family."""
        families = Family if zdr is True else zdr or ()
        return cls(
            only=_NOTHING if only is None else frozenset((frozenset(map(str.lower, only)),)),
            ignore=frozenset(map(str.lower, ignore)) if ignore else _NOTHING,
            models=None if models is None else frozenset(models),
            ignored_models=frozenset(ignored_models) if ignored_models else _NOTHING,
            zdr=frozenset(families) if families else _NOTHING,
            no_retention=frozenset(no_retention) or _NOTHING,
            no_free_retention=no_free_retention,
            no_training=no_training,
            no_free_training=no_training or no_free_training,
            ingress_regions=None if ingress_regions is None else frozenset(ingress_regions),
            served_in=None if served_in is None else frozenset((served_in,)),
            fallback=None if fallback is None else Fallback(fallback),
        )

    def __and__(self, other: Policy) -> Policy:
        if self == _OPEN:
            return other
        if other == _OPEN:
            return self
        return Policy(
            only=self.only | other.only,
            ignore=self.ignore | other.ignore,
            models=_both_models(self.models, other.models),
            ignored_models=self.ignored_models | other.ignored_models,
            zdr=self.zdr | other.zdr,
            no_retention=self.no_retention | other.no_retention,
            no_free_retention=self.no_free_retention or other.no_free_retention,
            no_training=self.no_training or other.no_training,
            no_free_training=self.no_free_training or other.no_free_training,
            ingress_regions=_both(self.ingress_regions, other.ingress_regions),
            served_in=_both(self.served_in, other.served_in),
            fallback=find_strictest(self.fallback, other.fallback),
        )

    @property
    def size(self) -> int:
        """The names of models and providers in its lists."""
        lists = (*self.only, self.ignore, self.models or (), self.ignored_models)
        return sum(map(len, lists))

    @cached_property
    def is_open(self) -> bool:
        """Returns whether the policy permits every endpoint."""
        return self == _OPEN


_OPEN: Final = Policy()


def require_ingress_region(policy: Policy, region: str | None) -> None:
    """Raises :class:`RegionNotAllowed` unless the policy admits requests to a region's hosts.

    ``None`` is the region of every other host; guardrails name it ``global``.
    """
    ingress_region = region or GLOBAL
    if policy.ingress_regions is None or ingress_region in policy.ingress_regions:
        return
    allowed = sorted(policy.ingress_regions)
    hosts = f"{', '.join(allowed)} hosts alone" if allowed else "no host at all"
    raise RegionNotAllowed(
        f"region_not_allowed: a guardrail lets this key in through {hosts}, and the request came "
        f"through a {ingress_region} one.",
        metadata={"region": ingress_region, "allowed_data_regions": allowed},
    )


def _both(mine: frozenset[str] | None, theirs: frozenset[str] | None) -> frozenset[str] | None:
    if mine is None:
        return theirs
    return mine if theirs is None else mine & theirs


def _both_models(
    mine: frozenset[str] | None, theirs: frozenset[str] | None
) -> frozenset[str] | None:
    """Returns the names of one list that the other list names too, itself or by its author."""
    if mine is None:
        return theirs
    if theirs is None:
        return mine
    return (
        (mine & theirs)
        | {name for name in mine if author_pattern(name) in theirs}
        | {name for name in theirs if author_pattern(name) in mine}
    )
