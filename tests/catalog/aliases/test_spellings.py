"""Names are found in the spellings of clients and providers, and never at the cost of another."""

from __future__ import annotations

import uuid

import pytest
from django.conf import settings

from catalog.aliases.resolution import NO_ALIASES, Lookup, Resolution
from catalog.aliases.spellings import (
    MAX_NAME,
    NO_NAMES,
    ModelNames,
    family_of,
    patch_names,
    read_forms,
)
from catalog.imports import parse

CATALOGUE = parse((settings.BASE_DIR / "catalog" / "data" / "catalogue.json").read_bytes())


def lookup_of(*models: ModelNames, hidden: frozenset[str] = frozenset()) -> Lookup:
    index = patch_names(NO_NAMES, {uuid.uuid4(): names for names in models})
    slugs = {names.permaslug: names.slug for names in models}
    slugs |= {names.slug: names.slug for names in models}
    return Lookup(slugs, index, NO_ALIASES, NO_ALIASES, lambda slug: slug not in hidden)


@pytest.fixture(scope="module")
def bundled() -> Lookup:
    """Looks names up in the catalogue that is part of the release."""
    upstream: dict[str, set[str]] = {}
    for row in CATALOGUE.endpoints:
        upstream.setdefault(row.model, set()).add(row.upstream_model_id)
    return lookup_of(
        *(
            ModelNames(
                row.id,
                row.canonical_slug,
                row.created,
                frozenset(upstream.get(row.canonical_slug, ())),
            )
            for row in CATALOGUE.models
        )
    )


def meant(found: Resolution | None) -> list[str]:
    return [] if found is None else [model.slug for model in found.models]


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("claude-opus-4-8", "anthropic/claude-opus-4.8"),
        ("claude-opus-4.8", "anthropic/claude-opus-4.8"),
        ("claude-opus-4-8[1m]", "anthropic/claude-opus-4.8"),
        ("anthropic/claude-opus-4.8[1m]", "anthropic/claude-opus-4.8"),
        ("anthropic/claude-opus-4-8", "anthropic/claude-opus-4.8"),
        ("claude-opus-4-5-20251101", "anthropic/claude-opus-4.5"),
        ("claude-opus-4-6-20260101", "anthropic/claude-opus-4.6"),
        ("claude-haiku-4-5-20251001", "anthropic/claude-haiku-4.5"),
        ("claude-sonnet-4-5@20250929", "anthropic/claude-sonnet-4.5"),
        ("claude-3-5-haiku-latest", "anthropic/claude-3.5-haiku"),
        ("us.anthropic.claude-opus-4-8", "anthropic/claude-opus-4.8"),
        ("global.anthropic.claude-haiku-4-5-20251001-v1:0", "anthropic/claude-haiku-4.5"),
        ("gpt-4.1-mini", "openai/gpt-4.1-mini"),
        ("GPT-4o", "openai/gpt-4o"),
        ("gpt-35-turbo", "openai/gpt-3.5-turbo"),
        ("gpt-4o-2024-11-20", "openai/gpt-4o"),
        ("text-embedding-3-small", "openai/text-embedding-3-small"),
        ("opus", "anthropic/claude-opus-5.5"),
        ("sonnet", "anthropic/claude-sonnet-5.5"),
        ("haiku", "anthropic/claude-haiku-4.5"),
        ("fable", "anthropic/claude-fable-5"),
        ("opus[1m]", "anthropic/claude-opus-5.5"),
        ("~anthropic/claude-sonnet-latest", "anthropic/claude-sonnet-5.5"),
        ("~openai/gpt-mini-latest", "openai/gpt-5.4-mini"),
        ("~moonshotai/kimi-latest", "moonshotai/kimi-k3"),
    ],
)
def test_a_name_of_the_field_means_its_model(bundled: Lookup, name: str, slug: str) -> None:
    assert meant(bundled.resolve(name)) == [slug]


def test_every_model_is_found_by_its_bare_name(bundled: Lookup) -> None:
    for row in CATALOGUE.models:
        assert meant(bundled.resolve(row.id.partition("/")[2])) == [row.id]


@pytest.mark.parametrize(
    "name",
    ["", "*", "/", "-", "[1m]", ":free", "~", "~latest", "~/-latest", "4", "claude", "no-such",
     "anthropic/", "\0", "\ud800", "[1m]" * 60, "a" * MAX_NAME, "-2024-01-01", "latest"],
)  # fmt: skip
def test_a_name_of_nobody_means_nothing(bundled: Lookup, name: str) -> None:
    assert bundled.resolve(name) is None


@pytest.mark.parametrize("length", [MAX_NAME - 1, MAX_NAME, MAX_NAME + 1])
def test_a_name_of_any_length_is_answered(length: int) -> None:
    slug = "acme/" + "x" * (MAX_NAME - 5)
    lookup = lookup_of(ModelNames(slug, f"{slug}-2", 1, frozenset()))
    found = lookup.resolve(slug.upper()[:length].ljust(length, "X"))
    assert meant(found) == ([slug] if length == MAX_NAME else [])
    assert len(lookup.explain_unknown("y" * 10_000, None).message) < 200


def test_the_variants_of_a_spelling_are_kept() -> None:
    nitro, none = frozenset(("nitro",)), frozenset[str]()
    assert [tuple(form) for form in read_forms("a-b[1m]:nitro")] == [
        ("a-b[1m]:nitro", none), ("a-b[1m]", nitro), ("a-b", nitro),
    ]  # fmt: skip
    assert [tuple(form) for form in read_forms("a-b:nitro[1m]")] == [
        ("a-b:nitro[1m]", none), ("a-b:nitro", none), ("a-b", nitro),
    ]  # fmt: skip
    assert read_forms("a:nitro:free")[-1] == ("a", nitro | {"free"})


