"""Subscriptions to events, and the deliveries to them."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Self

import pgtrigger
from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models, transaction
from django.db.models import Q
from django.db.models.functions import Now

from accounts.models.creations import Creation
from accounts.models.edits import refusal, write_fields
from accounts.models.limits import OrganizationLimit
from accounts.models.members import Member
from accounts.models.organizations import Organization
from accounts.webhooks import signing
from accounts.webhooks.manual import count_send
from config import secrets
from config.api.errors import Conflict, NotFound, Unprocessable
from config.apps import event_kinds
from config.audit.triggers import Audit
from config.bulk.tables import format_time
from config.clocks.clock import clock
from config.credentials import Secret
from config.egress.addresses import InvalidURL, parse_base_url
from config.events.kinds import EventKind
from config.events.outbox import Event, new_event_id, record_event
from config.models import BaseModel, OwnedQuerySet

MAX_OVERLAP: Final = 7 * 86_400
_SHORT_ERROR: Final = 255


class SubscriptionNotFound(NotFound):
    message = "The webhook does not exist."


class DeliveryNotFound(NotFound):
    message = "The delivery does not exist; deliveries are kept for 30 days."


class InvalidWebhookURL(Unprocessable):
    error_type = "invalid_webhook_url"

    def __init__(self, why: str) -> None:
        super().__init__(f"url: {why}.", metadata={"fields": {"url": why}})


class SubscriptionDisabled(Conflict):
    error_type = "webhook_disabled"
    message = "The webhook is disabled, so nothing is sent to it. Enable it first."


def choosable_kinds(*, by_operators: bool) -> list[EventKind]:
    """Returns the kinds that a subscription of operators, or of an organization, may name."""
    return [
        kind
        for kind in event_kinds().values()
        if not kind.direct and (by_operators or not kind.for_operators)
    ]


class SubscriptionQuerySet(OwnedQuerySet["Subscription"]):
    def webhooks(self) -> Self:
        """Returns those that the API shows: members' mail is for people alone."""
        return self.exclude(form=Subscription.Form.EMAIL)


class SubscriptionManager(models.Manager.from_queryset(SubscriptionQuerySet)):  # type: ignore[misc]
    def find(self, pk: uuid.UUID) -> Subscription:
        """Returns a subscription; raises :class:`SubscriptionNotFound`."""
        found: Subscription | None = self.filter(pk=pk).first()
        if found is None:
            raise SubscriptionNotFound
        return found

    def create_subscription(
        self,
        *,
        organization: Organization | None,
        form: str,
        name: str = "",
        url: str = "",
        email: str = "",
        member: Member | None = None,
        kinds: list[str] | None = None,
    ) -> tuple[Subscription, Secret | None]:
        """Creates a subscription, and returns it with the secret of its signatures, if it has one.

        Without an ``organization`` it belongs to the operators and gets the events of all.
        Raises :class:`InvalidWebhookURL`, :class:`InvalidRequest` for unknown kinds,
        :class:`MemberNotFound` when the member was deleted meanwhile, and
        :class:`OrganizationLimitReached`.
        """
        row = Subscription(
            organization=organization, form=form, name=name, email=email, member=member, kinds=kinds
        )
        row.require_kinds(kinds)
        secret = None
        if form == Subscription.Form.EMAIL:
            _require_address(row)
        else:
            row.seal_url(_canonical_url(url))
            if form == Subscription.Form.WEBHOOK:
                secret = signing.make_secret()
                row.sealed = secrets.seal(secret, associated=row._associated)
        with transaction.atomic():
            if organization is not None:
                present = self.for_organization(organization.pk)
                Organization.objects.lock_with_room(
                    organization.pk, OrganizationLimit.WEBHOOKS, present
                )
            if member is not None:
                Member.objects.require_present(member.pk)
            row.save(force_insert=True)
        return row, secret


