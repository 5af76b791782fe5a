"""Rate limits of organizations, workspaces, API keys and end users, for all models or for one."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from django.db import models, transaction
from django.db.models import F, Q

from accounts.models.edits import refusal, write_fields
from accounts.models.organizations import Organization
from accounts.models.versions import RoutingVersionBump
from config.api.errors import Unprocessable
from config.audit.triggers import Audit
from config.models import BaseModel, OwnedQuerySet

LIMIT_NAMES: Final = (
    "requests_per_minute",
    "tokens_per_minute",
    "requests_per_day",
    "concurrent_requests",
)
MOST_RATE: Final = 10**12
# A worker keeps all of an organization's rate limits in memory, at about 300 bytes each.
MOST_ROWS: Final = 10_000


class AboveCeiling(Unprocessable):
    """A management key asked for a limit that is higher than what an operator allows."""

    error_type = "rate_limit_above_ceiling"

    def __init__(self, name: str, model: str | None, ceiling: int) -> None:
        field = ".".join(["rate_limits", *([] if model is None else ["models", model]), name])
        why = f"Must be at most {ceiling}, which the operator of this service allows."
        super().__init__(f"{field}: {why}", metadata={"fields": {field: why}, "ceiling": ceiling})


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The highest limits that an operator allows, for one model or for all models together.

    ``values`` has a number or ``None``, for no ceiling, by the name of each limit.
    ``replaces_lower`` says that lower limits, which management keys have set, rise to them.
    """

    values: Mapping[str, int | None]
    model: str | None = None
    replaces_lower: bool = False


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


# The changes of an operator, or those of a management key; ``None`` removes all limits.
Changes = Ceilings | Mapping[str, Any] | None


class RateLimitQuerySet(OwnedQuerySet["RateLimit"]):
    def of(self, owner: LimitOwner) -> Self:
        return self.filter(**owner.columns)

    def remove(self) -> bool:
        """Deletes the rows, except that limits with a ceiling return to it; returns if any did."""
        without = dict.fromkeys(f"{name}_ceiling" for name in LIMIT_NAMES)
        is_changed = bool(self.filter(**without).delete()[0])
        for row in self.all():
            ceilings = {name: row.within_ceiling(name, None) for name in LIMIT_NAMES}
            is_changed |= write_fields(row, ceilings)
        return is_changed


class RateLimitManager(models.Manager.from_queryset(RateLimitQuerySet)):  # type: ignore[misc]
    def change(self, owner: LimitOwner, changes: Changes) -> bool:
        """Changes the limits of an owner and returns whether any differ.

        :class:`Ceilings` are the change of an operator, all others that of a management key: a
        member that is absent stays unchanged, and ``None`` removes its limit; ``None`` instead of
        the changes removes all limits. ``models`` maps slugs to limits in the same form. A limit
        that has a ceiling returns to it instead. Raises :class:`AboveCeiling` for a higher limit,
        and :class:`InvalidRequest` when the organization would have too many.
        """
        with transaction.atomic():
            Organization.objects.lock(owner.organization_id)
            if isinstance(changes, Ceilings):
                is_changed = self._set_ceilings(owner, changes)
            else:
                is_changed = self._change_limits(owner, changes)
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

    def _change_limits(self, owner: LimitOwner, changes: Mapping[str, Any] | None) -> bool:
        limited: RateLimitQuerySet = self.of(owner)
        if changes is None:
            return limited.remove()
        is_changed = False
        by_model = changes.get("models", {})
        if by_model is None:
            is_changed = limited.exclude(model=None).remove()
            by_model = {}
        own = {name: changes[name] for name in LIMIT_NAMES if name in changes}
        for model, limits in {None: own, **by_model}.items():
            is_changed |= self._change_row(owner, model, limits)
        return is_changed

    def _set_ceilings(self, owner: LimitOwner, ceilings: Ceilings) -> bool:
        """Sets ceilings, and the limits that follow them.

        A limit that equals its ceiling follows the new one. A lower one stays, unless the new
        ceiling is lower still.
        """
        row = self.of(owner).filter(model=ceilings.model).first()
        written: dict[str, int | None] = {}
        for name in LIMIT_NAMES:
            ceiling = ceilings.values[name]
            lower = None if row is None or ceilings.replaces_lower else row.lower_limit(name)
            is_kept = lower is not None and (ceiling is None or lower < ceiling)
            written |= {name: lower if is_kept else ceiling, f"{name}_ceiling": ceiling}
        return self._write_row(owner, ceilings.model, row, written)

    def _change_row(
        self, owner: LimitOwner, model: str | None, limits: Mapping[str, int | None] | None
    ) -> bool:
        rows: RateLimitQuerySet = self.of(owner).filter(model=model)
        if limits is None:
            return rows.remove()
        row = rows.first()
        if row is not None:
            limits = {name: row.within_ceiling(name, limit) for name, limit in limits.items()}
        return self._write_row(owner, model, row, limits)

    def _write_row(
        self,
        owner: LimitOwner,
        model: str | None,
        row: RateLimit | None,
        values: Mapping[str, int | None],
    ) -> bool:
        """Writes columns of a row, which is made if it is missing and deleted if none is left."""
        if row is None:
            if all(value is None for value in values.values()):
                return False
            self.create(**owner.columns, model=model, subject_id=owner.subject_id(model), **values)
            return True
        left = {name: getattr(row, name) for name in LIMIT_NAMES} | dict(values)
        if all(value is None for value in left.values()):
            row.delete()
            return True
        return write_fields(row, values)


class RateLimit(BaseModel):
    """The limits of one owner, for all models together or for one; an empty column limits nothing.

    ``subject_id`` names the meter that counts the requests. A request must keep within the limits
    of its key, workspace, organization and end user. A ceiling is the highest limit that an
    operator allows. Nothing but a change of limits reads it: a limit never exceeds its ceiling.
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
    requests_per_minute_ceiling = models.BigIntegerField(null=True)
    tokens_per_minute_ceiling = models.BigIntegerField(null=True)
    requests_per_day_ceiling = models.BigIntegerField(null=True)
    concurrent_requests_ceiling = models.BigIntegerField(null=True)

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
            models.CheckConstraint(
                condition=Q(
                    *(
                        Q(**{f"{name}_ceiling": None})
                        | Q(**{f"{name}__isnull": False, f"{name}__lte": F(f"{name}_ceiling")})
                        for name in LIMIT_NAMES
                    )
                ),
                name="rate_limit_within_ceiling",
            ),
        ]
        triggers = [RoutingVersionBump(), Audit()]

    def __str__(self) -> str:
        return f"rate limit of {self.subject_id}"

    @property
    def owner(self) -> LimitOwner:
        return LimitOwner(self.organization_id, self.workspace_id, self.api_key_id, self.end_user)

    def lower_limit(self, name: str) -> int | None:
        """Returns a limit that differs from its ceiling; ``None`` for one that equals it."""
        limit: int | None = getattr(self, name)
        return None if limit == getattr(self, f"{name}_ceiling") else limit

    def within_ceiling(self, name: str, limit: int | None) -> int | None:
        """Returns a new limit, or the ceiling for ``None``; raises :class:`AboveCeiling`."""
        ceiling: int | None = getattr(self, f"{name}_ceiling")
        if limit is None or ceiling is None:
            return ceiling if limit is None else limit
        if limit > ceiling:
            raise AboveCeiling(name, self.model, ceiling)
        return limit


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
