"""Operators' second factors, and the counters of their failed sign-ins."""

from __future__ import annotations

from typing import Final, NamedTuple, Self

from django.db import models, transaction
from django.db.models import Q
from django.db.models.functions import Now
from django_otp.plugins.otp_static.models import StaticDevice
from django_otp.plugins.otp_totp.models import TOTPDevice

from config import secrets
from config.api.errors import InvalidTransition
from config.audit.triggers import Audit


class SecondFactor(TOTPDevice):  # type: ignore[misc]
    """An operator's authenticator app; the key of its codes is stored encrypted.

    The package's column is wide enough for an encrypted key of the usual 20 bytes.
    """

    class Meta:
        proxy = True
        # Operators get permissions for the package's model, which has the page.
        default_permissions = ()
        triggers = [
            Audit(
                masked=("key",),
                ignored=(
                    "throttling_failure_timestamp", "throttling_failure_count", "last_used_at",
                    "drift", "last_t",
                ),
            )
        ]  # fmt: skip

    key: str
    user_id: int

    @staticmethod
    def seal(key: bytes, *, user_id: int) -> str:
        """Returns the encrypted key, which only the row of this operator can decrypt."""
        return secrets.seal_key(key, associated=f"second factor|{user_id}")

    @property
    def bin_key(self) -> bytes:
        """The decrypted key; raises :class:`config.secrets.DecryptionFailed`."""
        return secrets.unseal_key(self.key, associated=f"second factor|{self.user_id}")

    def rewrap(self) -> bool:
        """Encrypts the key with the first credential key; returns whether another was in use.

        Raises :class:`config.secrets.DecryptionFailed` when no configured key decrypts it.
        """
        with transaction.atomic():
            self.refresh_from_db(from_queryset=SecondFactor.objects.select_for_update())
            if secrets.is_current_key(self.key):
                return False
            self.key = self.seal(self.bin_key, user_id=self.user_id)
            self.save(update_fields=["key"])
        return True


class BackupCodes(StaticDevice):  # type: ignore[misc]
    """An operator's backup codes; each is stored as a digest and works once."""

    class Meta:
        proxy = True
        default_permissions = ()
        triggers = [
            Audit(
                ignored=("throttling_failure_timestamp", "throttling_failure_count", "last_used_at")
            )
        ]

    def verify_token(self, token: str) -> bool:
        digests = secrets.digest_backup_code(self.user_id, token)
        stored = self.token_set.filter(token__in=digests).values_list("token", flat=True).first()
        return bool(super().verify_token(stored or digests[0]))


class Limit(NamedTuple):
    """The failures that lock, and the seconds after the last one until they are forgotten."""

    failures: int
    seconds: int


class SignInLimitQuerySet(models.QuerySet["SignInLimit"]):
    def locked(self) -> Self:
        return self.filter(
            Q(
                *(
                    Q(scope=scope, failures__gte=limit.failures)
                    for scope, limit in SignInLimit.LIMITS.items()
                ),
                _connector=Q.OR,
            ),
            resets_at__gt=Now(),
        )


class SignInLimit(models.Model):
    """The failed sign-ins of an account, of an address, or of an account from an address.

    Only :mod:`config.console.sign_in.throttle` counts. ``account`` is a name as somebody typed it,
    whether there is such an operator or not. ``signed_in_at`` is the last sign-in of an account
    from an address.
    """

    class Scope(models.TextChoices):
        ADDRESS = "address", "address"
        ACCOUNT = "account", "account"
        PAIR = "pair", "account and address"

    # A stranger can lock an account from their own address only. Over all addresses an account
    # allows more failures, and an address from which it signs in regularly is not concerned.
    LIMITS: Final = {
        Scope.ADDRESS: Limit(20, 900),
        Scope.ACCOUNT: Limit(30, 3_600),
        Scope.PAIR: Limit(5, 900),
    }

    scope = models.CharField(max_length=8, choices=Scope, editable=False)
    account = models.CharField(max_length=150, default="", editable=False)
    network = models.CharField(
        "address",
        max_length=64,
        default="",
        editable=False,
        help_text="An IPv6 address by its /64.",
    )
    failures = models.PositiveIntegerField(editable=False)
    resets_at = models.DateTimeField(editable=False)
    signed_in_at = models.DateTimeField(null=True, editable=False)

    objects = SignInLimitQuerySet.as_manager()

    class Meta:
        verbose_name = "sign-in limit"
        ordering = ("-resets_at",)
        indexes = [models.Index(fields=("-resets_at",), name="sign_in_limit_by_time")]
        constraints = [
            models.UniqueConstraint(
                fields=("scope", "account", "network"), name="sign_in_limit_once"
            )
        ]

    def __str__(self) -> str:
        return " from ".join(filter(None, (self.account, self.network)))

    def lift(self) -> None:
        """Allows sign-ins again; raises :class:`InvalidTransition` where nothing is locked."""
        if not SignInLimit.objects.locked().filter(pk=self.pk).update(failures=0):
            raise InvalidTransition("This is not locked, so there is no lock to lift.")