class SealedReceiver(BaseModel):
    """The place to which events are sent, and its secrets, which are stored encrypted.

    ``sealed`` is the secret that signs; after a rotation ``previous`` signs too, until
    ``previous_until``. The URL of a chat is itself a secret: it is sealed, and ``url`` has its
    origin alone.
    """

    class Form(models.TextChoices):
        WEBHOOK = "webhook", "webhook"
        SLACK = "slack", "Slack-compatible"
        EMAIL = "email", "e-mail"

    organization = models.ForeignKey(
        Organization,
        on_delete=models.CASCADE,
        related_name="subscriptions",
        null=True,
        blank=True,
        help_text="Leave it empty to send the events of all organizations to operators.",
    )
    form = models.CharField(max_length=16, choices=Form)
    url = models.CharField("URL", max_length=2048, blank=True)
    sealed = models.BinaryField(default=b"", editable=False)
    previous = models.BinaryField(default=b"", editable=False)
    previous_until = models.DateTimeField(null=True, editable=False)

    class Meta:
        abstract = True

    @property
    def _associated(self) -> str:
        return f"{self.pk}|{self.organization_id}|subscription"

    def seal_url(self, url: str) -> None:
        """Stores a checked URL; the caller saves the row."""
        if self.form == self.Form.SLACK:
            self.url = url[: url.index("/", len("https://"))] if url.count("/") > 2 else url
            self.sealed = secrets.seal(Secret(url), associated=self._associated)
        else:
            self.url = url

    def reveal_url(self) -> str:
        """Returns the URL to call; raises :class:`config.secrets.DecryptionFailed`."""
        if self.form != self.Form.SLACK:
            return self.url
        return secrets.unseal(bytes(self.sealed), associated=self._associated).reveal()

    def signing_secrets(self, now: datetime) -> list[Secret]:
        """Returns the valid secrets, the newest first; raises ``DecryptionFailed``."""
        valid = [self.sealed]
        if self.previous_until is not None and now < self.previous_until:
            valid.append(self.previous)
        return [secrets.unseal(bytes(blob), associated=self._associated) for blob in valid]

    def is_at(self, url: str) -> bool:
        """Returns whether a checked URL is the stored one."""
        try:
            return self.reveal_url() == url
        except secrets.DecryptionFailed:
            return False


