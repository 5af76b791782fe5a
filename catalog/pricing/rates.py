"""The rates of a price as integers, and the quantities of a usage to which they apply.

Integers of a common power of ten are exact, and cheaper than decimals.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Final, NamedTuple

from catalog.pricing.rules import KINDS, Billable, Conditions, RateKind, Rule
from catalog.pricing.sizes import read_sizes
from catalog.pricing.usage import Usage

EXACT: Final = Context(prec=160)
_PLACE: Final = {kind.name: place for place, kind in enumerate(KINDS)}
(
    _PROMPT, _COMPLETION, _READ, _WRITE, _WRITE_1H, _AUDIO, _AUDIO_CACHED, _IMAGE_PROMPT,
    _CITATION, _REASONING, _RESEARCH, _AUDIO_OUTPUT, _IMAGE_TOKENS, _IMAGE_INPUT, IMAGE, SEARCH,
    _SEARCHED, _UNASKED, SECOND, _CHARACTER, REQUEST,
) = range(len(KINDS))  # fmt: skip
PROMPT_PLACES: Final = frozenset(
    (_PROMPT, _READ, _WRITE, _WRITE_1H, _AUDIO, _AUDIO_CACHED, _IMAGE_PROMPT)
)
COMPLETION_PLACES: Final = frozenset((_COMPLETION, _REASONING, _AUDIO_OUTPUT, _IMAGE_TOKENS))
# The parts of sound and of pictures that a request sends; a model may draw without being asked.
_MEDIA_PLACES: Final = frozenset((_AUDIO, _AUDIO_CACHED, _IMAGE_PROMPT, _AUDIO_OUTPUT))
SEARCH_PLACES: Final = frozenset((SEARCH, _SEARCHED, _UNASKED))
# The tokens that stand beside prompt and completion, and whose cost is a part of theirs.
BESIDE_PROMPT: Final = frozenset((_CITATION,))
BESIDE_COMPLETION: Final = frozenset((_RESEARCH,))
# A rate per second is applied to milliseconds.
_MILLI: Final = 3

Name = tuple[Billable, str]


class Rates(NamedTuple):
    """The rates that apply together, in USD times ten to the power of the price's scale.

    ``rates`` has one for each of ``KINDS``; that of seconds is the rate of a millisecond.
    ``variants`` are the rates of images by size and quality.
    """

    rates: tuple[int, ...]
    variants: Mapping[str, int]

    def of_image(self, variant: str) -> int:
        """Returns the rate of an image of this size and quality.

        A list may tell apart only sizes or only qualities: the rate of a part of the variant then
        applies. A variant that states only one of both means the dearest that has it, and one that
        may be of several tiers the dearest of these.
        """
        if not self.variants:
            return self.rates[IMAGE]
        if variant in self.variants:
            return self.variants[variant]
        stated = frozenset(variant.split("/")) - {""}
        listed = {name: frozenset(name.split("/")) for name in self.variants}
        known = frozenset(word for parts in listed.values() for word in parts)
        rates = []
        for words in read_sizes(stated, known):
            found = [self.variants[name] for name, parts in listed.items() if parts <= words]
            if not found and words:
                found = [self.variants[name] for name, parts in listed.items() if parts >= words]
            rates.append(max(found, default=self.rates[IMAGE]))
        return max(rates)


class RateCeilings(NamedTuple):
    """The highest rates that can apply to a request, in USD times ten to the power of the scale.

    Prompt and completion have the highest rate of all their parts, ``text`` and ``answer`` that of
    the parts that a request has which neither sends nor asks for sound. ``is_image_fixed`` says
    that no condition decides which rate a size and quality has.
    """

    prompt: int
    completion: int
    text: int
    answer: int
    request: int
    rates: Rates
    is_image_fixed: bool

    def of_pieces(self, allowed: Usage, *, images: int) -> int:
        """Returns the highest cost of what is not counted in tokens.

        Without a known size and quality, or with rates under conditions, an image counts as the
        dearest one.
        """
        rates, variants = self.rates
        image = rates[IMAGE]
        if allowed.image_variant and self.is_image_fixed:
            image = self.rates.of_image(allowed.image_variant)
        elif variants:
            image = max(image, *variants.values())
        return (
            rates[_IMAGE_INPUT] * images + rates[SEARCH] * allowed.searches
            + rates[_SEARCHED] * bool(allowed.searches) + rates[_UNASKED] * allowed.searches
            + rates[_CITATION] * allowed.citations + rates[_RESEARCH] * allowed.research
            + rates[SECOND] * allowed.milliseconds + rates[_CHARACTER] * allowed.characters
            + image * allowed.output_images
        )  # fmt: skip


def find_quantities(usage: Usage) -> list[tuple[int, int]]:
    """Returns the places of ``KINDS`` that a usage has, each with its quantity.

    A part is never more than what its total leaves, so the parts add up to the total. One request
    is one unit.
    """
    found = [(REQUEST, 1)]
    prompt, completion = usage.prompt, usage.completion
    if (
        usage.cached or usage.cache_write or usage.cache_write_1h or usage.audio
        or usage.image_prompt
    ):  # fmt: skip
        left = prompt
        read = min(usage.cached, left)
        left -= read
        for place, part in ((_WRITE, usage.cache_write), (_WRITE_1H, usage.cache_write_1h)):
            found.append((place, part := min(part, left)))
            left -= part
        audio_cached = min(usage.audio_cached, usage.audio, read)
        found += ((_READ, read - audio_cached), (_AUDIO_CACHED, audio_cached))
        for place, part in (
            (_AUDIO, usage.audio - audio_cached), (_IMAGE_PROMPT, usage.image_prompt),
        ):  # fmt: skip
            found.append((place, part := min(part, left)))
            left -= part
        prompt = left
    if usage.image_output or usage.audio_output or usage.reasoning:
        for place, part in (
            (_IMAGE_TOKENS, usage.image_output), (_AUDIO_OUTPUT, usage.audio_output),
            (_REASONING, usage.reasoning),
        ):  # fmt: skip
            found.append((place, part := min(part, completion)))
            completion -= part
    found += ((_PROMPT, prompt), (_COMPLETION, completion))
    if (
        usage.images or usage.searches or usage.milliseconds or usage.characters
        or usage.output_images or usage.citations or usage.research
    ):  # fmt: skip
        found += (
            (_IMAGE_INPUT, usage.images), (SEARCH, usage.searches),
            (_SEARCHED, int(bool(usage.searches))), (_UNASKED, usage.searches),
            (_CITATION, usage.citations), (_RESEARCH, usage.research),
            (SECOND, usage.milliseconds),
            (_CHARACTER, usage.characters), (IMAGE, usage.output_images),
        )  # fmt: skip
    return found


class RateTable:
    """The rates of a price under every combination of its conditions; made once for a price.

    ``base`` are the decimals of the price without conditions by kind, those of images by variant
    too, ``rules`` its rules with conditions, in order. ``factor`` is what a discount leaves.
    """

    __slots__ = (
        "_base", "_by_conditions", "_ceilings", "_conditions", "_factor", "_rules", "_thresholds",
        "has_time", "plain", "scale",
    )  # fmt: skip

    def __init__(
        self, base: Mapping[Name, Decimal], rules: Sequence[Rule], factor: Decimal
    ) -> None:
        self._base = base
        self._rules = rules
        self._factor = factor
        self.scale = self._find_scale()
        conditions = dict.fromkeys(rule.conditions for rule in rules if rule.conditions)
        self._conditions: tuple[Conditions, ...] = tuple(conditions)
        self.has_time = any(each.has_time for each in self._conditions)
        self._by_conditions: dict[tuple[bool, ...], Rates] = {}
        self._thresholds = sorted(
            {each.min_prompt_tokens or 0 for each in self._conditions if each.min_prompt_tokens}
        )
        self._ceilings: dict[int, RateCeilings] = {}
        # The rates of a price without conditions.
        self.plain = None if self._conditions else self._resolve(base)

    def find_rates(self, prompt_tokens: int, at: int | None) -> Rates:
        """Returns the rates for a prompt at an instant, in Unix seconds."""
        if self.plain is not None:
            return self.plain
        if at is None and self.has_time:
            raise ValueError("The price depends on the instant of the request.")
        held = tuple(each.hold(prompt_tokens, at or 0) for each in self._conditions)
        found = self._by_conditions.get(held)
        if found is None:
            holding = {each for each, holds in zip(self._conditions, held, strict=True) if holds}
            applied = {rule.name: rule.price for rule in self._rules if rule.conditions in holding}
            found = self._by_conditions[held] = self._resolve({**self._base, **applied})
        return found

    def find_ceilings(self, prompt_tokens: int) -> RateCeilings:
        """Returns the highest rates, at any time, for a prompt of at most ``prompt_tokens``."""
        place = bisect_left(self._thresholds, prompt_tokens)
        found = self._ceilings.get(place)
        if found is None:
            found = self._ceilings[place] = self._find_ceilings(prompt_tokens)
        return found

    def find_highest(self, name: Name, prompt_tokens: int) -> Decimal:
        """Returns the highest rate of a kind in USD, at any time, for such a prompt."""
        rate = self.find_ceilings(prompt_tokens).rates.rates[_PLACE[name]]
        return Decimal(rate).scaleb(-self.scale, EXACT)

    def _find_ceilings(self, prompt_tokens: int) -> RateCeilings:
        possible = [
            rule
            for rule in self._rules
            if rule.conditions is not None
            and (
                rule.conditions.min_prompt_tokens is None
                or rule.conditions.min_prompt_tokens < prompt_tokens
            )
        ]
        highest = [self._resolve(self._base)]
        # A rate without a rule of its own follows another kind, so any rule may raise it.
        for rule in possible:
            highest.append(self._resolve({**self._base, rule.name: rule.price}))
        rates = tuple(map(max, zip(*(each.rates for each in highest), strict=True)))
        variants = {
            name: max(each.of_image(name) for each in highest)
            for name in dict.fromkeys(name for each in highest for name in each.variants)
        }
        return RateCeilings(
            prompt=max(rates[place] for place in PROMPT_PLACES),
            completion=max(rates[place] for place in COMPLETION_PLACES),
            text=max(rates[place] for place in PROMPT_PLACES - _MEDIA_PLACES),
            answer=max(rates[place] for place in COMPLETION_PLACES - _MEDIA_PLACES),
            request=rates[REQUEST],
            rates=Rates(rates, variants),
            is_image_fixed=not any(rule.billable is Billable.IMAGE for rule in possible),
        )

    def _find_scale(self) -> int:
        """Returns the least power of ten that makes an integer of every rate."""
        amounts = [*self._base.values(), *(rule.price for rule in self._rules)]
        has_seconds = any(name[0] is Billable.SECOND for name in self._names())
        return max(map(self._count_decimals, amounts), default=0) + _MILLI * has_seconds

    def _names(self) -> Iterable[Name]:
        yield from self._base
        yield from (rule.name for rule in self._rules)

    def _count_decimals(self, amount: Decimal) -> int:
        exponent = EXACT.multiply(amount, self._factor).normalize(EXACT).as_tuple().exponent
        return max(-int(exponent), 0)

    def _scale_up(self, amount: Decimal, kind: RateKind) -> int:
        scale = self.scale - _MILLI if kind.billable is Billable.SECOND else self.scale
        return int(EXACT.multiply(amount, self._factor).scaleb(scale, EXACT))

    def _resolve(self, amounts: Mapping[Name, Decimal]) -> Rates:
        """Returns the rates of all kinds: a kind without one has that of another."""
        rates = []
        for kind in KINDS:
            names = (kind.name, *kind.otherwise)
            amount = next((amounts[name] for name in names if name in amounts), Decimal(0))
            rates.append(self._scale_up(amount, kind))
        variants = {
            variant: self._scale_up(amount, KINDS[IMAGE])
            for (billable, variant), amount in amounts.items()
            if billable is Billable.IMAGE and (billable, variant) not in _PLACE
        }
        if variants and KINDS[IMAGE].name not in amounts:
            # An image whose size and quality the price does not name costs as much as the dearest.
            rates[IMAGE] = max(variants.values())
        return Rates(tuple(rates), variants)
