"""Generations, one for each admitted inference request, with their journals, feedback and usage."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Final, Self

import pgtrigger
from django.contrib.postgres.fields import ArrayField
from django.db import models, transaction
from django.db.models import Q
from django.db.models.functions import Now

from accounts.models import ApiKey, Member, Organization, Workspace
from catalog.models import ModelEndpoint, PriceVersion
from catalog.pricing import Usage
from config.api.errors import Conflict
from config.clocks.writing import write_minute
from config.events.outbox import record_event
from config.models import OwnedQuerySet, StampField
from config.partitions.declarations import Partitioning
from config.partitions.spans import YEAR
from config.triggers import TRANSACTION_ID, KeepUsed, Trigger, carry
from endpoints.models import Attestation, PrivateEndpoint
from inference.ids import first_id, id_bound, last_id, read_id_bound

# Django finds the models of the app in this module only.
from inference.shadow_counts import GuardrailCount as GuardrailCount
from inference.shadow_counts import ShadowCount as ShadowCount
from inference.stored_texts import StoredText as StoredText
from inference.stored_texts import TextDeletion as TextDeletion
from inference.stored_texts import TextKey as TextKey

# The foreign keys of a generation: see there.
_UNCHECKED: Final[dict[str, Any]] = {
    "related_name": "+", "db_index": False, "db_constraint": False,
}  # fmt: skip


def _keep_used(column: str, *, organization: str = "organization_id") -> KeepUsed:
    """Returns the trigger for a row of an organization."""
    return KeepUsed(
        used=f"inference_generation WHERE organization_id = OLD.{organization} "
        f"AND {column} = OLD.id",
        lock=f"PERFORM 1 FROM billing_account WHERE organization_id = OLD.{organization} "
        "AND kind = 'credits' FOR NO KEY UPDATE;",
    )


class GenerationQuerySet(OwnedQuerySet["Generation"]):
    def created(self, since: datetime, until: datetime | None = None) -> Self:
        """Narrows to the rows of a time, and to its partitions by the ids."""
        rows = self.filter(pk__gte=first_id(since), created_at__gte=since)
        if until is None:
            return rows
        return rows.filter(pk__lt=last_id(until), created_at__lt=until)


class Generation(models.Model):
    """One admitted request: its caller, endpoint, usage and cost; never its text.

    Admission stores the row and its price before anything is sent; settlement gives it exactly one
    terminal status. No index has a column that settlement writes, so its update touches no index.
    :class:`Journal` finds the pending rows.

    PostgreSQL does not check the foreign keys of each row, which costs a sixth of the throughput.
    The triggers ``keep_used`` refuse to delete a row that a generation refers to, and
    ``verify_ledger`` finds a reference to nothing.

    The table has a partition for each month, by the second in the id. A statement that does not
    bound the id reads all of them.
    """

    # A generation doubles when it is settled; its page has the room.
    partitioning: ClassVar = Partitioning(
        "inference_generation",
        "id",
        write_bound=id_bound,
        read_bound=read_id_bound,
        storage={"fillfactor": 40},
    )

    class Status(models.TextChoices):
        PENDING = "pending", "pending"
        COMPLETED = "completed", "completed"
        FAILED = "failed", "failed"
        CANCELLED = "cancelled", "cancelled"

    id = models.CharField(primary_key=True, max_length=48)
    organization = models.ForeignKey(
        Organization,
        on_delete=models.PROTECT,
        **_UNCHECKED,
    )
    workspace = models.ForeignKey(Workspace, on_delete=models.PROTECT, **_UNCHECKED)
    api_key = models.ForeignKey(ApiKey, on_delete=models.PROTECT, **_UNCHECKED)
    member = models.ForeignKey(
        Member,
        on_delete=models.PROTECT,
        null=True,
        **_UNCHECKED,
        help_text="The creator of the key at the time of the request.",
    )
    end_user = models.CharField(max_length=512, null=True, db_collation="C")
    session_id = models.CharField(max_length=256, null=True)
    preset_id = models.UUIDField(null=True, help_text="The preset that the request named.")
    trace = models.TextField(
        null=True, editable=False, help_text="The caller's own trace of the request, as JSON."
    )
    region = models.CharField(
        max_length=16,
        default="global",
        db_default="global",
        help_text="The region of the host that was called.",
    )
    http_referer = models.CharField(max_length=512, null=True)
    app_title = models.CharField(max_length=255, null=True)
    user_agent = models.CharField(max_length=255, null=True)
    operation = models.CharField(max_length=32)
    streamed = models.BooleanField()
    model = models.CharField(
        max_length=255,
        help_text="The slug of the model; the request may have named an alias of it.",
    )
    private_endpoint = models.ForeignKey(
        PrivateEndpoint,
        on_delete=models.PROTECT,
        null=True,
        **_UNCHECKED,
    )
    model_endpoint = models.ForeignKey(
        ModelEndpoint,
        on_delete=models.PROTECT,
        null=True,
        **_UNCHECKED,
    )
    provider_name = models.CharField(max_length=255)
    attestation = models.ForeignKey(
        Attestation,
        on_delete=models.PROTECT,
        null=True,
        **_UNCHECKED,
        help_text="The private endpoint's attestation when the request was sent.",
    )
    price = models.ForeignKey(
        PriceVersion,
        on_delete=models.PROTECT,
        **_UNCHECKED,
    )
    is_byok = models.BooleanField()
    status = models.CharField(max_length=16, choices=Status, default=Status.PENDING)
    prompt_tokens = models.BigIntegerField(null=True)
    completion_tokens = models.BigIntegerField(null=True)
    cached_tokens = models.BigIntegerField(null=True)
    cache_write_tokens = models.BigIntegerField(null=True)
    reasoning_tokens = models.BigIntegerField(null=True)
    units = models.JSONField(
        null=True, help_text="What was used besides these tokens: images, searches, audio, …"
    )
    is_estimated = models.BooleanField(default=False, help_text="The upstream reported no usage.")
    hold_nano = models.BigIntegerField(
        default=0, db_default=0, help_text="The hold on credits, in nano-USD."
    )
    upstream_hold_nano = models.BigIntegerField(
        default=0,
        db_default=0,
        help_text="The upper bound of the cost paid by BYOK credentials, in nano-USD.",
    )
    limit_subjects = ArrayField(
        models.UUIDField(),
        null=True,
        help_text="The meters that count the request for rate limits, besides those of its key, "
        "workspace and member.",
    )
    held_tokens = models.BigIntegerField(
        null=True,
        help_text="The tokens held on the meters while it runs; empty if they do not count it.",
    )
    cost_nano = models.BigIntegerField(
        default=0, help_text="The cost paid by credits, in nano-USD."
    )
    upstream_cost_nano = models.BigIntegerField(
        default=0, help_text="The cost of the usage at the pinned price, in nano-USD."
    )
    reported_cost_nano = models.BigIntegerField(
        null=True, help_text="The cost that the provider itself reported, in nano-USD."
    )
    finish_reason = models.CharField(max_length=64, null=True)
    native_finish_reason = models.CharField(max_length=64, null=True)
    upstream_id = models.CharField(max_length=255, null=True)
    upstream_model = models.CharField(max_length=255, null=True)
    error_type = models.CharField(max_length=64, null=True)
    attempts = models.JSONField(default=list)
    created_at = models.DateTimeField()
    latency_ms = models.PositiveIntegerField(null=True, help_text="Time to the first event.")
    duration_ms = models.PositiveIntegerField(null=True)
    request_id = models.CharField(max_length=64, default="")
    cached_from = models.CharField(
        max_length=48,
        null=True,
        help_text="The generation whose answer was given again, from the response cache.",
    )
    retry_of = models.CharField(
        max_length=48,
        null=True,
        help_text="The generation that the caller's SDK sent again after a lost connection.",
    )

    objects = GenerationQuerySet.as_manager()

    class Meta:
        ordering = ("-id",)
        indexes = [
            models.Index(fields=("organization", "-created_at"), name="generation_by_organization"),
            models.Index(fields=("api_key", "created_at"), name="generation_by_key"),
            models.Index(
                fields=("end_user", "-created_at"),
                condition=Q(end_user__isnull=False),
                name="generation_by_end_user",
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(cost_nano__gte=0, upstream_cost_nano__gte=0),
                name="generation_cost_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(private_endpoint=None) ^ Q(model_endpoint=None),
                name="generation_one_endpoint",
            ),
        ]
        triggers = [KeepUsed(used="inference_journal WHERE generation_id = OLD.id")]

    def __str__(self) -> str:
        return self.id

    @property
    def usage(self) -> Usage | None:
        """The stored usage, by which the cost can be computed again; ``None`` without one."""
        if self.prompt_tokens is None and self.completion_tokens is None:
            return None
        return Usage(
            prompt=self.prompt_tokens or 0,
            completion=self.completion_tokens or 0,
            cached=self.cached_tokens or 0,
            cache_write=self.cache_write_tokens or 0,
            reasoning=self.reasoning_tokens or 0,
            **(self.units or {}),
        )

    @property
    def instant(self) -> int:
        """The instant of the request in Unix seconds, by which windows of a price are judged."""
        return int(self.created_at.timestamp())


class Journal(models.Model):
    """The progress of a running generation, by which the sweeper bills it after a crash.

    Every pending generation has a journal, created and deleted with its hold. After the first
    second the serving worker updates it at least once a second.
    """

    generation = models.OneToOneField(
        Generation,
        on_delete=models.CASCADE,
        primary_key=True,
        related_name="journal",
        db_constraint=False,
    )
    prompt_tokens = models.BigIntegerField(help_text="Estimated.")
    completion_tokens = models.BigIntegerField(help_text="Delivered so far, estimated.")
    images = models.IntegerField(default=0, db_default=0, help_text="Images in the prompt.")
    units = models.JSONField(
        null=True,
        help_text="What the request says of its usage: characters, search units, images, …",
    )
    beat_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.generation_id


class Uptime(models.Model):
    """Since when heartbeats reach the database without a gap: one row, with its id 1.

    ``beat.sql`` writes it for every worker and every ``work``; all times are the database's.
    """

    id = models.SmallIntegerField(primary_key=True)
    since = models.DateTimeField()
    beat_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"since {self.since:%Y-%m-%d %H:%M:%S} UTC"


class WorkerBeat(models.Model):
    """The last heartbeat of a worker, whose number only grows; ``beat.sql`` writes it.

    A worker that finds a lower number than it has written, or no row, knows that the database has
    lost what it had committed.
    """

    worker = models.CharField(primary_key=True, max_length=128)
    number = models.BigIntegerField()
    beat_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.worker


class HistoryLossManager(models.Manager["HistoryLoss"]):
    def record(self, loss: HistoryLoss) -> None:
        """Stores what a worker has noticed, and an event of it; again after it was lost itself."""
        told = {"worker": loss.worker, "since": loss.since, "until": loss.until}
        with transaction.atomic():
            self.bulk_create([loss], ignore_conflicts=True)
            record_event("history.lost", organization=None, data=told, once=str(loss.pk))

    def accept(self) -> list[HistoryLoss]:
        """Acknowledges every open loss, and returns them; workers then settle and admit again.

        The sweeper waits for a lease, as after an outage: workers settle first what they know.
        """
        with transaction.atomic():
            losses = list(self.filter(accepted_at=None).order_by("since", "pk").select_for_update())
            self.filter(pk__in=[loss.pk for loss in losses]).update(accepted_at=Now())
            if losses:
                Uptime.objects.update(since=Now())
        return losses


class HistoryLoss(models.Model):
    """What the database has lost of that which a worker had committed: nothing between two times.

    While one is not accepted no worker admits, and the sweeper ends nothing.
    """

    id = models.UUIDField(primary_key=True)
    worker = models.CharField(max_length=128)
    since = models.DateTimeField()
    until = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True)

    objects = HistoryLossManager()

    def __str__(self) -> str:
        return f"{self.worker}: {self.since} to {self.until}"


class EndpointHealth(models.Model):
    """The health of one endpoint in five seconds, from all workers; a ring of twelve slots.

    ``endpoint_id`` is the id of an endpoint, or for a BYOK credential the result of
    :func:`inference.routing.health.subject_of` for the endpoint and the credential.
    """

    pk = models.CompositePrimaryKey("endpoint_id", "slot")
    endpoint_id = models.UUIDField()
    slot = models.SmallIntegerField()
    bucket = models.BigIntegerField(help_text="Unix time divided by five seconds.")
    successes = models.IntegerField()
    failures = models.IntegerField()
    latencies = ArrayField(models.IntegerField(), help_text="In milliseconds.")
    speeds = ArrayField(models.FloatField(), help_text="In tokens per second.")
    retry_at = models.FloatField(help_text="In Unix seconds, or 0.")
    changed = models.BigIntegerField(
        default=0, db_default=0, help_text="The transaction that wrote the row last."
    )

    class Meta:
        indexes = [models.Index(fields=["changed"], name="health_changed")]
        # A trigger, because workers of an earlier release write the rows too.
        triggers = [
            Trigger(
                name="stamp",
                when=pgtrigger.Before,
                operation=pgtrigger.Insert | pgtrigger.Update,
                func=f"NEW.changed := {TRANSACTION_ID}; RETURN NEW;",
            )
        ]

    def __str__(self) -> str:
        return f"{self.endpoint_id}/{self.slot}"


class ProviderPace(models.Model):
    """What all workers have sent to a provider with the operator's credential in five seconds."""

    pk = models.CompositePrimaryKey("provider_id", "bucket")
    provider_id = models.UUIDField()
    bucket = models.BigIntegerField(help_text="Unix time divided by five seconds.")
    requests = models.IntegerField()
    tokens = models.BigIntegerField()

    def __str__(self) -> str:
        return f"{self.provider_id}/{self.bucket}"


