"""Own models: models that one organization sees and serves, made from another one or from none."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from django.db import models, transaction
from django.db.models import Q

from accounts.models import Organization
from accounts.models.edits import refusal, write_fields
from catalog.aliases.names import ModelNotFound
from catalog.models import LanguageModel
from config.api.errors import Conflict, GatewayError
from config.clocks.clock import clock

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MAX_SLUG: Final = 255
# Endpoints are limited, so nobody needs more models than these.
MOST_MODELS: Final = 1_000
# What is taken from the model that another one is made from, and what a model without one has.
_DEFAULTS: Final[Mapping[str, Any]] = {
    "context_length": None,
    "input_modalities": ("text",),
    "output_modalities": ("text",),
    "modality": "text->text",
    "tokenizer": None,
    "instruct_type": None,
    # Every server of OpenAI's format has these; validations and declarations add others.
    "supported_parameters": ("max_tokens", "stop", "temperature", "top_p"),
    "default_parameters": None,
    "per_request_limits": None,
    "supported_voices": None,
    "knowledge_cutoff": None,
    "native_format": LanguageModel._meta.get_field("native_format").default,
    "thinking": LanguageModel._meta.get_field("thinking").default,
    "thinks_between_tools": False,
    "combines_sampling": False,
}


class OwnModelManager(models.Manager["OwnModel"]):
    """Reads the models of all organizations that are not deleted: for operators alone."""

    def get_queryset(self) -> Any:
        return super().get_queryset().filter(organization__isnull=False, is_listed=True)


class OwnModel(LanguageModel):
    """A model that one organization owns, as a page of the console of its own."""

    objects: Any = OwnModelManager()  # type: ignore[misc]

    class Meta:
        proxy = True
        verbose_name = "own model"
        ordering = ("slug",)


class OwnModelNotFound(ModelNotFound):
    message = "The private model does not exist."


class ModelExists(Conflict):
    error_type = "model_exists"


class ModelInUse(Conflict):
    error_type = "model_in_use"


class NewModel(NamedTuple):
    """The members of a model to make; ``base_model`` is any slug of the model to make it from."""

    name: str
    base_model: str | None = None


def create_own_model(
    organization_id: uuid.UUID, slug: str, name: str, base_model: str | None = None
) -> LanguageModel:
    """Creates a model of an organization.

    Raises :class:`InvalidRequest` for a slug that does not begin with the organization's,
    :class:`ModelExists` for one that is taken, and :class:`ModelNotFound` for an unknown base.
    """
    wanted = {slug: NewModel(name, base_model)}
    with transaction.atomic():
        Organization.objects.lock(organization_id)
        made = plan_own_models(organization_id, wanted, field="slug")[slug]
        if isinstance(made, GatewayError):
            raise made
        made.save(force_insert=True)
    return made


def plan_own_models(
    organization_id: uuid.UUID, wanted: Mapping[str, NewModel], *, field: str, reuses: bool = False
) -> dict[str, LanguageModel | GatewayError]:
    """Returns the model of each slug, which the caller saves, or the error that refuses it.

    The caller holds the organization's lock. With ``reuses``, a model that exists with equal
    members is left out, because it needs no creation. ``field`` is the member that has the slug.
    """
    if not wanted:
        return {}
    organization = Organization.objects.get(pk=organization_id)
    own = {model.slug: model for model in LanguageModel.objects.owned_by(organization_id)}
    folded = {slug.lower() for slug in own}
    bases = _find_bases(organization_id, [each.base_model for each in wanted.values()])
    is_author = _is_author(organization.slug)
    found: dict[str, LanguageModel | GatewayError] = {}
    room = MOST_MODELS - len(own)
    for slug, new in wanted.items():
        present = own.get(slug)
        base = None if new.base_model is None else bases.get(new.base_model)
        if reuses and present is not None and _is_made_so(present, new, base):
            continue
        if (problem := _find_problem(slug, organization.slug)) is not None:
            found[slug] = refusal(field, problem)
        elif is_author:
            found[slug] = ModelExists(
                f"{field}: {organization.slug!r} is an author of the catalogue. Ask the operator "
                "for another slug of the organization."
            )
        elif slug.lower() in folded:
            found[slug] = ModelExists(f"{field}: the organization has a model {slug!r} already.")
        elif new.base_model is not None and base is None:
            found[slug] = _unknown_base(new.base_model)
        elif room <= 0:
            found[slug] = ModelExists(f"The organization has {MOST_MODELS:,} models, its limit.")
        else:
            room -= 1
            folded.add(slug.lower())
            found[slug] = LanguageModel(
                organization=organization,
                slug=slug,
                canonical_slug=slug,
                name=new.name,
                created=int(clock.now().timestamp()),
                **_taken_from(base),
            )
    return found


def edit_own_model(model: LanguageModel, **changes: Any) -> bool:
    """Changes ``name`` and ``base_model``, and with another base all that is taken from it.

    Raises :class:`ModelInUse` when the base would change under an active endpoint, and
    :class:`ModelNotFound` for an unknown base.
    """
    with transaction.atomic():
        if "base_model" in changes:
            endpoints: Any = model.private_endpoints.filter(deleted_at=None)
            endpoints.exclude(status="active").lock_in_order()
        _lock_present(model)
        if "base_model" in changes:
            named = changes.pop("base_model")
            base = None if named is None else _find_bases(model.organization_id, [named]).get(named)
            if named is not None and (base is None or base.pk == model.pk):
                raise _unknown_base(named)
            if ("" if base is None else base.canonical_slug) != model.base_model:
                _require_unused(model, "base_model", status="active")
                changes |= _taken_from(base)
                for endpoint in model.private_endpoints.filter(deleted_at=None):
                    endpoint.forget_validation()
        return write_fields(model, changes)


def remove_own_model(model: LanguageModel) -> None:
    """Deletes a model; raises :class:`ModelInUse` while an endpoint of it is not deleted."""
    with transaction.atomic():
        _lock_present(model)
        _require_unused(model, "slug")
        model.is_listed = False
        model.save_fields("is_listed")


def _find_problem(slug: str, author: str) -> str | None:
    begun, separator, name = slug.partition("/")
    if begun != author or not separator:
        return f"Must begin with {author + '/'!r}, the slug of the organization."
    if not _NAME.fullmatch(name) or len(slug) > _MAX_SLUG:
        return (
            "After the organization's slug, must be letters, digits, dots, underscores and "
            f"hyphens, and begin with a letter or digit; at most {_MAX_SLUG} characters in all."
        )
    return None


def _is_author(slug: str) -> bool:
    begins = f"{slug}/"
    named = Q(slug__istartswith=begins) | Q(canonical_slug__istartswith=begins)
    return bool(LanguageModel.objects.filter(named).exists())


def _find_bases(
    organization_id: uuid.UUID | None, names: Collection[str | None]
) -> dict[str, LanguageModel]:
    """Returns the listed models that these names mean, the organization's own among them."""
    wanted = {name for name in names if name is not None}
    if not wanted:
        return {}
    visible = LanguageModel.objects.visible_to(organization_id).listed()
    rows = list(visible.filter(Q(slug__in=wanted) | Q(canonical_slug__in=wanted)))
    # A slug hides an equal permanent slug, and an own model hides one of the catalogue.
    return {row.canonical_slug: row for row in rows} | {row.slug: row for row in rows}