class Subscription(SealedReceiver):
    """A receiver of events: a webhook, a chat that takes Slack's messages, or a mail address.

    Without an organization it is the operators'. ``kinds`` of ``None`` means every kind.
    """

    name = models.CharField(max_length=255, blank=True)
    email = models.EmailField("address", max_length=254, blank=True)
    member = models.ForeignKey(
        Member, on_delete=models.CASCADE, related_name="subscriptions", null=True, blank=True
    )
    kinds = ArrayField(
        models.CharField(max_length=64),
        null=True,
        blank=True,
        help_text="The kinds of events to send; empty for all.",
    )
    disabled = models.BooleanField(default=False, editable=False)
    disabled_reason = models.CharField(max_length=255, default="", editable=False)
    failures = models.PositiveIntegerField(
        default=0, editable=False, help_text="Attempts that failed since the last success."
    )
    failing_since = models.DateTimeField(null=True, editable=False)
    retry_at = models.DateTimeField(
        null=True, editable=False, help_text="Nothing is sent before, because attempts failed."
    )

    mean_ms = models.PositiveIntegerField(
        "mean duration", default=0, db_default=0, editable=False,
        help_text="Milliseconds that an attempt takes on average; the last ones count most.",
    )  # fmt: skip

    objects = SubscriptionManager()

    class Meta:
        ordering = ("organization", "created_at", "id")
        constraints = [
            models.CheckConstraint(
                condition=Q(form="email", url="") & (~Q(email="") | Q(member__isnull=False))
                | (~Q(form="email") & ~Q(url="") & ~Q(sealed=b"") & Q(email="", member=None)),
                name="subscription_has_a_receiver",
            ),
            models.CheckConstraint(
                condition=Q(form="webhook") | Q(previous=b""), name="subscription_webhooks_rotate"
            ),
        ]
        triggers = [
            Audit(
                masked=("sealed", "previous"),
                ignored=("failures", "failing_since", "retry_at", "mean_ms"),
            ),
        ]

    def __str__(self) -> str:
        return self.name or self.receiver

    @property
    def receiver(self) -> str:
        """The address that people know: a URL without its secret, or a mail address."""
        if self.form == self.Form.SLACK:
            return f"{self.url}/…"
        return self.url or self.address

    @property
    def address(self) -> str:
        return self.email if self.member is None else self.member.email

    def wants(self, kind: str) -> bool:
        return self.kinds is None or kind in self.kinds

    def require_kinds(self, kinds: Iterable[str] | None) -> None:
        """Raises :class:`InvalidRequest` for a kind that the subscription may not name."""
        allowed = {kind.name for kind in choosable_kinds(by_operators=self.organization_id is None)}
        if unknown := sorted(set(kinds or ()) - allowed):
            listed = ", ".join(sorted(allowed))
            raise refusal("events", f"{unknown[0][:64]} is no kind of event. Kinds: {listed}.")
        if kinds is not None and not list(kinds):
            raise refusal("events", "Name at least one kind, or null for all.")

    def edit(self, *, url: str | None = None, **changes: Any) -> bool:
        """PRESENT → PRESENT. Writes the fields that differ and returns whether any did.

        A new URL is another receiver: it gets its first event at once, even if the old one failed.
        """
        is_moved = False
        with transaction.atomic():
            self._lock_present()
            if "kinds" in changes:
                self.require_kinds(changes["kinds"])
            if url is not None:
                if self.form == self.Form.EMAIL:
                    raise refusal("url", "Mail has no URL.")
                if is_moved := not self.is_at(canonical := _canonical_url(url)):
                    self.seal_url(canonical)
                    self.save_fields("url", "sealed")
                    self._forget_attempts()
            return write_fields(self, changes) or is_moved

    def rotate(self, *, overlap: int) -> Secret:
        """PRESENT → PRESENT. Makes a new secret; the old one signs too for ``overlap`` seconds.

        Raises :class:`InvalidRequest` for a receiver without signatures.
        """
        secret = signing.make_secret()
        with transaction.atomic():
            self._lock_present()
            if self.form != self.Form.WEBHOOK:
                raise refusal("form", "Only webhooks are signed.")
            self.previous = self.sealed if overlap else b""
            self.previous_until = clock.now() + timedelta(seconds=overlap) if overlap else None
            self.sealed = secrets.seal(secret, associated=self._associated)
            self.save_fields("sealed", "previous", "previous_until")
            Creation.objects.erase(self.pk)
        return secret

    def disable(self, *, reason: str = "") -> bool:
        """ENABLED → DISABLED. Sends nothing more; returns whether it was enabled."""
        with transaction.atomic():
            self._lock_present()
            if self.disabled:
                return False
            self.disabled, self.disabled_reason = True, reason[:_SHORT_ERROR]
            self.save_fields("disabled", "disabled_reason")
            if reason:
                record_event(
                    "webhook.disabled",
                    organization=self.organization_id,
                    data={"id": str(self.pk), "receiver": self.receiver, "reason": reason},
                )
        return True

    def enable(self) -> bool:
        """DISABLED → ENABLED. Sends what still waits; returns whether it was disabled."""
        with transaction.atomic():
            self._lock_present()
            if not self.disabled:
                return False
            self.disabled, self.disabled_reason = False, ""
            self.save_fields("disabled", "disabled_reason")
            self._forget_attempts()
        return True

    def remove(self) -> None:
        """PRESENT → DELETED. Deletes the row with its secrets and its deliveries."""
        with transaction.atomic():
            self._lock_present()
            self.deliveries.all().delete()
            Creation.objects.erase(self.pk)
            self.delete()

    def send(self, kind: str, data: Mapping[str, Any]) -> Delivery:
        """Stores an event for this subscription alone, and its delivery.

        Raises :class:`SubscriptionDisabled`.
        """
        event_kinds()[kind].require_names(data)
        with transaction.atomic():
            self._lock_present()
            if self.disabled:
                raise SubscriptionDisabled
            event = Event.objects.create(
                organization_id=self.organization_id,
                kind=kind,
                data=data,
                dispatched_at=clock.now(),
            )
            delivery: Delivery = Delivery.objects.create(
                organization_id=self.organization_id, subscription=self, event=event
            )
        return delivery

    def send_test(self) -> Delivery:
        """Sends ``webhook.test`` soon; raises as :meth:`send` does, and :class:`TooManySends`."""
        with transaction.atomic():
            delivery = self.send("webhook.test", {"id": str(self.pk)})
            count_send(self.organization_id)
        return delivery

    def rewrap(self) -> bool:
        """Encrypts the secrets with the first credential key; returns whether the row changed."""
        return secrets.rewrap_row(self, "sealed", "previous", associated=self._associated)

    def _forget_attempts(self) -> None:
        self.failures, self.failing_since, self.retry_at, self.mean_ms = 0, None, None, 0
        self.save_fields("failures", "failing_since", "retry_at", "mean_ms")

    def _lock_present(self) -> None:
        self.lock_row(SubscriptionNotFound, no_key=True)