class TokenSum(models.Model):
    """The tokens of all prompts in one script at an endpoint of the catalogue, by who counted them.

    ``kind`` is a :class:`inference.routing.fairness.TokenSource`, and ``mark`` that of the weights
    by which they were estimated: sums of other weights are deleted.
    """

    pk = models.CompositePrimaryKey("endpoint_id", "script", "mark", "kind")
    # A plain id: a worker may count for an endpoint that is just being deleted.
    endpoint_id = models.UUIDField()
    script = models.CharField(max_length=32)
    mark = models.CharField(max_length=8)
    kind = models.CharField(max_length=16)
    tokens = models.BigIntegerField()

    def __str__(self) -> str:
        return f"{self.endpoint_id} {self.script} {self.kind}"


class FeedbackGiven(Conflict):
    error_type = "feedback_given"
    message = "Feedback of this category was given on this generation before."


class FeedbackManager(models.Manager["Feedback"]):
    def submit(self, generation: Generation, *, category: str, comment: str, by: str) -> Feedback:
        """Stores feedback; raises :class:`FeedbackGiven` when the category already has some."""
        feedback, is_new = self.get_or_create(
            generation=generation,
            category=category,
            defaults={"comment": comment, "created_by": by},
        )
        if not is_new:
            raise FeedbackGiven
        return feedback


