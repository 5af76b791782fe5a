"""The usage of a generation, its cost, and whether it is charged; pure."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from catalog.dialects.audio import OUTPUT_BYTES, SPEECH_BYTES
from catalog.dialects.base import Chunk, Reply
from catalog.dialects.openai.members import normalize_finish_reasons
from catalog.dialects.shared.images.replies import IMAGE_BYTES
from catalog.operations import OPERATIONS
from catalog.pricing import Billable, Costs, Usage, cost_nano, split_cost
from catalog.pricing.usage import COMPLETION_PARTS, PIECES, PROMPT_PARTS
from catalog.tokens import UNKNOWN_FAMILY, UNSTATED_LIMITS, TextCounts
from inference.admission.estimate import Claim, fee_nano, find_bounds, output_bound
from inference.requests.operations import ROWS
from inference.requests.parsing import InferenceRequest
from inference.requests.rows import CHARACTERS_PER_TOKEN
from inference.routing.routes import Candidate

# The counts of a usage.
_COUNTS: Final = tuple(name for name in Usage.__struct_fields__ if name != "image_variant")
# The bytes of a token of text in any language, of which nothing else is known.
_TOKEN_BYTES: Final = 4
# What an answer of chat may have beside text, which its request does not say.
_MADE: Final = ("audio_output", "output_images")
# What a provider may do by itself before it answers.
_OWN_WAYS: Final = ("searches", "citations", "research")


class Cost(NamedTuple):
    """The amount that credits pay, and the cost at the provider's price, in nano-USD."""

    credits_nano: int
    upstream_nano: int


NO_COST: Final = Cost(0, 0)
# Returns the cost of a usage at the price of the candidate that answers.
CostOf = Callable[[Usage], Cost]


class Allowance(NamedTuple):
    """The most that an answer may use: tokens of its prompt, of its completion, and pieces.

    ``media`` are the tokens of the prompt that are no text, and ``has_sound`` says that any token
    may be one of sound.
    """

    prompt: int
    completion: int
    pieces: Usage
    media: int = 0
    has_sound: bool = True


def believe(usage: Usage, allowance: Allowance, cost_of: CostOf | None) -> Usage:
    """Returns a usage without what exceeds its bounds; a part is never more than its total.

    ``cost_of`` is ``None`` while no candidate answers.
    """
    if usage.prompt > allowance.prompt and _is_affordable(usage, allowance, cost_of):
        return usage
    prompt = min(usage.prompt, allowance.prompt)
    completion = min(usage.completion, allowance.completion)
    if (
        usage.cached + usage.cache_write + usage.cache_write_1h <= prompt == usage.prompt
        and usage.reasoning <= completion == usage.completion
        and usage.image_output <= completion
        and not _has_rare_units(usage)
    ):
        return usage
    return _clip_usage(usage, allowance._replace(prompt=prompt, completion=completion))


def find_claim(usage: Usage, allowance: Allowance, cost_of: CostOf) -> Claim | None:
    """Returns what a usage claims beyond what was allowed; ``None`` if nothing.

    Thousands of claims without measure can be written off for one organization before its accounts
    are full: a cost ends at a million USD.
    """
    has_claimed_tokens = usage.prompt > allowance.prompt or usage.completion > allowance.completion
    if not has_claimed_tokens and not _has_claimed_pieces(usage, allowance):
        return None
    if _is_affordable(usage, allowance, cost_of):
        return None
    believed, claimed = cost_of(believe(usage, allowance, cost_of)), cost_of(usage)
    return Claim(
        prompt=usage.prompt,
        completion=usage.completion,
        allowed_prompt=allowance.prompt,
        allowed_completion=allowance.completion,
        excess_nano=max(claimed.credits_nano - believed.credits_nano, 0),
        upstream_excess_nano=max(claimed.upstream_nano - believed.upstream_nano, 0),
    )


def _is_affordable(usage: Usage, allowance: Allowance, cost_of: CostOf | None) -> bool:
    """Returns whether a prompt that grew on its way costs no more than what was allowed.

    A template of the provider or a system prompt of the deployment may have added to it.
    """
    if cost_of is None or usage.prompt > allowance.prompt + UNSTATED_LIMITS.grown:
        return False
    if _clip_usage(usage, allowance._replace(prompt=usage.prompt)) != usage:
        return False
    allowed = replace(allowance.pieces, prompt=allowance.prompt, completion=allowance.completion)
    return cost_of(usage).upstream_nano <= cost_of(allowed).upstream_nano


