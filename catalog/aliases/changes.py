"""Creates, edits and removes aliases, each checked against the catalogue."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Q

from accounts.models import Organization, OrganizationLimit
from accounts.models.edits import refusal, write_fields
from catalog.aliases.names import ModelNotFound, split_variants
from catalog.aliases.resolution import WILDCARD, quote_name
from catalog.models import LanguageModel
from catalog.models.aliases import MAX_TARGETS, AliasNotFound, ModelAlias
from config.api.errors import Conflict, GatewayError, Unprocessable
from config.api.text import CONTROL_CHARACTERS

MAX_ALIASES: Final = 1_000
MAX_PATTERNS: Final = 100
_MAX_LENGTH: Final = 255
# Names that begin so are presets.
_RESERVED: Final = "@"
_LOCK_OPERATORS: Final = "SELECT pg_advisory_xact_lock(6024917534)"


class AliasExists(Conflict):
    error_type = "alias_exists"
    message = "There is an alias of this name already."


class AliasHidesModel(Unprocessable):
    error_type = "alias_hides_model"


class TooManyAliases(Unprocessable):
    error_type = "alias_limit"


def create_alias(*, organization_id: UUID | None, name: str, targets: Sequence[str]) -> ModelAlias:
    """Creates an alias of an organization, or of the operator.

    Raises :class:`InvalidRequest` for a malformed name or list, :class:`ModelNotFound` for a target
    that the catalogue does not have, :class:`AliasHidesModel`, :class:`AliasExists`,
    :class:`TooManyAliases` and :class:`OrganizationLimitReached`.
    """
    with transaction.atomic():
        owner = lock_owner(organization_id)
        check_alias(name, targets, known=known_models((name, *targets), organization_id))
        alias = ModelAlias(organization_id=organization_id, name=name, targets=list(targets))
        others = ModelAlias.objects.of_owner(organization_id)
        if others.filter(name=name).exists():
            raise AliasExists
        require_room(owner, others.values_list("name", flat=True), [name])
        alias.save(force_insert=True)
    return alias


def edit_alias(alias: ModelAlias, **changes: Any) -> bool:
    """Changes the name or the targets; returns whether anything changed.

    A target that it has already may stay when its model has left: requests pass over it. Raises
    the errors of :func:`create_alias`, and :class:`AliasNotFound` if it is gone.
    """
    with transaction.atomic():
        lock_owner(alias.organization_id)
        try:
            alias.refresh_from_db()
        except ModelAlias.DoesNotExist:
            raise AliasNotFound from None
        name = changes.get("name", alias.name)
        targets = changes.get("targets", alias.targets)
        known = known_models((name, *targets), alias.organization_id)
        check_alias(name, targets, known=known.union(alias.targets))
        if name != alias.name:
            others = ModelAlias.objects.of_owner(alias.organization_id).exclude(pk=alias.pk)
            if others.filter(name=name).exists():
                raise AliasExists
            _require_few_patterns([*others.values_list("name", flat=True), name])
        return write_fields(alias, {"name": name, "targets": list(targets)})


def remove_alias(alias: ModelAlias) -> None:
    """Deletes an alias; the next request no longer knows the name."""
    with transaction.atomic():
        lock_owner(alias.organization_id)
        deleted, _ = ModelAlias.objects.filter(pk=alias.pk).delete()
        if not deleted:
            raise AliasNotFound


def lock_owner(organization_id: UUID | None) -> Organization | None:
    """Lets changes of the aliases of one owner run one after another; returns the organization."""
    if organization_id is not None:
        return Organization.objects.lock(organization_id)
    with connection.cursor() as cursor:
        cursor.execute(_LOCK_OPERATORS)
    return None


def known_models(names: Collection[str], organization_id: UUID | None) -> frozenset[str]:
    """Returns the names among these that are names of listed models, their variants left out.

    The models of an organization are known to its own aliases.
    """
    wanted = {
        base
        for name in names
        if not CONTROL_CHARACTERS.search(name)
        for base, _ in split_variants(name)
    }
    visible = LanguageModel.objects.visible_to(organization_id).listed()
    rows = visible.filter(Q(slug__in=wanted) | Q(canonical_slug__in=wanted))
    return frozenset(
        name for pair in rows.values_list("slug", "canonical_slug") for name in pair
    ) & frozenset(wanted)


def check_alias(name: str, targets: Sequence[str], *, known: Collection[str]) -> None:
    """Raises the error for a name or a target that an alias cannot have.

    ``known`` are the names among them that models have.
    """
    if problem := _find_name_problem(name):
        raise refusal("name", problem)
    if not 1 <= len(targets) <= MAX_TARGETS:
        raise refusal("targets", f"Must name 1 to {MAX_TARGETS} models.")
    if len(set(targets)) != len(targets):
        raise refusal("targets", "Must name each model once.")
    if _is_known(name, known):
        raise AliasHidesModel(
            f"name: {quote_name(name)} is the name of a model, which always wins over an alias. "
            "Choose another name."
        )
    for target in targets:
        if not _is_known(target, known):
            raise ModelNotFound(
                f"targets: the catalogue has no model {quote_name(target)}. A target is the name "
                "of a model, not another alias."
            )
        if _searches(target, known):
            raise refusal(
                "targets", "Must not search the web: send :online with the alias in the request."
            )


def find_problem(name: str, targets: Sequence[str], *, known: Collection[str]) -> str | None:
    """Returns the message of the error that :func:`check_alias` raises."""
    try:
        check_alias(name, targets, known=known)
    except GatewayError as exc:
        return exc.message
    return None


def require_room(
    owner: Organization | None, present: Collection[str], added: Collection[str]
) -> None:
    """Raises an error if the ``added`` names would exceed a limit of an owner that is locked.

    It is :class:`OrganizationLimitReached`, or :class:`TooManyAliases` for the operator and for too
    many names with a wildcard.
    """
    if owner is not None:
        owner.require_room(OrganizationLimit.ALIASES, len(present), len(added))
    elif len(present) + len(added) > MAX_ALIASES:
        raise TooManyAliases(
            f"The operator has at most {MAX_ALIASES:,} aliases. Remove one, or use a pattern."
        )
    _require_few_patterns([*present, *added])


def _require_few_patterns(names: Collection[str]) -> None:
    if sum(WILDCARD in name for name in names) > MAX_PATTERNS:
        raise TooManyAliases(
            f"At most {MAX_PATTERNS} aliases of an organization have a *. Remove one."
        )


def _find_name_problem(name: str) -> str:
    """Returns why an alias cannot have a name; empty if it can."""
    if not 1 <= len(name) <= _MAX_LENGTH:
        return f"Must have 1 to {_MAX_LENGTH} characters."
    if CONTROL_CHARACTERS.search(name) or not name.isprintable() or name != name.strip():
        return "Must not have control characters, nor begin or end with white space."
    if name.startswith(_RESERVED):
        return f"Must not begin with {_RESERVED}, which names presets."
    if name.count(WILDCARD) > 1:
        return f"Must have at most one {WILDCARD}."
    return ""


def _is_known(name: str, known: Collection[str]) -> bool:
    return any(base in known for base, _ in split_variants(name))


def _searches(target: str, known: Collection[str]) -> bool:
    """Returns whether a target has the variant that only the request itself can ask for."""
    variants = next((found for base, found in split_variants(target) if base in known), ())
    return "online" in variants