class Feedback(models.Model):
    """A caller's complaint about a generation, at most one in each category."""

    class Category(models.TextChoices):
        LATENCY = "latency", "latency"
        INCOHERENCE = "incoherence", "incoherence"
        INCORRECT_RESPONSE = "incorrect_response", "incorrect response"
        FORMATTING = "formatting", "formatting"
        BILLING = "billing", "billing"
        API_ERROR = "api_error", "API error"
        OTHER = "other", "other"

    # A foreign key would keep the partition of the generation from leaving.
    generation = models.ForeignKey(
        Generation,
        on_delete=models.CASCADE,
        related_name="feedback",
        db_index=False,
        db_constraint=False,
    )
    category = models.CharField(max_length=32, choices=Category)
    comment = models.CharField(max_length=4096, blank=True)
    created_by = models.CharField(max_length=255)
    created_at = StampField(auto_now_add=True)

    objects = FeedbackManager()

    class Meta:
        verbose_name_plural = "feedback"
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(fields=("generation", "category"), name="feedback_once")
        ]

    def __str__(self) -> str:
        return f"{self.category}: {self.generation_id}"


class UsageDay(models.Model):
    """A UTC day whose generations have all ended; :class:`DailyUsage` contains their sums.

    Such a day never changes. Deleting its row lets the day be summed again.
    """

    day = models.DateField(primary_key=True)
    rolled_up_at = models.DateTimeField()

    def __str__(self) -> str:
        return str(self.day)