def _has_rare_units(usage: Usage) -> bool:
    """Returns whether a usage has parts or pieces that few requests have."""
    return bool(
        usage.searches or usage.audio or usage.audio_output or usage.cache_write_1h
        or usage.milliseconds or usage.characters or usage.output_images or usage.audio_cached
        or usage.image_prompt or usage.citations or usage.research
    )  # fmt: skip


def _has_claimed_pieces(usage: Usage, allowance: Allowance) -> bool:
    """Returns whether a usage counts more than the request allows, tokens of text aside."""
    if not _has_rare_units(usage):
        return False
    has_other_media = not allowance.has_sound and (
        bool(usage.audio_output) or max(usage.audio, usage.image_prompt) > allowance.media
    )
    return has_other_media or any(
        getattr(usage, name) > getattr(allowance.pieces, name)
        for name in PIECES
        if name != "images"
    )


def _clip_usage(usage: Usage, allowance: Allowance) -> Usage:
    """Returns a usage within bounds: its parts within their totals, its pieces as allowed.

    The request decides the size and quality of images, if it names them.
    """
    prompt = min(usage.prompt, allowance.prompt)
    completion = min(usage.completion, allowance.completion)
    parts: dict[str, Any] = {}
    parts["cached"] = min(usage.cached, prompt)
    parts["cache_write"] = min(usage.cache_write, prompt - parts["cached"])
    written = parts["cached"] + parts["cache_write"]
    parts["cache_write_1h"] = min(usage.cache_write_1h, prompt - written)
    if not allowance.has_sound:
        for name in ("audio", "audio_cached", "image_prompt"):
            parts[name] = min(getattr(usage, name), allowance.media, prompt)
        parts["audio_output"] = 0
    for names, total in ((PROMPT_PARTS, prompt), (COMPLETION_PARTS, completion)):
        for name in names:
            parts.setdefault(name, min(getattr(usage, name), total))
    for name in PIECES:
        most = usage.images if name == "images" else getattr(allowance.pieces, name)
        parts[name] = min(getattr(usage, name), most)
    variant = allowance.pieces.image_variant or usage.image_variant
    return Usage(prompt, completion, image_variant=variant, **parts)