def test_a_name_of_two_models_is_not_guessed() -> None:
    one = ModelNames("acme/falcon-9", "acme/falcon-9-2026-01-01", 1, frozenset())
    other = ModelNames("beta/falcon-9", "beta/falcon-9-2026-02-02", 2, frozenset())
    lookup = lookup_of(one, other)
    found = lookup.resolve("falcon-9")
    assert found is not None
    assert found.models == ()
    error = lookup.explain_unknown("falcon-9", found)
    assert error.message == (
        "The name 'falcon-9' may mean several models: acme/falcon-9, beta/falcon-9. Send one of "
        "these names."
    )
    assert error.metadata == {"did_you_mean": ["acme/falcon-9", "beta/falcon-9"]}
    # A caller who may use only one of them means that one.
    narrow = lookup_of(one, other, hidden=frozenset(("acme/falcon-9",)))
    assert meant(narrow.resolve("falcon-9")) == ["beta/falcon-9"]
    # Nor does an error name what a caller may not use.
    nothing = lookup_of(one, other, hidden=frozenset(("acme/falcon-9", "beta/falcon-9")))
    unknown = nothing.explain_unknown("falcon-9", nothing.resolve("falcon-9"))
    assert unknown.message == "There is no model 'falcon-9'."


def test_an_own_name_wins_over_what_a_provider_calls_another_model() -> None:
    lookup = lookup_of(
        ModelNames("acme/falcon", "acme/falcon-2026-01-01", 1, frozenset(("eagle",))),
        ModelNames("beta/eagle", "beta/eagle-2026-01-01", 1, frozenset(("falcon-beta",))),
    )
    assert meant(lookup.resolve("eagle")) == ["beta/eagle"]
    assert meant(lookup.resolve("falcon-beta")) == ["beta/eagle"]


def test_a_dated_model_is_found_without_its_date_if_it_is_the_only_one() -> None:
    first = ModelNames("acme/hawk-2025-01-01", "acme/hawk-2025-01-01", 1, frozenset())
    second = ModelNames("acme/hawk-2026-01-01", "acme/hawk-2026-01-01", 2, frozenset())
    assert meant(lookup_of(first).resolve("hawk")) == ["acme/hawk-2025-01-01"]
    assert meant(lookup_of(first, second).resolve("hawk")) == []
    assert meant(lookup_of(first, second).resolve("hawk-20260101")) == []
    assert meant(lookup_of(first, second).resolve("hawk-2026-01-01")) == ["acme/hawk-2026-01-01"]


def test_the_newest_model_is_the_newest_that_the_caller_may_use() -> None:
    models = [
        ModelNames(f"acme/falcon-{number}", f"acme/falcon-{number}-x", day, frozenset())
        for number, day in ((9, 10), (10, 20), (11, 20))
    ]
    newest = "~acme/falcon-latest"
    assert meant(lookup_of(*models).resolve(newest)) == ["acme/falcon-11"]
    hidden = frozenset(("acme/falcon-11", "acme/falcon-10"))
    assert meant(lookup_of(*models, hidden=hidden).resolve(newest)) == ["acme/falcon-9"]
    every = frozenset(names.slug for names in models)
    assert meant(lookup_of(*models, hidden=every).resolve(newest)) == ["acme/falcon-11"]


@pytest.mark.parametrize(
    ("slug", "family"),
    [
        ("anthropic/claude-opus-4.8", "anthropic/claude-opus"),
        ("anthropic/claude-3.7-sonnet", "anthropic/claude-sonnet"),
        ("openai/gpt-4o-mini", "openai/gpt-mini"),
        ("openai/gpt-oss-120b", "openai/gpt-oss-120b"),
        ("openai/o3-mini", "openai/o-mini"),
        ("qwen/qwen3-235b-a22b-2507", "qwen/qwen-235b-a22b"),
        ("minimax/minimax-m2.5", "minimax/minimax"),
        ("acme/falcon", "acme/falcon"),
        ("acme/falcon:free", None),
        ("falcon", None),
    ],
)
def test_a_family_is_a_name_without_versions(slug: str, family: str | None) -> None:
    assert family_of(slug) == family


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("clade-opus-4.8", "anthropic/claude-opus-4.8"),
        ("gtp-4o", "openai/gpt-4o"),
        ("gpt-4o:nitros", "openai/gpt-4o"),
        ("~anthropic/claud-opus-latest", "anthropic/claude-opus-4"),
        ("anthropic/claude-opus-9", "anthropic/claude-opus-4"),
    ],
)
def test_an_unknown_name_is_answered_with_what_was_meant(
    bundled: Lookup, name: str, first: str
) -> None:
    error = bundled.explain_unknown(name, bundled.resolve(name))
    assert error.metadata["did_you_mean"][0] == first
    assert error.message.startswith(f"There is no model {name!r}. Did you mean {first}")


def test_models_may_swap_their_names() -> None:
    one, other = uuid.uuid4(), uuid.uuid4()
    a, b = (ModelNames(f"acme/{name}", f"acme/{name}-1", 1, frozenset()) for name in "ab")
    index = patch_names(NO_NAMES, {one: a, other: b})
    swapped = patch_names(index, {one: b, other: a})
    assert swapped == patch_names(NO_NAMES, {one: b, other: a})
    assert patch_names(swapped, {one: b, other: a}) is swapped
    assert patch_names(swapped, {one: None, other: None}) == NO_NAMES
