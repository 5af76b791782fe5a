"""Rate limits of organizations, workspaces, API keys and end users, for all models or for one."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from django.db import models, transaction
from django.db.models import Q

from accounts.models.edits import refusal, write_fields
from accounts.models.organizations import Organization
from accounts.models.versions import RoutingVersionBump
from config.audit.triggers import Audit
from config.models import BaseModel

LIMIT_NAMES: Final = (
    "requests_per_minute",
    "tokens_per_minute",
    "requests_per_day",
    "concurrent_requests",
)
MOST_RATE: Final = 10**12
# A worker keeps all of an organization's rate limits in memory, at about 300 bytes each.
MOST_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class LimitOwner:
    """The row that rate limits belong to: an organization, or one of its parts."""

    organization_id: uuid.UUID
    workspace_id: uuid.UUID | None = None
    api_key_id: uuid.UUID | None = None
    end_user: str | None = None

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of :class:`RateLimit` that name this owner."""
        return {
            "organization_id": self.organization_id,
            "workspace_id": self.workspace_id,
            "api_key_id": self.api_key_id,
            "end_user": self.end_user,
        }

    @property
    def is_organization(self) -> bool:
        return self.workspace_id is None and self.api_key_id is None and self.end_user is None

    def subject_id(self, model: str | None = None) -> uuid.UUID:
        """Returns the subject of the meter that counts the owner's requests, to one model or all.

        A workspace or key has a meter of its own id. An end user need not be registered, so its
        subject is derived from the text.
        """
        own = self.api_key_id or self.workspace_id
        if own is None:
            # The statement of admission names organizations without balance by their own id.
            name = "all" if self.end_user is None else f"end user {self.end_user}"
            own = uuid.uuid5(self.organization_id, name)
        return own if model is None else uuid.uuid5(own, f"model {model}")


class RateLimitQuerySet(models.QuerySet["RateLimit"]):
    def for_organization(self, organization_id: uuid.UUID) -> Self:
        return self.filter(organization_id=organization_id)

    def of(self, owner: LimitOwner) -> Self:
        return self.filter(**owner.columns)


class RateLimitManager(models.Manager.from_queryset(RateLimitQuerySet)):  # type: ignore[misc]
    def change(self, owner: LimitOwner, changes: Mapping[str, Any] | None) -> bool:
        """Changes the limits of an owner and returns whether any differ.

        A member that is absent stays unchanged, and ``None`` removes its limit; ``None`` instead
        of the changes removes all limits. ``models`` maps slugs to limits in the same form.
        Raises :class:`InvalidRequest` when the organization would have too many.
        """
        with transaction.atomic():
            Organization.objects.lock(owner.organization_id)
            if changes is None:
                return bool(self.of(owner).delete()[0])
            models_changed = changes.get("models", {})
            if models_changed is None:
                is_changed = bool(self.of(owner).exclude(model=None).delete()[0])
                models_changed = {}
            else:
                is_changed = False
            rows = {None: {name: changes[name] for name in LIMIT_NAMES if name in changes}}
            for model, limits in {**rows, **models_changed}.items():
                is_changed |= self._change_row(owner, model, limits)
            if is_changed and self.for_organization(owner.organization_id).count() > MOST_ROWS:
                raise refusal(
                    "rate_limits",
                    f"An organization can have at most {MOST_ROWS:,} rate limits of workspaces, "
                    "keys, end users and models. Remove some, or limit a workspace instead.",
                )
        return is_changed

    def describe(self, owners: Iterable[LimitOwner]) -> dict[LimitOwner, dict[str, Any]]:
        """Returns the limits of each owner, in the form in which the interface shows them."""
        found: dict[LimitOwner, list[RateLimit]] = {owner: [] for owner in owners}
        parts = Q(pk=None)
        for name in ("workspace_id", "api_key_id", "end_user"):
            named = [value for owner in found if (value := getattr(owner, name)) is not None]
            if named:
                parts |= Q(**{f"{name}__in": named})
        if any(owner.is_organization for owner in found):
            parts |= Q(workspace=None, api_key=None, end_user=None)
        rows = self.filter(parts, organization_id__in={owner.organization_id for owner in found})
        for row in rows:
            if row.owner in found:
                found[row.owner].append(row)
        return {owner: describe_limits(rows) for owner, rows in found.items()}

    def _change_row(
        self, owner: LimitOwner, model: str | None, limits: Mapping[str, int | None] | None
    ) -> bool:
        row = self.of(owner).filter(model=model).first()
        if row is None:
            if limits is None or all(value is None for value in limits.values()):
                return False
            self.create(**owner.columns, model=model, subject_id=owner.subject_id(model), **limits)
            return True
        left = {name: getattr(row, name) for name in LIMIT_NAMES} | dict(limits or {})
        if limits is None or all(value is None for value in left.values()):
            row.delete()
            return True
        return write_fields(row, limits)


class RateLimit(BaseModel):
    """The limits of one owner, for all models together or for one; an empty column limits nothing.

    ``subject_id`` names the meter that counts the requests. A request must keep within the limits
    of its key, workspace, organization and end user.
    """

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="rate_limits"
    )
    workspace = models.ForeignKey(
        "accounts.Workspace", on_delete=models.CASCADE, related_name="rate_limits", null=True
    )
    api_key = models.ForeignKey(
        "accounts.ApiKey", on_delete=models.CASCADE, related_name="rate_limits", null=True
    )
    end_user = models.CharField(max_length=512, null=True, db_collation="C")
    model = models.CharField(
        max_length=255, null=True, help_text="The slug of the model; empty for all models together."
    )
    subject_id = models.UUIDField(unique=True)
    requests_per_minute = models.BigIntegerField(null=True)
    tokens_per_minute = models.BigIntegerField(null=True)
    requests_per_day = models.BigIntegerField(null=True)
    concurrent_requests = models.BigIntegerField(null=True)

    objects = RateLimitManager()

    class Meta:
        default_permissions = ()
        ordering = ("model",)
        constraints = [
            models.CheckConstraint(
                condition=Q(workspace=None, api_key=None)
                | Q(workspace=None, end_user=None)
                | Q(api_key=None, end_user=None),
                name="rate_limit_one_owner",
            ),
            models.CheckConstraint(
                condition=~Q(**dict.fromkeys(LIMIT_NAMES)), name="rate_limit_not_empty"
            ),
            models.CheckConstraint(
                condition=Q(
                    *(
                        Q(**{name: None}) | Q(**{f"{name}__gt": 0, f"{name}__lte": MOST_RATE})
                        for name in LIMIT_NAMES
                    )
                ),
                name="rate_limit_positive",
            ),
        ]
        triggers = [RoutingVersionBump(), Audit()]

    def __str__(self) -> str:
        return f"rate limit of {self.subject_id}"

    @property
    def owner(self) -> LimitOwner:
        return LimitOwner(self.organization_id, self.workspace_id, self.api_key_id, self.end_user)


def describe_limits(rows: Collection[RateLimit]) -> dict[str, Any]:
    """Returns the limits of one owner in the form in which the interface shows and takes them."""
    own: dict[str, Any] = dict.fromkeys(LIMIT_NAMES)
    by_model: dict[str, Any] = {}
    for row in rows:
        limits = {name: getattr(row, name) for name in LIMIT_NAMES}
        if row.model is None:
            own = limits
        else:
            by_model[row.model] = limits
    return {**own, "models": dict(sorted(by_model.items()))}
