"""Abstract base models."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Self, TypeVar

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import OpClass
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.db.models.expressions import OrderBy
from django.db.models.functions import Collate, Upper
from django.db.models.indexes import IndexExpression

from config.api.errors import InvalidTransition

# Django finds the models of the app ``config`` in this module only.
from config.audit.entries import AuditEntry as AuditEntry
from config.changes.models import ChangeRule as ChangeRule
from config.changes.models import ChangeSet as ChangeSet
from config.clocks.clock import clock
from config.clocks.leases import Lease as Lease
from config.console.lists.models import SavedView as SavedView
from config.console.sign_in.models import SecondFactor as SecondFactor
from config.console.sign_in.models import SignInLimit as SignInLimit
from config.egress.addresses import Reach, parse_network
from config.egress.rules import MOST_SECONDS, TimeLimits, read_authorities
from config.events.outbox import Event as Event
from config.partitions.departures import Departure as Departure

# The app django.contrib.postgres does this too. It also asks each new connection for the types of
# extensions, which no column has.
IndexExpression.register_wrappers(OrderBy, OpClass, Collate)


_Row = TypeVar("_Row", bound=models.Model)


class OwnedQuerySet(models.QuerySet[_Row]):
    """Rows of organizations; those that were deleted have other values than ``present``."""

    present: ClassVar[Mapping[str, Any]] = {}

    def for_organization(self, organization_id: uuid.UUID) -> Self:
        """Returns the rows of an organization that are not deleted."""
        return self.filter(organization_id=organization_id, **self.present)


def index_beginnings(column: str, name: str) -> models.Index:
    """Returns an index that finds texts by how they begin, in capital letters or small ones."""
    return models.Index(OpClass(Upper(column), name="text_pattern_ops"), name=name)


class StampField(models.DateTimeField):  # type: ignore[type-arg]
    """A time that ``auto_now`` or ``auto_now_add`` sets by the database's clock."""

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        if not (self.auto_now or (self.auto_now_add and add)):
            return super().pre_save(model_instance, add)
        value = clock.now()
        setattr(model_instance, self.attname, value)
        return value

    def deconstruct(self) -> tuple[str, str, Sequence[Any], dict[str, Any]]:
        """Describes the column for migrations as the usual field, whose column it has."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.DateTimeField", args, kwargs


class BaseModel(models.Model):
    """A row with a UUID primary key and the times of its creation and its last change."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    created_at = StampField(auto_now_add=True, editable=False)
    updated_at = StampField(auto_now=True, editable=False)

    class Meta:
        abstract = True

    def save_fields(self, *fields: str) -> None:
        """Saves only the named fields and ``updated_at``."""
        self.save(update_fields=[*fields, "updated_at"])

    def lock_row(self, missing: type[Exception], *, no_key: bool = False) -> None:
        """Locks the row until the transaction ends, and reads it; raises ``missing`` without it."""
        rows = type(self)._base_manager.select_for_update(no_key=no_key)
        try:
            self.refresh_from_db(from_queryset=rows)
        except type(self).DoesNotExist:
            raise missing from None


class StatefulModel(BaseModel):
    """A row whose ``status`` only its transition methods write."""

    status: Any

    class Meta:
        abstract = True

    def lock(self) -> None:
        """Locks the row until the transaction ends and refreshes this instance from it.

        Raises ``TransactionManagementError`` outside a transaction, and the model's
        ``DoesNotExist`` when the row was deleted.
        """
        self.refresh_from_db(from_queryset=type(self)._base_manager.select_for_update())

    def require_status(self, *allowed: str) -> None:
        """Raises :class:`InvalidTransition` unless ``status`` is one of the allowed ones."""
        if self.status not in allowed:
            names = " or ".join(str(status) for status in allowed)
            raise InvalidTransition(
                f"The {self._meta.verbose_name} is {self.status}; this needs it to be {names}.",
                metadata={"status": str(self.status)},
            )


def require_network(text: str) -> None:
    """Raises :class:`ValidationError` unless the text is a network; migrations name it."""
    try:
        parse_network(text)
    except ValueError as exc:
        raise ValidationError(str(exc)) from None


def require_authorities(text: str) -> None:
    """Raises :class:`ValidationError` unless the text is certificates; migrations name it."""
    try:
        read_authorities(text)
    except ValueError as exc:
        raise ValidationError(str(exc)) from None


class ReachingModel(models.Model):
    """A row for whose connections alone the operator allows more; see :class:`Reach`."""

    allowed_networks = ArrayField(
        models.CharField(max_length=43, validators=[require_network]),
        null=True,
        blank=True,
        help_text="Networks that connections may reach although they are not public, such as "
        "10.0.0.5/32. UPSTREAM_ALLOWED_NETWORKS has those of everybody.",
    )
    ca_certificates = models.TextField(
        "CA certificates",
        default="",
        db_default="",
        blank=True,
        max_length=65_536,
        validators=[require_authorities],
        help_text="Authorities in PEM that are trusted besides the public ones.",
    )

    class Meta:
        abstract = True

    @property
    def reach(self) -> Reach:
        return Reach(tuple(map(parse_network, self.allowed_networks or ())), self.ca_certificates)


class _SecondsField(models.PositiveIntegerField):  # type: ignore[type-arg]
    """A limit of time in seconds; empty for the operator's."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"null": True, "blank": True, **kwargs})

    def formfield(self, **kwargs: Any) -> Any:
        return super().formfield(**{"min_value": 1, "max_value": MOST_SECONDS, **kwargs})

    def deconstruct(self) -> tuple[str, str, Sequence[Any], dict[str, Any]]:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.PositiveIntegerField", args, kwargs


class TimeLimitedModel(models.Model):
    """A row with the limits of time of calls to an upstream; see :class:`TimeLimits`."""

    connect_timeout = _SecondsField(help_text="Seconds for name, connection and TLS.")
    headers_timeout = _SecondsField(help_text="Seconds until the headers of a stream.")
    first_event_timeout = _SecondsField(help_text="Seconds until the first event of a stream.")
    idle_timeout = _SecondsField(help_text="Seconds of silence within a stream.")
    total_timeout = _SecondsField(help_text="Seconds for a whole answer.")

    class Meta:
        abstract = True

    @property
    def time_limits(self) -> TimeLimits:
        return TimeLimits(
            self.connect_timeout,
            self.headers_timeout,
            self.first_event_timeout,
            self.idle_timeout,
            self.total_timeout,
        )

    @time_limits.setter
    def time_limits(self, limits: TimeLimits) -> None:
        for name, value in time_columns(limits).items():
            setattr(self, name, value)

    @staticmethod
    def constrain_times(name: str) -> models.CheckConstraint:
        """Returns the constraint that every limit is from a second to a day."""
        condition = Q()
        for column in TIME_COLUMNS:
            condition &= Q(**{f"{column}__isnull": True}) | Q(
                **{f"{column}__range": (1, MOST_SECONDS)}
            )
        return models.CheckConstraint(condition=condition, name=name)


TIME_COLUMNS: Final = tuple(f"{name}_timeout" for name in TimeLimits._fields)


def time_columns(limits: TimeLimits) -> dict[str, int | None]:
    """Returns the limits by the names of their columns."""
    return dict(zip(TIME_COLUMNS, limits, strict=True))