class DailyUsage(models.Model):
    """The usage of one key, model and endpoint on one day.

    Every generation counts in two rows: one with ``by_end_user``, and one for all end users, of
    which there are far fewer.
    """

    organization = models.ForeignKey(
        Organization, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    day = models.ForeignKey(UsageDay, on_delete=models.CASCADE, related_name="+", db_column="day")
    by_end_user = models.BooleanField()
    # Plain ids: foreign keys would be checked for each of millions of rows.
    workspace_id = models.UUIDField()
    api_key_id = models.UUIDField()
    member_id = models.UUIDField(null=True)
    end_user = models.CharField(max_length=512, null=True, db_collation="C")
    endpoint_id = models.UUIDField()
    model = models.CharField(max_length=255)
    provider_name = models.CharField(max_length=255)
    requests = models.BigIntegerField()
    prompt_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    reasoning_tokens = models.BigIntegerField()
    cost_nano = models.BigIntegerField(help_text="The cost paid by credits, in nano-USD.")
    byok_nano = models.BigIntegerField(
        help_text="The upstream cost of BYOK credentials, in nano-USD."
    )
    cancelled = models.BigIntegerField(
        default=0, db_default=0, help_text="The requests whose caller left."
    )
    cancelled_nano = models.BigIntegerField(
        default=0, db_default=0, help_text="The upstream cost of these, in nano-USD."
    )
    # Empty for a day that an earlier release has summed.
    upstream_nano = models.BigIntegerField(null=True)
    failed = models.BigIntegerField(null=True)
    latency_ms = models.BigIntegerField(null=True)
    timed = models.BigIntegerField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=("organization", "by_end_user", "day"), name="daily_usage"),
            models.Index(
                fields=("organization", "end_user", "day"),
                condition=Q(by_end_user=True),
                name="daily_usage_of_end_user",
            ),
            models.Index(
                fields=("day",),
                include=("organization", "model", "requests", "cost_nano"),
                condition=Q(by_end_user=False),
                name="daily_usage_ranking",
            ),
            models.Index(
                fields=("day",),
                include=("organization", "end_user", "requests", "cost_nano"),
                condition=Q(by_end_user=True, end_user__isnull=False),
                name="daily_usage_of_end_users",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.day_id} {self.model}"