class Ending(StrEnum):
    """How a generation ended; the values are its terminal statuses."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Count(NamedTuple):
    """The usage so far, and whether any part of it is our own estimate."""

    usage: Usage
    is_estimated: bool


class Bill(NamedTuple):
    """What a generation is charged: its usage, of which ``claim`` is what is not believed.

    Without a usage it is free.
    """

    usage: Usage | None = None
    is_estimated: bool = False
    cost: Cost = NO_COST
    claim: Claim | None = None


NO_BILL: Final = Bill()


class Tally:
    """Counts the output of one generation as it is relayed."""

    __slots__ = (
        "_allowance", "_allowed", "_alone", "_believed", "_candidate", "_characters", "_cost",
        "_costed", "_fee_percent", "_has_finished", "_is_after_output", "_is_final", "_is_last",
        "_length", "_pictures", "_request", "_sound", "_text", "at", "finish_reason",
        "has_failed_choice", "native_finish_reason", "output_bytes", "parts", "reported_cost_nano",
        "upstream_id", "upstream_model", "usage", "usage_body",
    )  # fmt: skip

    def __init__(self, request: InferenceRequest, fee_percent: Decimal, at: int = 0) -> None:
        """Starts at zero; ``fee_percent`` is the fee on requests with an own credential.

        ``at`` is the instant of the request by the database's clock, in Unix seconds: it decides
        about prices that depend on the time, however long the answer takes.
        """
        self._request = request
        self._fee_percent = fee_percent
        self.at = at
        # The cost that the provider itself reports.
        self.reported_cost_nano: int | None = None
        self.output_bytes = 0
        self._characters = 0
        # The finished pictures of an answer, which no usage of chat counts.
        self._pictures = 0
        # What of ``output_bytes`` stands for the sound of an answer of chat.
        self._sound = 0
        self.usage: Usage | None = None
        # The upstream's usage object as raw JSON.
        self.usage_body: Any = None
        self.finish_reason: str | None = None
        self.native_finish_reason: str | None = None
        # Any choice has ended in an error; both reasons are those of the last one.
        self.has_failed_choice = False
        self.upstream_id: str | None = None
        self.upstream_model: str | None = None
        # ``_is_after_output``: the usage came with or after the last output. ``_is_final``: and the
        # answer has ended, by its finish reason or its end mark. ``_is_last``: the usage also came
        # in a chunk without choices, so no later usage replaces it.
        self._is_after_output = False
        # The usages that came without a choice after a finish reason, where several choices were
        # asked for.
        self._alone: list[Usage] = []
        self._is_final = False
        self._is_last = False
        # The length that a whole sound says it has, in milliseconds.
        self._length: int | None = None
        # The finish reason has come, perhaps only after the caller had left.
        self._has_finished = False
        self._text: TextCounts | None = None
        # The candidate that answers, and the most that it may use.
        self._candidate: Candidate | None = None
        self._allowed: tuple[Candidate, int | None] | None = None
        self._allowance = Allowance(request.prompt_bound, 0, request.allowed)
        # The last usage that was judged, and what is believed of it.
        self._believed: tuple[Usage, Usage] | None = None
        # The last usage that was priced, its candidate, its cost, and the parts of that cost at the
        # candidate's price.
        self._costed: tuple[Usage, Candidate] | None = None
        self._cost = NO_COST
        self.parts = Costs(0, 0, 0, 0)

    def add(self, part: Reply | Chunk) -> None:
        """Counts a reply or chunk, and writes both finish reasons into its choices."""
        self.output_bytes += part.output_bytes
        self._characters += part.characters
        self._pictures += part.pictures
        self._sound += part.sound
        if part.finish_reason is not None and "choices" in part.fields:
            choices, reason, native = normalize_finish_reasons(part.fields["choices"])
            part.fields["choices"] = choices
            self.finish_reason = reason or self.finish_reason
            self.native_finish_reason = native or self.native_finish_reason
            if reason is not None and any(each.get("finish_reason") == "error" for each in choices):
                self.has_failed_choice = True
        elif part.finish_reason is not None:
            self.has_failed_choice |= part.finish_reason == "error"
            self.finish_reason = part.finish_reason
            self.native_finish_reason = part.native_finish_reason or self.native_finish_reason
        self.upstream_id = self.upstream_id or part.upstream_id
        self.upstream_model = self.upstream_model or part.model
        if part.output_bytes:
            self._is_after_output = self._is_final = self._is_last = False
        if part.usage is not None and not self._is_last:
            has_finished = isinstance(part, Reply) or self.finish_reason is not None
            self._add_usage(part, part.usage, has_finished=has_finished)
        elif isinstance(part, Chunk) and part.is_done:
            self._is_final = self._is_after_output
            self._length = part.milliseconds

    def add_output(self, output_bytes: int, sound: int = 0) -> None:
        """Counts output without usage; an earlier usage does not cover all output any more."""
        self.output_bytes += output_bytes
        self._sound += sound
        self._is_after_output = self._is_final = self._is_last = False

    def add_unseen(self, part: Reply | Chunk) -> None:
        """Takes the usage of a part that came after the caller had left.

        Its output is not counted: the usage covers it, and without a usage the caller pays only for
        what was delivered.
        """
        self.upstream_id = self.upstream_id or part.upstream_id
        self.upstream_model = self.upstream_model or part.model
        self._has_finished = self._has_finished or part.finish_reason is not None
        if part.usage is not None and not self._is_last:
            has_finished = isinstance(part, Reply) or self._has_finished
            has_finished = has_finished or self.finish_reason is not None
            self._add_usage(part, part.usage, has_finished=has_finished)

    def add_preview(self, *, is_coming: bool) -> None:
        """Counts the picture of which a caller who has left has a preview, if it is produced.

        ``is_coming`` says that the upstream still works. A usage that came meanwhile counts it too.
        """
        is_counted = self.usage is not None and self.usage.output_images > self._pictures
        if is_counted or is_coming:
            self._pictures += 1
            self.output_bytes += IMAGE_BYTES

    @property
    def has_last_usage(self) -> bool:
        """Returns whether no later usage would replace the present one."""
        return self._is_last

    def _add_usage(self, part: Reply | Chunk, usage: Usage, *, has_finished: bool) -> None:
        """Keeps the latest usage, or the first after the finish reason in a chunk without choices.

        A usage beside a choice may cover only that choice or the output so far, and the last one
        may repeat counts as zero, so the larger of each count wins. As many usages alone as choices
        were asked for are added up.
        """
        known, is_alone = self.usage, isinstance(part, Chunk) and not part.has_choices
        if is_alone and has_finished and self._request.choices > 1:
            self._alone.append(usage)
            if len(self._alone) == self._request.choices:
                # One for each choice, as llama.cpp's server reports them.
                usage, known = _add_up(self._alone), None
        self.usage = _adapt(usage, self._request, self._allowance.pieces)
        self.usage_body = part.fields.get("usage")
        if known is not None:
            self.usage = _take_larger(known, self.usage)
        self._is_after_output, self._is_final = True, has_finished
        self._is_last = self._is_final and is_alone
        if self._request.choices > 1:
            self._is_last = len(self._alone) >= self._request.choices

    def allow(self, candidate: Candidate, max_tokens: int | None = None) -> None:
        """Sets the candidate that answers, and the bound that the gateway set on its answer."""
        if self._allowed == (candidate, max_tokens):
            return
        bounds = find_bounds(self._request, candidate)
        bound = output_bound(self._request, candidate.route) if max_tokens is None else max_tokens
        self._allowed = candidate, max_tokens
        self._candidate, self._believed = candidate, None
        self._allowance = Allowance(
            bounds.prompt,
            (bound + bounds.thought) * self._request.choices,
            bounds.pieces,
            bounds.media,
            bounds.has_sound,
        )

    def count_roughly(self) -> None:
        """Takes a prompt whose text cannot be read by its bytes from now on."""
        if self._text is None:
            self._text = TextCounts()
            self._text.tokens = -(-self._request.prompt_bound // _TOKEN_BYTES)

    def estimate(self) -> Usage:
        """Estimates the usage from the texts of prompt and output, within what was allowed.

        The sound of an answer of chat has the rate of sound if the request asked for it.
        """
        request, candidate = self._request, self._candidate
        family = UNKNOWN_FAMILY if candidate is None else candidate.route.family
        if self._text is None:
            # Remembered, because counting a long prompt takes time and every heartbeat needs it.
            self._text = request.text
        prompt, sound = family.estimate(self._text), self._sound // OUTPUT_BYTES
        if OPERATIONS[request.operation].is_written:
            text_bytes = self.output_bytes - self._sound
            output = sound + family.estimate_answer(text_bytes, self._text)
        elif self._length is None:
            output = -(-self.output_bytes // OUTPUT_BYTES)
        else:
            output = -(-self._length * SPEECH_BYTES // (1000 * OUTPUT_BYTES))
        known = request.known_units
        estimate = ROWS[request.operation].estimate(
            min(prompt, self._allowance.prompt), min(output, self._allowance.completion), known
        )
        if sound and self._allowance.has_sound:
            return replace(estimate, audio_output=min(sound, estimate.completion))
        if known.output_images:
            pictures = min(self._pictures, known.output_images)
            variant = known.image_variant if pictures else ""
            return replace(estimate, output_images=pictures, image_variant=variant)
        if self._length is None:
            return estimate
        return replace(estimate, milliseconds=min(self._length, known.milliseconds))

    def count(self) -> Count:
        """Returns the usage so far, as far as it is believed: within what was allowed.

        A usage that came before the end of the output may be too low. Its completion tokens, and
        its pictures, are then replaced by their estimate if that is higher.
        """
        usage = None if self.usage is None else self._believe(self.usage)
        if usage is not None and self._is_final:
            found: Count | None = None
            is_written = OPERATIONS[self._request.operation].is_written
            if is_written and len(self._alone) < self._request.choices > 1:
                found = self._count_all(usage)
            if not (usage.prompt or usage.completion):
                found = self._count_tokens(usage)
            if found is None and self._request.allowed.milliseconds and not usage.milliseconds:
                found = self._count_length(usage)
            return found or Count(usage, False)
        estimate = self.estimate()
        if usage is None:
            return Count(estimate, not self._has_length)
        if (
            usage.completion >= estimate.completion
            and usage.output_images >= estimate.output_images
        ):
            return Count(usage, False)
        made = {
            name: max(getattr(usage, name), getattr(estimate, name))
            for name in ("completion", *_MADE)
        }
        return Count(replace(usage, **made), True)

    @property
    def _has_length(self) -> bool:
        """Whether the length of a sound, which says it, is all that the price bills."""
        if self._length is None or self._candidate is None:
            return False
        price = self._candidate.route.price
        return price.has_rate(Billable.SECOND) and not price.bills_tokens

    def _count_tokens(self, usage: Usage) -> Count | None:
        """Estimates the tokens of a usage without any, if its other units have no rate.

        A price that bills only tokens would make such an answer free. Returns ``None`` for any
        other usage.
        """
        if self._candidate is None:
            return None
        price = self._candidate.route.price
        estimate = self.estimate()
        if usage.output_images and not price.bills_images:
            tokens = {"completion": estimate.completion, "image_output": estimate.completion}
            return Count(replace(usage, prompt=estimate.prompt, **tokens), True)
        has_fee = price.has_search_rate or bool(price.request)
        if usage.searches and price.prompt and not has_fee:
            return Count(replace(usage, prompt=estimate.prompt), True)
        is_sound = bool(self._request.allowed.milliseconds)
        if is_sound and price.bills_tokens and not price.has_rate(Billable.SECOND):
            length = usage.milliseconds or estimate.milliseconds
            return Count(replace(estimate, milliseconds=length), True)
        return None

    def _count_all(self, usage: Usage) -> Count | None:
        """Estimates the completion of a usage that can cover only one of several choices."""
        if usage.completion * CHARACTERS_PER_TOKEN >= self._characters:
            return None
        completion = max(usage.completion, self.estimate().completion)
        return Count(replace(usage, completion=completion), True)

    def _count_length(self, usage: Usage) -> Count | None:
        """Estimates the length of audio whose provider reports none, if seconds are billed."""
        if self._candidate is None or not self._candidate.route.price.has_rate(Billable.SECOND):
            return None
        return Count(replace(usage, milliseconds=self.estimate().milliseconds), True)

    def _believe(self, usage: Usage) -> Usage:
        if self._believed is None or self._believed[0] is not usage:
            candidate = self._candidate
            cost_of = None if candidate is None else partial(self._calculate, candidate)
            self._believed = usage, believe(usage, self._allowance, cost_of)
        return self._believed[1]

    @property
    def is_believed(self) -> bool:
        """Returns whether the upstream's usage, if there is one, is believed as it is."""
        believed = None if self.usage is None else self._believe(self.usage)
        return believed is self.usage or believed == self.usage

    def find_claim(self) -> Claim | None:
        """Returns what the upstream claimed beyond what was allowed; ``None`` if nothing."""
        if self.usage is None or self._candidate is None or self._believe(self.usage) is self.usage:
            return None
        cost_of = partial(self._calculate, self._candidate)
        return find_claim(self.usage, self._allowance, cost_of)

    def is_blank(self, usage: Usage) -> bool:
        """Returns whether the answer is empty, and its finish reason is missing or "error"."""
        return not usage.completion and self.finish_reason in (None, "error")

    def price(self, usage: Usage | None, candidate: Candidate) -> Cost:
        """Returns the cost of a usage at the candidate's price; ``None`` costs nothing."""
        if usage is None:
            return NO_COST
        # Remembered, because the answer and its settlement need the same cost.
        if self._costed != (usage, candidate):
            self.parts = split_cost(candidate.route.price, self.complete(usage), self.at)
            self._cost = _add_fee(candidate, self.parts.total, self._fee_percent)
            self._costed = usage, candidate
        return self._cost

    def complete(self, usage: Usage) -> Usage:
        """Returns a usage with what it does not count: images in the prompt, pictures in a chat."""
        images = self._request.images
        if images:
            usage = replace(usage, images=images)
        if self._pictures and not usage.output_images:
            usage = replace(
                usage, output_images=min(self._pictures, self._allowance.pieces.output_images)
            )
        return usage

    def find_units(self, estimate: Usage) -> dict[str, int] | None:
        """Returns the sound and the pictures of an estimated chat; ``None`` for text alone."""
        if not OPERATIONS[self._request.operation].is_written:
            return None
        usage = self.complete(estimate)
        return {name: count for name in _MADE if (count := getattr(usage, name))} or None

    def _calculate(self, candidate: Candidate, usage: Usage) -> Cost:
        upstream_nano = cost_nano(candidate.route.price, self.complete(usage), self.at)
        return _add_fee(candidate, upstream_nano, self._fee_percent)

    def bill(
        self, ending: Ending, candidate: Candidate, max_tokens: int | None, *, is_sent: bool
    ) -> Bill:
        """Returns what the generation is charged: see :meth:`allow` and :meth:`charge`."""
        self.allow(candidate, max_tokens)
        charged = self.charge(ending, is_sent=is_sent)
        if charged is None:
            return NO_BILL
        usage = self.complete(charged.usage)
        cost = self.price(usage, candidate)
        claim = None if self.is_believed else self.find_claim()
        return Bill(usage, charged.is_estimated, cost, claim)

    def bill_most(self, most: Cost) -> Bill:
        """Returns the bill of what was delivered, where its usage or its price is unknown: a hold.

        Like the generation of a killed worker, one without output is free.
        """
        if not self.output_bytes:
            return NO_BILL
        completion = -(-self.output_bytes // _TOKEN_BYTES)
        prompt = -(-self._request.prompt_bound // _TOKEN_BYTES)
        return Bill(Usage(prompt, completion), True, most)

    def charge(self, ending: Ending, *, is_sent: bool) -> Count | None:
        """Returns the usage to charge for; ``None`` when the generation is free.

        ``is_sent`` tells whether an upstream may have acted on the request and has not failed.

        =========  ===============================================================================
        Ending     Charged
        =========  ===============================================================================
        completed  always, unless the answer is blank
        cancelled  the prompt and the delivered output, or the usage of the upstream, once the
                   request was sent
        failed     a stream that delivered output or a usage that is not blank; a whole reply
                   never, because its caller does not get it; one that is too long for the
                   caller's interface counts as completed
        =========  ===============================================================================
        """
        count = self.count()
        if ending is Ending.CANCELLED:
            is_due = is_sent
        elif ending is Ending.FAILED and not self._request.stream:
            is_due = False
        else:
            has_begun = self.usage is not None or ending is Ending.COMPLETED
            is_due = bool(self.output_bytes) or (has_begun and not self.is_blank(count.usage))
        return count if is_due else None


def _add_fee(candidate: Candidate, upstream_nano: int, fee_percent: Decimal) -> Cost:
    """Returns a cost with what credits pay of it: all, or the fee on an own credential."""
    credits_nano = fee_nano(upstream_nano, fee_percent) if candidate.is_byok else upstream_nano
    return Cost(credits_nano, upstream_nano)


def _add_up(usages: list[Usage]) -> Usage:
    """Returns the sum of usages of which each counts one choice."""
    first, *others = usages
    for each in others:
        first = replace(
            first, **{name: getattr(first, name) + getattr(each, name) for name in _COUNTS}
        )
    return first


def _take_larger(known: Usage, usage: Usage) -> Usage:
    """Returns a usage whose counts are the larger ones of two."""
    larger = {
        name: count for name in _COUNTS if (count := getattr(known, name)) > getattr(usage, name)
    }
    return replace(usage, **larger) if larger else usage


def _adapt(usage: Usage, request: InferenceRequest, allowed: Usage) -> Usage:
    """Returns the usage of an upstream with what the request decides: pieces and their variant."""
    if usage.searches or usage.citations or usage.research:
        # What nobody asked for and no price bills is the provider's own way to answer.
        unbilled = [name for name in _OWN_WAYS if not getattr(allowed, name)]
        usage = replace(usage, **dict.fromkeys(unbilled, 0)) if unbilled else usage
    if characters := request.allowed.characters:
        # No provider counts what was known before.
        usage = replace(usage, characters=characters)
    if usage.output_images and (named := request.least.image_variant):
        # A price list has either the words of the answer or those of the request.
        words = dict.fromkeys(filter(None, (*usage.image_variant.split("/"), *named.split("/"))))
        usage = replace(usage, image_variant="/".join(words))
    return usage
