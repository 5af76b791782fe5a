"""Broadcast destinations of workspaces, and the progress of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, Self

from django.contrib.postgres.fields import ArrayField
from django.db import models, transaction
from django.db.models import Q
from django.db.models.functions import Now

from accounts.destinations.receivers import MASK, METHODS, Receiver, host_of, read_headers
from accounts.models.edits import write_fields
from accounts.models.keys import ApiKey
from accounts.models.limits import OrganizationLimit, patterns_of, require_pattern_room
from accounts.models.organizations import Organization
from accounts.models.terms import Region
from accounts.models.workspaces import Workspace, require_workspace
from config import secrets
from config.api.errors import Conflict, NotFound
from config.audit.triggers import Audit
from config.models import BaseModel, OwnedQuerySet

MAX_OF_A_TYPE: Final = 5
_KEYS: Final = "api_key_hashes"
MOST_IN_A_BATCH: Final = 200
"""The generations that one request to a receiver has at most."""


class DestinationNotFound(NotFound):
    message = "The destination does not exist."


class TooManyDestinations(Conflict):
    error_type = "too_many_destinations"
    message = (
        f"A workspace has at most {MAX_OF_A_TYPE} destinations of a type. Delete one, or change it."
    )


class DestinationQuerySet(OwnedQuerySet["BroadcastDestination"]):
    present = {"workspace__deleted_at": None}

    def broadcasting(self) -> Self:
        """Narrows to the enabled destinations of workspaces that broadcast."""
        return self.filter(
            is_enabled=True,
            workspace__is_observability_broadcast_enabled=True,
            workspace__deleted_at=None,
        )


class DestinationManager(models.Manager.from_queryset(DestinationQuerySet)):  # type: ignore[misc]
    def create_destination(
        self, workspace: Workspace, *, kind: str, receiver: Receiver, **fields: Any
    ) -> BroadcastDestination:
        """Creates a destination; it gets the generations that are admitted from now on.

        A list that names a former hash of a key names its present one too.

        Raises :class:`TooManyDestinations`, :class:`WorkspaceNotFound` for a workspace that was
        deleted meanwhile, and :class:`OrganizationLimitReached`.
        """
        with transaction.atomic():
            organization = Organization.objects.lock(workspace.organization_id)
            require_workspace(workspace.pk)
            if self.filter(workspace=workspace, kind=kind).count() >= MAX_OF_A_TYPE:
                raise TooManyDestinations
            present = self.for_organization(workspace.organization_id).count()
            organization.require_room(OrganizationLimit.DESTINATIONS, present)
            if _KEYS in fields:
                fields[_KEYS] = ApiKey.objects.add_current(organization.pk, fields[_KEYS])
            destination: BroadcastDestination = self.model(
                organization_id=workspace.organization_id,
                workspace=workspace,
                kind=kind,
                **fields,
            )
            patterns = patterns_of(destination.filter_rules)
            require_pattern_room(organization, patterns, replaced=destination.pk)
            destination._take_receiver(receiver)
            destination.save(force_insert=True)
            progress = BroadcastProgress.objects.create(destination=destination, cursor_at=Now())
            progress.refresh_from_db(fields=["cursor_at"])
        return destination


class BroadcastDestination(BaseModel):
    """A receiver of the metadata of a workspace's generations; its headers are write-only."""

    class Kind(models.TextChoices):
        OTEL_COLLECTOR = "otel-collector", "OpenTelemetry collector"
        WEBHOOK = "webhook", "webhook"

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="destinations", editable=False
    )
    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="destinations")
    kind = models.CharField("type", max_length=32, choices=Kind)
    name = models.CharField(max_length=255)
    url = models.CharField(
        "URL", max_length=2048, help_text="Receives OTLP over HTTP as JSON. Must begin with https."
    )
    method = models.CharField(
        max_length=8, choices=[(name, name) for name in METHODS], default="POST"
    )
    header_names = ArrayField(models.CharField(max_length=100), default=list, editable=False)
    sealed = models.BinaryField(editable=False)
    is_enabled = models.BooleanField("enabled", default=True)
    sampling_rate = models.DecimalField(
        max_digits=5,
        decimal_places=4,
        default=1,
        help_text="The share of sessions, or of generations without a session, that is sent.",
    )
    regions = ArrayField(models.CharField(max_length=16, choices=Region), default=list)
    api_key_hashes = ArrayField(
        models.CharField(max_length=64),
        null=True,
        blank=True,
        verbose_name="API key hashes",
        help_text="Only the generations of these keys are sent. Empty: those of all keys.",
    )
    filter_rules = models.JSONField(null=True, blank=True)
    has_cost = models.BooleanField(
        "cost", default=False, help_text="Sends costs and what they are made of."
    )
    has_identity = models.BooleanField(
        "identity",
        default=False,
        help_text="Sends the end user, the API key, its creator and the application.",
    )
    has_request_context = models.BooleanField(
        "request context",
        default=False,
        help_text="Sends the route, the attempts, the region, the request's id and the user agent.",
    )

    objects = DestinationManager()

    class Meta:
        verbose_name = "broadcast destination"
        ordering = ("created_at", "id")
        constraints = [
            models.CheckConstraint(
                condition=Q(sampling_rate__gt=0, sampling_rate__lte=1),
                name="destination_sampling_rate",
            ),
            models.CheckConstraint(
                condition=Q(kind__in=("otel-collector", "webhook")), name="destination_kind"
            ),
            models.CheckConstraint(
                condition=Q(url__startswith="https://"), name="destination_https"
            ),
            models.CheckConstraint(condition=Q(regions__len__gt=0), name="destination_regions"),
        ]
        triggers = [Audit(masked=("sealed",))]

    def __str__(self) -> str:
        return self.name

    @property
    def host(self) -> str:
        return host_of(self.url)

    @property
    def shown_headers(self) -> dict[str, str]:
        """The headers with masked values."""
        return dict.fromkeys(self.header_names, MASK)

    def receiver(self) -> Receiver:
        """Decrypts the headers; raises :class:`config.secrets.DecryptionFailed`."""
        headers: dict[str, str] = {}
        if self.sealed:
            sealed = bytes(self.sealed)
            headers = read_headers(secrets.unseal(sealed, associated=self._associated))
        return Receiver(self.url, self.method, headers)

    def edit(
        self, *, find_receiver: Callable[[Receiver | None], Receiver] | None = None, **changes: Any
    ) -> bool:
        """PRESENT → PRESENT. Writes the fields that differ and returns whether any did.

        ``find_receiver`` returns the new receiver for the stored one, which is ``None`` if no key
        decrypts its headers. Of changes at once, each begins with what the one before left. A
        destination that becomes enabled gets the generations that are admitted from then on. A
        changed receiver gets its next request at once, even if the old one failed. A list that
        names a former hash of a key names its present one too. Raises :class:`DestinationNotFound`
        when the destination was deleted meanwhile, and :class:`OrganizationLimitReached` for
        patterns that are too large together.
        """
        with transaction.atomic():
            organization = Organization.objects.lock(self.organization_id)
            self._lock_present()
            if _KEYS in changes:
                changes[_KEYS] = ApiKey.objects.add_current(organization.pk, changes[_KEYS])
            if "filter_rules" in changes:
                patterns = patterns_of(changes["filter_rules"])
                require_pattern_room(organization, patterns, replaced=self.pk)
            was_enabled, before = self.is_enabled, self._receiver_columns()
            if find_receiver is not None:
                stored = self.known_receiver()
                receiver = find_receiver(stored)
                if receiver != stored:
                    self._take_receiver(receiver)
                    self.save_fields("url", "method", "header_names", "sealed")
            is_changed = write_fields(self, changes)
            is_moved = self._receiver_columns() != before
            if self.is_enabled and not was_enabled:
                self.restart()
            elif is_moved:
                self.progress.forget_failures()
        return is_changed or is_moved

    def remove(self) -> None:
        """PRESENT → DELETED. Nothing is sent any more; raises :class:`DestinationNotFound`."""
        with transaction.atomic():
            # As a change of the workspace does, which writes to the rows that it has found.
            Organization.objects.lock(self.organization_id)
            self._lock_present()
            self.delete()

    def close(self) -> None:
        """PRESENT → DISABLED, with its workspace. Erases the headers."""
        self.is_enabled, self.sealed, self.header_names = False, b"", []
        self.save_fields("is_enabled", "sealed", "header_names")

    def restart(self) -> None:
        """Limits the destination to generations that are admitted from now on."""
        self.progress.restart()

    def lock_receiver(self) -> bool:
        """Locks the row; returns whether its receiver is still that of this instance."""
        rows = BroadcastDestination._base_manager.select_for_update(no_key=True)
        same = rows.filter(pk=self.pk, url=self.url, method=self.method, sealed=self.sealed)
        return same.values_list("pk").first() is not None

    def rewrap(self) -> bool:
        """Encrypts the headers with the first credential key; returns whether the row changed."""
        return secrets.rewrap_row(self, "sealed", associated=self._associated)

    @property
    def _associated(self) -> str:
        return f"{self.pk}|{self.organization_id}|{self.workspace_id}|broadcast"

    def _receiver_columns(self) -> tuple[Any, ...]:
        return self.url, self.method, bytes(self.sealed)

    def known_receiver(self) -> Receiver | None:
        """Decrypts the headers; returns ``None`` if no key does."""
        try:
            return self.receiver()
        except secrets.DecryptionFailed:
            return None

    def _take_receiver(self, receiver: Receiver) -> None:
        self.url, self.method = receiver.url, receiver.method
        self.header_names = list(receiver.headers)
        self.sealed = b""
        if receiver.headers:
            self.sealed = secrets.seal(receiver.secret(), associated=self._associated)

    def _lock_present(self) -> None:
        self.lock_row(DestinationNotFound)