class HourlyUsage(models.Model):
    """The sums of all generations of one UTC hour, after the hour and its generations have ended.

    Hours without requests have rows too, so there are no gaps. Its partitions are years.
    """

    partitioning: ClassVar = Partitioning("inference_hourlyusage", "hour", YEAR)

    hour = models.DateTimeField(primary_key=True)
    requests = models.BigIntegerField()
    failed = models.BigIntegerField()
    tokens = models.BigIntegerField(help_text="Prompt and completion tokens.")
    cost_nano = models.BigIntegerField(help_text="The cost paid by credits, in nano-USD.")
    upstream_nano = models.BigIntegerField(
        help_text="The cost of the usage at pinned prices, in nano-USD."
    )
    latency_ms = models.BigIntegerField(help_text="The sum of the times to the first event.")
    timed = models.BigIntegerField(help_text="The number of generations with a first event.")
    is_detailed = models.BooleanField(
        default=False, db_default=False, help_text="The hour has a HourlyShare for its parts."
    )

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H}:00 UTC"


class EndpointHour(models.Model):
    """The traffic of one public endpoint in one UTC hour of the last two days.

    A minute counts if it had ten attempts or more.
    """

    pk = models.CompositePrimaryKey("hour", "endpoint_id")
    hour = models.DateTimeField()
    endpoint_id = models.UUIDField()
    tokens = models.BigIntegerField(help_text="Prompt and completion tokens.")
    minutes = models.IntegerField()
    minutes_up = models.IntegerField(help_text="Those with 80 % successes.")

    def __str__(self) -> str:
        return f"{self.endpoint_id} {self.hour:%Y-%m-%d %H}:00 UTC"