class DeliveryQuerySet(OwnedQuerySet["Delivery"]):
    """The rows of organizations."""


class DeliveryManager(models.Manager.from_queryset(DeliveryQuerySet)):  # type: ignore[misc]
    def digest(self, subscription_id: uuid.UUID, *, about: uuid.UUID | None) -> bool:
        """HELD → DIGESTED. Sends one event that counts the held events of an organization.

        Returns whether there were any. One statement moves them, because there may be thousands;
        the lock of their subscription keeps every other transition away. Raises
        :class:`SubscriptionDisabled` and :class:`SubscriptionNotFound`; they are then still held.
        """
        with transaction.atomic():
            subscription = Subscription.objects.find(subscription_id)
            subscription._lock_present()
            held = self.filter(
                subscription=subscription,
                status=Delivery.Status.HELD,
                event__organization_id=about,
            )
            rows = list(held.order_by("pk").values_list("pk", "event__kind", "created_at"))
            if not rows:
                return False
            kinds = Counter(kind for _, kind, _ in rows)
            subscription.send(
                "events.held_back",
                {
                    "count": len(rows),
                    "kinds": dict(kinds.most_common()),
                    "organization_id": None if about is None else str(about),
                    "since": format_time(min(created_at for _, _, created_at in rows)),
                },
            )
            self.filter(pk__in=[pk for pk, _, _ in rows]).update(status=Delivery.Status.DIGESTED)
        return True


