"""The tally of one generation: usage, estimate, cost and charge."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from catalog.dialects.base import Chunk, Operation, Reply
from catalog.pricing import Billable, Price, Rule, Usage
from config.credentials import Secret
from inference.exchange.tally import NO_COST, Cost, Count, Ending, Tally
from inference.models import Generation
from inference.requests import parsing
from inference.routing.routes import Candidate
from tests.support.inference.routes import route

# The content has 40 bytes and the role adds 16; 56 bytes are estimated as 14 tokens.
BODY = b'{"model": "a/b", "stream": %s, "messages": [{"role": "user", "content": "%s"}]}'
PROMPT_TOKENS = 14


def candidate(*, is_byok: bool = False, **rates: str) -> Candidate:
    """Returns a candidate with these rates; without any it is free."""
    rates = {"prompt": "0", "completion": "0", **rates}
    price = Price(**{name: Decimal(rate) for name, rate in rates.items()})
    endpoint = replace(route("x"), price=price)
    return Candidate(endpoint, Secret("a secret"), is_byok, endpoint.endpoint_id)


def tally_of(*parts: Reply | Chunk, stream: bool = True, fee: str = "0") -> Tally:
    """Returns the tally of a request for 1,000 tokens after these parts of its answer."""
    body = BODY % (b"true" if stream else b"false", b"x" * 40)
    tally = Tally(parsing.parse(Operation.CHAT, body), Decimal(fee))
    tally.allow(candidate(), 1_000)
    for part in parts:
        tally.add(part)
    return tally


def text(size: int = 8, usage: Usage | None = None, finish: str | None = None) -> Chunk:
    """Returns a chunk with one choice and ``size`` bytes of text."""
    choices = msgspec.json.encode([{"index": 0, "delta": {}, "finish_reason": finish}])
    return Chunk(
        fields={"choices": msgspec.Raw(choices)},
        usage=usage,
        finish_reason=finish,
        output_bytes=size,
        has_choices=True,
    )


def alone(prompt: int, completion: int) -> Chunk:
    """Returns a chunk with only a usage."""
    return Chunk(fields={"usage": msgspec.Raw(b"{}")}, usage=Usage(prompt, completion))


STOP = text(0, finish="stop")


@pytest.mark.parametrize(
    ("parts", "usage", "is_estimated"),
    [
        # Without a usage everything is estimated.
        ([], Usage(PROMPT_TOKENS, 0), True),
        ([text(9)], Usage(PROMPT_TOKENS, 3), True),
        ([text(9), STOP], Usage(PROMPT_TOKENS, 3), True),
        # The first usage without choices after the finish reason counts.
        ([text(), STOP, alone(10, 5)], Usage(10, 5), False),
        ([text(), STOP, alone(10, 5), alone(99, 99)], Usage(10, 5), False),
        # A usage with a choice may cover only that choice: a larger usage replaces it.
        ([text(8, Usage(10, 5), "stop"), alone(10, 7)], Usage(10, 7), False),
        ([text(8, Usage(10, 5), "stop"), alone(10, 4)], Usage(10, 5), False),
        # A usage before the end may not include later output: the larger count applies.
        ([text(8, Usage(10, 1)), text(40)], Usage(10, 12), True),
        ([text(8, Usage(10, 50)), text(40)], Usage(10, 50), False),
        ([text(8, Usage(10, 5), "stop"), text(40)], Usage(10, 12), True),
    ],
)
def test_count_selects_the_usage_or_estimates(
    parts: list[Chunk], usage: Usage, is_estimated: bool
) -> None:
    assert tally_of(*parts).count() == Count(usage, is_estimated)


def test_output_after_the_usage_is_estimated() -> None:
    tally = tally_of(text(), STOP, alone(10, 5))
    tally.add_output(400)
    assert tally.count() == Count(Usage(10, 102), True)


def test_both_finish_reasons_are_kept_and_written_into_the_choices() -> None:
    chunk = text(0, finish="max_tokens")
    tally = tally_of(chunk)
    assert (tally.finish_reason, tally.native_finish_reason) == ("length", "max_tokens")
    [choice] = chunk.fields["choices"]
    assert (choice["finish_reason"], choice["native_finish_reason"]) == ("length", "max_tokens")


def test_the_first_identity_of_the_upstream_is_kept() -> None:
    tally = tally_of()
    for name in ("one", "two"):
        tally.add(Chunk(fields={}, model=f"model-{name}", upstream_id=f"id-{name}"))
    assert (tally.upstream_model, tally.upstream_id) == ("model-one", "id-one")


DONE = [text(), STOP, alone(10, 5)]
FAILED = text(0, finish="error")


@pytest.mark.parametrize(
    ("ending", "stream", "parts", "is_sent", "charged"),
    [
        # Completed: everything is charged unless the answer is blank.
        (Ending.COMPLETED, True, DONE, True, Count(Usage(10, 5), False)),
        (Ending.COMPLETED, False, DONE, True, Count(Usage(10, 5), False)),
        (Ending.COMPLETED, True, [STOP], True, Count(Usage(PROMPT_TOKENS, 0), True)),
        (Ending.COMPLETED, True, [STOP, alone(10, 0)], True, Count(Usage(10, 0), False)),
        (Ending.COMPLETED, True, [], True, None),
        (Ending.COMPLETED, True, [alone(10, 0)], True, None),
        (Ending.COMPLETED, True, [FAILED, alone(10, 0)], True, None),
        (Ending.COMPLETED, True, [text(0, finish="abort"), alone(10, 0)], True, None),
        (Ending.COMPLETED, True, [FAILED, alone(10, 3)], True, Count(Usage(10, 3), False)),
        # Cancelled: prompt and output are charged once the request was sent.
        (Ending.CANCELLED, True, [], False, None),
        (Ending.CANCELLED, True, [], True, Count(Usage(PROMPT_TOKENS, 0), True)),
        (Ending.CANCELLED, False, [], True, Count(Usage(PROMPT_TOKENS, 0), True)),
        (Ending.CANCELLED, True, [text(9)], True, Count(Usage(PROMPT_TOKENS, 3), True)),
        # Failed: prompt and output are charged only if a stream delivered something.
        (Ending.FAILED, True, [], True, None),
        (Ending.FAILED, True, [text(9)], True, Count(Usage(PROMPT_TOKENS, 3), True)),
        (Ending.FAILED, True, [alone(10, 0)], True, None),
        (Ending.FAILED, True, [STOP, alone(10, 0)], True, Count(Usage(10, 0), False)),
        (Ending.FAILED, False, DONE, True, None),
    ],
)
def test_charge_depends_on_the_ending(
    ending: Ending, stream: bool, parts: list[Chunk], is_sent: bool, charged: Count | None
) -> None:
    assert tally_of(*parts, stream=stream).charge(ending, is_sent=is_sent) == charged


def test_what_comes_after_the_caller_has_left_counts_only_by_its_usage() -> None:
    tally = tally_of(text(9))
    tally.add_unseen(text(400))
    assert tally.count() == Count(Usage(PROMPT_TOKENS, 3), True)
    tally.add_unseen(text(400, finish="stop"))
    assert not tally.has_last_usage
    tally.add_unseen(alone(10, 105))
    assert (tally.count(), tally.has_last_usage) == (Count(Usage(10, 105), False), True)
    tally.add_unseen(alone(99, 999))
    assert tally.charge(Ending.CANCELLED, is_sent=True) == Count(Usage(10, 105), False)
    assert (tally.finish_reason, tally.output_bytes) == (None, 9)


@pytest.mark.parametrize(
    ("rates", "fee", "is_byok", "usage", "cost"),
    [
        ({"prompt": "0.000001", "completion": "0.000002"}, "0", False, (10, 5), (20_000, 20_000)),
        # The own credential's account pays the provider; credits pay the fee.
        ({"prompt": "0.000001", "completion": "0.000002"}, "5", True, (10, 5), (1_000, 20_000)),
        ({"prompt": "0.000001", "completion": "0.000002"}, "0", True, (10, 5), (0, 20_000)),
        # Only own credentials have a fee.
        ({"prompt": "0.000001", "completion": "0"}, "5", False, (10, 5), (10_000, 10_000)),
        # The sum is rounded once, half to even.
        ({"prompt": "0.0000000005", "completion": "0"}, "0", False, (1, 0), (0, 0)),
        ({"prompt": "0.0000000005", "completion": "0"}, "0", False, (3, 0), (2, 2)),
    ],
)
def test_price_returns_credits_and_upstream_cost(
    rates: dict[str, str], fee: str, is_byok: bool, usage: tuple[int, int], cost: tuple[int, int]
) -> None:
    tally = tally_of(fee=fee)
    assert tally.price(Usage(*usage), candidate(is_byok=is_byok, **rates)) == Cost(*cost)


def test_price_without_usage_is_zero() -> None:
    assert tally_of().price(None, candidate(prompt="1", completion="1")) == NO_COST


def test_price_depends_on_the_usage_and_the_candidate() -> None:
    tally = tally_of()
    dear = candidate(prompt="0.000002", completion="0")
    cheap = candidate(prompt="0.000001", completion="0")
    costs = [tally.price(Usage(count, 0), one) for count in (1, 2) for one in (dear, cheap, dear)]
    assert [cost.credits_nano for cost in costs] == [2_000, 1_000, 2_000, 4_000, 2_000, 4_000]


def test_price_includes_the_images_of_the_request() -> None:
    image: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    body = {"model": "a/b", "messages": [{"role": "user", "content": [image, image]}]}
    request = parsing.parse(Operation.CHAT, msgspec.json.encode(body))
    tally = Tally(request, Decimal(0))
    pictured = candidate(prompt="0", completion="0", image="0.001")
    assert tally.price(Usage(1, 1), pictured) == Cost(2_000_000, 2_000_000)


def test_endings_are_the_terminal_statuses() -> None:
    assert set(Ending) == set(Generation.Status.values) - {Generation.Status.PENDING}


BOUND = parsing.parse(Operation.CHAT, BODY % (b"true", b"x" * 40)).prompt_bound


def claim_of(usage: Usage) -> Chunk:
    return Chunk(fields={"usage": msgspec.Raw(b"{}")}, usage=usage)


@pytest.mark.parametrize(
    ("claimed", "believed"),
    [
        (Usage(BOUND, 1_000), Usage(BOUND, 1_000)),
        # The template of a free model may add to the prompt.
        (Usage(BOUND + 1, 1_000), Usage(BOUND + 1, 1_000)),
        (Usage(BOUND + 20_000, 1_000), Usage(BOUND, 1_000)),
        (Usage(10, 1_001), Usage(10, 1_000)),
        (Usage(10**15, 10**15), Usage(BOUND, 1_000)),
        # A part is never more than its total.
        (Usage(10, 5, cached=10**9, cache_write=3), Usage(10, 5, cached=10)),
        (Usage(10, 5, cached=4, cache_write=10**9), Usage(10, 5, cached=4, cache_write=6)),
        (Usage(10, 5, reasoning=10**9), Usage(10, 5, reasoning=5)),
        (Usage(10, 5, image_output=10**9), Usage(10, 5, image_output=5)),
        (Usage(10**9, 5, cached=10**9), Usage(BOUND, 5, cached=BOUND)),
    ],
)
def test_a_usage_is_believed_as_far_as_it_was_allowed(claimed: Usage, believed: Usage) -> None:
    tally = tally_of(text(), STOP, claim_of(claimed))
    assert tally.count() == Count(believed, False)
    assert tally.is_believed == (claimed == believed)


def test_an_estimate_is_never_more_than_was_allowed() -> None:
    assert tally_of(text(1_000_000)).count() == Count(Usage(PROMPT_TOKENS, 1_000), True)


@pytest.mark.parametrize(
    ("usage", "is_byok", "reason", "excess"),
    [
        (Usage(BOUND, 1_000), False, None, (0, 0)),
        (Usage(10, 5, cached=10**9), False, None, (0, 0)),
        (Usage(10, 1_500), False, "completion", (1_000_000, 1_000_000)),
        # What the bound of the completion leaves pays for a longer prompt.
        (Usage(BOUND + 7, 5), False, None, (0, 0)),
        (Usage(BOUND + 7, 1_000), False, "prompt", (7_000, 7_000)),
        (Usage(BOUND + 7, 1_500), False, "both", (1_007_000, 1_007_000)),
        # Credits pay only the fee on what the own credential is charged.
        (Usage(10, 1_500), True, "completion", (50_000, 1_000_000)),
        # The cost ends at a million dollars; of it, 0.002077 were allowed.
        (Usage(10**15, 10**15), False, "both", (999_999_997_923_000, 999_999_997_923_000)),
    ],
)
def test_a_claim_is_the_cost_beyond_what_was_allowed(
    usage: Usage, is_byok: bool, reason: str | None, excess: tuple[int, int]
) -> None:
    tally = tally_of(text(), STOP, claim_of(usage), fee="5")
    tally.allow(candidate(is_byok=is_byok, prompt="0.000001", completion="0.000002"), 1_000)
    claim = tally.find_claim()
    assert (claim and claim.reason) == reason
    if claim is not None:
        assert (claim.excess_nano, claim.upstream_excess_nano) == excess
        assert (claim.prompt, claim.completion) == (usage.prompt, usage.completion)
        assert (claim.allowed_prompt, claim.allowed_completion) == (BOUND, 1_000)


@pytest.mark.parametrize(("modalities", "sound"), [("", 0), (', "modalities": ["audio"]', 20)])
def test_sound_is_estimated_at_its_own_rate_where_it_was_asked_for(
    modalities: str, sound: int
) -> None:
    body = BODY.replace(b"}]}", b"}]" + modalities.encode() + b"}") % (b"true", b"x" * 40)
    tally = Tally(parsing.parse(Operation.CHAT, body), Decimal(0))
    tally.allow(candidate(), 1_000)
    tally.add(Chunk(fields={}, has_choices=True, output_bytes=40))
    tally.add_output(80, 80)
    charged = Count(Usage(PROMPT_TOKENS, 30, audio_output=sound), True)
    assert tally.charge(Ending.FAILED, is_sent=True) == charged
    tally.add(alone(10, 7))
    tally.add_output(8)
    assert tally.count() == Count(Usage(10, 32, audio_output=sound), True)


@pytest.mark.parametrize(
    ("modalities", "pictures", "units"),
    [
        ("", 0, None),
        ("", 2, {"output_images": 2}),
        (', "modalities": ["text", "audio"]', 0, {"audio_output": 20}),
        # No more pictures than the hold covers.
        (', "modalities": ["text", "audio"]', 9, {"audio_output": 20, "output_images": 4}),
    ],
)
def test_the_sound_and_the_pictures_of_a_chat_are_journalled(
    modalities: str, pictures: int, units: dict[str, int] | None
) -> None:
    body = BODY.replace(b"}]}", b"}]" + modalities.encode() + b"}") % (b"true", b"x" * 40)
    tally = Tally(parsing.parse(Operation.CHAT, body), Decimal(0))
    drawn = Rule(Billable.IMAGE, "image", Decimal("0.04"))
    served = candidate()
    priced = replace(served.route, price=replace(served.route.price, rules=(drawn,)))
    tally.allow(replace(served, route=priced), 1_000)
    tally.add(Chunk(fields={}, has_choices=True, output_bytes=40, pictures=pictures))
    tally.add_output(80, 80)
    assert tally.find_units(tally.estimate()) == units


@pytest.mark.parametrize(
    ("delivered", "pictures", "images"),
    # Fifteen previews have the bytes of a picture, and make none.
    [(400, 0, 0), (400 * 15, 0, 0), (5_160, 1, 1), (5_160 * 3, 3, 2)],
)
def test_images_that_were_delivered_without_a_usage_are_counted(
    delivered: int, pictures: int, images: int
) -> None:
    body = b'{"model": "a/b", "prompt": "x", "stream": true, "n": 2, "size": "1K"}'
    tally = Tally(parsing.parse(Operation.IMAGES, body), Decimal(0))
    tally.allow(candidate(), 10_000)
    tally.add(Chunk(fields={}, has_choices=True, output_bytes=delivered, pictures=pictures))
    charged = tally.charge(Ending.CANCELLED, is_sent=True)
    assert charged is not None
    assert (charged.usage.output_images, charged.is_estimated) == (images, True)
    assert charged.usage.image_output == delivered // 4
    # The request said how many, and so does its journal.
    assert tally.find_units(tally.estimate()) is None
    assert charged.usage.image_variant == ("1K" if images else "")


PREVIEW = Chunk(fields={}, has_choices=True, output_bytes=400)
MADE = Usage(5, 4_160, output_images=1)


@pytest.mark.parametrize(
    ("late", "is_coming", "images", "completion", "is_estimated"),
    [
        (None, True, 1, 100 + 1_290, True),
        (None, False, 0, 100, True),
        # What came meanwhile says what the picture costs, or only that there is one.
        (MADE, False, 1, 4_160, False),
        (MADE, True, 1, 4_160, False),
        (Usage(0, 0, output_images=1), False, 1, 100 + 1_290, True),
    ],
)
def test_a_preview_counts_as_its_picture_for_a_caller_who_leaves(
    late: Usage | None, is_coming: bool, images: int, completion: int, is_estimated: bool
) -> None:
    body = b'{"model": "a/b", "prompt": "x", "stream": true, "n": 2}'
    tally = Tally(parsing.parse(Operation.IMAGES, body), Decimal(0))
    tally.allow(candidate(completion="0.001"), 10_000)
    tally.add(PREVIEW)
    if late is not None:
        tally.add_unseen(Chunk(fields={}, usage=late, finish_reason="stop", has_choices=True))
    tally.add_preview(is_coming=is_coming)
    charged = tally.charge(Ending.CANCELLED, is_sent=True)
    assert charged is not None
    found = charged.usage.output_images, charged.usage.completion, charged.is_estimated
    assert found == (images, completion, is_estimated)