def _unknown_base(name: str) -> ModelNotFound:
    return ModelNotFound(f"base_model: There is no model {name[:_MAX_SLUG]!r} to take it from.")


def _taken_from(base: LanguageModel | None) -> dict[str, Any]:
    if base is None:
        taken = {name: list(v) if isinstance(v, tuple) else v for name, v in _DEFAULTS.items()}
        return {**taken, "base_model": ""}
    return {**{name: getattr(base, name) for name in _DEFAULTS}, "base_model": base.canonical_slug}


def _is_made_so(model: LanguageModel, new: NewModel, base: LanguageModel | None) -> bool:
    # A base that has left the catalogue meanwhile is the same one.
    same = (new.base_model or "") if base is None else base.canonical_slug
    return model.name == new.name and model.base_model == same


def _lock_present(model: LanguageModel) -> None:
    """Locks the organization, as the creation of an endpoint does, and reads the row again."""
    owner: Any = model.organization_id
    Organization.objects.lock(owner)
    model.refresh_from_db()
    if not model.is_listed:
        raise OwnModelNotFound


def _require_unused(model: LanguageModel, field: str, **only: Any) -> None:
    # ``endpoints`` are the public ones, which no own model has.
    endpoint = model.private_endpoints.filter(deleted_at=None, **only).order_by("pk").first()
    if endpoint is not None:
        raise ModelInUse(
            f"{field}: the endpoint {endpoint.pk} of the model is {endpoint.status}. Delete that "
            "endpoint first.",
            metadata={"endpoint_id": str(endpoint.pk)},
        )
