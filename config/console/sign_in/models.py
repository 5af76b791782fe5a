"""Operators' second factors: authenticator apps and backup codes."""

from __future__ import annotations

from django.db import transaction
from django_otp.plugins.otp_static.models import StaticDevice
from django_otp.plugins.otp_totp.models import TOTPDevice

from config import secrets
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
        return bool(super().verify_token(secrets.digest_backup_code(self.user_id, token)))