class HourlyShare(models.Model):
    """The share of one endpoint in an hour, of all organizations together or of one key.

    Every generation of a recent hour counts in two rows: one without an organization, which is kept
    for the longest range of a chart, and one of its key, of which there are far more, so that they
    are kept for days only. ``HourlyUsage.is_detailed`` says whether an hour has its shares.
    """

    id = models.BigAutoField(primary_key=True)
    hour = models.DateTimeField()
    # Plain ids: foreign keys would be checked for each of millions of rows.
    organization_id = models.UUIDField(null=True)
    workspace_id = models.UUIDField(null=True)
    api_key_id = models.UUIDField(null=True)
    endpoint_id = models.UUIDField()
    model = models.CharField(max_length=255)
    provider_name = models.CharField(max_length=255)
    requests = models.BigIntegerField()
    failed = models.BigIntegerField()
    tokens = models.BigIntegerField()
    cost_nano = models.BigIntegerField()
    upstream_nano = models.BigIntegerField()
    latency_ms = models.BigIntegerField()
    timed = models.BigIntegerField()

    class Meta:
        indexes = [
            models.Index(fields=("organization_id", "hour"), name="hourly_share_of_tenant"),
            models.Index(
                fields=("endpoint_id", "hour"),
                condition=Q(organization_id=None),
                name="hourly_share_of_endpoint",
            ),
            models.Index(
                fields=("model", "hour"),
                condition=Q(organization_id=None),
                name="hourly_share_of_model",
            ),
            models.Index(
                fields=("provider_name", "hour"),
                condition=Q(organization_id=None),
                name="hourly_share_of_provider",
            ),
            models.Index(fields=("hour",), name="hourly_share_by_hour"),
        ]

    def __str__(self) -> str:
        return f"{write_minute(self.hour)} {self.model}"


class HourlySpending(models.Model):
    """The credits that one organization spent in an hour, in nano-USD; an hour without has no row.

    The rows are kept for as many weeks as unusual spending is judged by.
    """

    pk = models.CompositePrimaryKey("organization_id", "hour")
    # A plain id, as of the shares.
    organization_id = models.UUIDField()
    hour = models.DateTimeField()
    cost_nano = models.BigIntegerField()

    class Meta:
        indexes = [models.Index(fields=("hour",), name="hourly_spending_by_hour")]

    def __str__(self) -> str:
        return f"{write_minute(self.hour)} {self.organization_id}"


class HourlyFailure(models.Model):
    """The errors of one provider and type in an hour, of all organizations together.

    ``attempts`` failed; another candidate may have served the request. ``requests`` failed at last.
    """

    id = models.BigAutoField(primary_key=True)
    hour = models.DateTimeField()
    provider_name = models.CharField(max_length=255)
    error_type = models.CharField(max_length=64)
    attempts = models.BigIntegerField()
    requests = models.BigIntegerField()
    last_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=("hour", "provider_name", "error_type"), name="hourly_failure_unique"
            )
        ]

    def __str__(self) -> str:
        return f"{write_minute(self.hour)} {self.provider_name} {self.error_type}"