class BroadcastProgress(models.Model):
    """The progress of a destination: it is done with generations admitted before the cursor.

    Generations before the cursor that had not ended are in :class:`BroadcastWait`. The sender
    writes this row, and not that of the destination, because changes of that one are audited.
    """

    destination = models.OneToOneField(
        BroadcastDestination, on_delete=models.CASCADE, primary_key=True, related_name="progress"
    )
    cursor_at = models.DateTimeField(help_text="Compared with the time of admission.")
    cursor_id = models.CharField(max_length=48, default="", db_collation="C")
    batch = models.IntegerField(
        default=MOST_IN_A_BATCH, help_text="Generations in the next request at most."
    )
    failures = models.IntegerField(default=0, help_text="Failed requests since the last success.")
    failing_since = models.DateTimeField(null=True)
    retry_at = models.DateTimeField(null=True)
    last_error = models.CharField(max_length=255, default="")
    succeeded_at = models.DateTimeField(null=True)
    sent = models.BigIntegerField(default=0)
    skipped = models.BigIntegerField(default=0, help_text="Generations that were given up.")
    mean_ms = models.PositiveIntegerField(
        "mean duration",
        default=0,
        db_default=0,
        help_text="Milliseconds that a request takes on average; the last ones count most.",
    )

    # The values after a restart.
    _HEALTHY: ClassVar[dict[str, Any]] = {
        "failures": 0,
        "failing_since": None,
        "retry_at": None,
        "last_error": "",
        "batch": MOST_IN_A_BATCH,
    }

    def __str__(self) -> str:
        return f"{self.destination_id} at {self.cursor_at:%Y-%m-%d %H:%M:%S}"

    @property
    def state(self) -> str:
        """``failing`` while the last request failed, else ``delivering``."""
        return "failing" if self.failures else "delivering"

    def next_mean(self, duration_ms: int) -> int:
        """Returns the mean duration after one more request, which counts for a quarter of it."""
        return (self.mean_ms * 3 + duration_ms) // 4

    def forget_failures(self) -> None:
        """Resets the failures, so that the next request begins at once."""
        BroadcastProgress.objects.filter(pk=self.pk).update(**self._HEALTHY)

    def restart(self) -> None:
        """Moves the cursor to now and deletes the waits."""
        BroadcastProgress.objects.filter(pk=self.pk).update(
            cursor_at=Now(), cursor_id="", **self._HEALTHY
        )
        BroadcastWait.objects.filter(destination=self.pk).delete()


class BroadcastWait(models.Model):
    """A generation that had not ended when the cursor of a destination passed it."""

    destination = models.ForeignKey(
        BroadcastDestination, on_delete=models.CASCADE, related_name="waits", db_index=False
    )
    generation_id = models.CharField(max_length=48, db_collation="C")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=("destination", "generation_id"), name="broadcast_wait_once"
            )
        ]

    def __str__(self) -> str:
        return self.generation_id