class Delivery(models.Model):
    """The delivery of one event to one subscription, with the result of its last attempt.

    PENDING → DELIVERED, or → FAILED after the last attempt. An event beyond the hourly limit of its
    organization is HELD until a digest tells of it, and then DIGESTED. An operator or a management
    key sends any of them again: → PENDING. While an attempt is made, ``next_attempt_at`` is when
    its lease ends: a process that is killed loses no delivery.
    """

    class Status(models.TextChoices):
        PENDING = "pending", "pending"
        DELIVERED = "delivered", "delivered"
        FAILED = "failed", "failed"
        HELD = "held", "held back"
        DIGESTED = "digested", "told by a digest"

    id = models.UUIDField(primary_key=True, default=new_event_id, editable=False)
    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="+", null=True, db_index=False
    )
    subscription = models.ForeignKey(
        Subscription, on_delete=models.CASCADE, related_name="deliveries", db_index=False
    )
    # The events of an organization may leave with it, while deliveries to operators stay.
    event = models.ForeignKey(
        Event, on_delete=models.DO_NOTHING, related_name="+", db_index=False, db_constraint=False
    )
    status = models.CharField(
        max_length=16, choices=Status, default=Status.PENDING, db_default=Status.PENDING
    )
    attempts = models.PositiveIntegerField(default=0, db_default=0)
    next_attempt_at = models.DateTimeField(db_default=Now())
    response_status = models.PositiveSmallIntegerField(null=True)
    error = models.CharField(max_length=_SHORT_ERROR, default="", db_default="")
    duration_ms = models.PositiveIntegerField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    delivered_at = models.DateTimeField(null=True)

    objects = DeliveryManager()

    class Meta:
        verbose_name_plural = "deliveries"
        ordering = ("-id",)
        indexes = [
            models.Index(
                fields=("subscription", "next_attempt_at"),
                condition=Q(status="pending"),
                name="delivery_waiting",
            ),
            models.Index(
                fields=("subscription", "-id"), condition=Q(status="held"), name="delivery_held"
            ),
            models.Index(fields=("subscription", "-id"), name="delivery_log"),
            models.Index(fields=("organization", "-id"), name="delivery_by_organization"),
            models.Index(fields=("event",), name="delivery_by_event"),
        ]
        constraints = [
            models.UniqueConstraint(fields=("subscription", "event"), name="delivery_once"),
            models.CheckConstraint(
                condition=Q(status="delivered", delivered_at__isnull=False)
                | ~Q(status="delivered"),
                name="delivery_stamp",
            ),
        ]
        triggers = [
            # Only people send a test, or an event again: nobody is named while `work` delivers.
            Audit(
                operation=pgtrigger.Insert | pgtrigger.Update, condition="NEW.status = 'pending'"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.status} {self.pk}"

    def redeliver(self, *, by_operator: bool = False) -> None:
        """ANY → PENDING. Sends the event again soon, with the same ``webhook-id``.

        Raises :class:`SubscriptionDisabled`, :class:`DeliveryNotFound` when it was deleted, and
        :class:`TooManySends`, but not for an operator, who sends many again after an outage.
        """
        with transaction.atomic():
            self.subscription._lock_present()
            if self.subscription.disabled:
                raise SubscriptionDisabled
            rows = Delivery._base_manager.select_for_update()
            try:
                self.refresh_from_db(from_queryset=rows)
            except Delivery.DoesNotExist:
                raise DeliveryNotFound from None
            self.status, self.attempts = self.Status.PENDING, 0
            self.next_attempt_at, self.delivered_at = clock.now(), None
            self.save(update_fields=["status", "attempts", "next_attempt_at", "delivered_at"])
            if self.subscription.retry_at is not None:
                self.subscription.retry_at = None
                self.subscription.save_fields("retry_at")
            if not by_operator:
                count_send(self.organization_id)


def _require_address(row: Subscription) -> None:
    """Raises :class:`InvalidRequest` unless the mail has one receiver of its owner."""
    if (row.member is None) != (row.organization_id is None) or (
        row.member is not None and row.member.organization_id != row.organization_id
    ):
        raise refusal("member", "Mail of an organization goes to one of its members.")
    if row.member is None and not row.email:
        raise refusal("email", "Is required for mail to operators.")


def _canonical_url(text: str) -> str:
    """Returns a URL that may be called; raises :class:`InvalidWebhookURL`.

    A slash at the end stays: some receivers answer with a redirect without it.
    """
    try:
        base = parse_base_url(text, policy=settings.EGRESS_POLICY)
    except InvalidURL as exc:
        raise InvalidWebhookURL(str(exc)) from None
    is_longer = text.endswith("/") and text.count("/") > 3
    return f"{base.text}/" if is_longer else base.text