class IdempotentRequest(models.Model):
    """The use of an ``Idempotency-Key`` by one API key on one route.

    The row is stored before admission with the id that the generation will have, so what has become
    of the request follows from its generation. ``begin_key_use.sql`` has the rules.
    """

    id = models.BigAutoField(primary_key=True)
    api_key_id = models.UUIDField()
    route = models.CharField(max_length=64)
    key = models.CharField(max_length=255, db_collation="C")
    fingerprint = models.BinaryField(help_text="A digest of the body and of what changes it.")
    generation_id = models.CharField(max_length=48, db_collation="C")
    is_kept = models.BooleanField(help_text="Its workspace keeps answers.")
    claimed_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=("api_key_id", "route", "key"), name="idempotent_request_once"
            )
        ]
        indexes = [
            models.Index(fields=("generation_id",), name="idempotent_by_generation"),
            models.Index(fields=("expires_at",), name="idempotent_by_expiry"),
        ]

    def __str__(self) -> str:
        return f"{self.route} {self.generation_id}"


class KeptAnswer(models.Model):
    """An answer, encrypted, that the same request gets again for a limited time.

    With a ``cache_key`` it is an entry of the response cache of its organization, and
    ``endpoint_id`` identifies the deployment that answered. Without one it belongs to the
    ``Idempotency-Key`` of its generation.
    """

    id = models.BigAutoField(primary_key=True)
    organization_id = models.UUIDField()
    generation_id = models.CharField(max_length=48, db_collation="C")
    cache_key = models.BinaryField(null=True)
    endpoint_id = models.UUIDField(null=True)
    sealed = models.BinaryField()
    size = models.IntegerField(help_text="What it counts against the organization's limit.")
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=("organization_id", "cache_key"),
                condition=Q(cache_key__isnull=False),
                name="kept_answer_cached_once",
            ),
            models.UniqueConstraint(
                fields=("generation_id",),
                condition=Q(cache_key__isnull=True),
                name="kept_answer_once",
            ),
        ]
        indexes = [
            models.Index(
                fields=("organization_id", "id"),
                include=("cache_key", "size"),
                name="kept_answer_by_organization",
            ),
            models.Index(fields=("expires_at",), name="kept_answer_by_expiry"),
        ]

    def __str__(self) -> str:
        return self.generation_id


# What has generations stays.
OrganizationUse = carry(
    __name__, "OrganizationUse", Organization, _keep_used("organization_id", organization="id")
)
WorkspaceUse = carry(__name__, "WorkspaceUse", Workspace, _keep_used("workspace_id"))
ApiKeyUse = carry(__name__, "ApiKeyUse", ApiKey, _keep_used("api_key_id"))
MemberUse = carry(__name__, "MemberUse", Member, _keep_used("member_id"))
# A meter counts the requests in flight at an endpoint that has a place in a pool.
PrivateEndpointUse = carry(
    __name__,
    "PrivateEndpointUse",
    PrivateEndpoint,
    _keep_used("private_endpoint_id"),
    Trigger(
        name="open_meter",
        when=pgtrigger.After,
        operation=pgtrigger.Insert | pgtrigger.Update,
        condition=pgtrigger.Condition("NEW.settings -> 'routing' IS NOT NULL"),
        func="INSERT INTO billing_meter (subject_id, organization_id)\n"
        "VALUES (NEW.id, NEW.organization_id)\n"
        "ON CONFLICT (subject_id) DO NOTHING;\n"
        "RETURN NULL;",
    ),
)
ModelEndpointUse = carry(
    __name__,
    "ModelEndpointUse",
    ModelEndpoint,
    KeepUsed(
        used="inference_generation WHERE model_endpoint_id = OLD.id",
        # The lock of CatalogVersionBump.
        lock="PERFORM pg_advisory_xact_lock(6024917533);",
    ),
)
