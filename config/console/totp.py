"""Operators' second factor: a code of an app that changes with time, or one of the backup codes.

A key is stored only with the first code that proves that the app has it, so that looking at the
page of enrolment changes nothing.
"""

from __future__ import annotations

from base64 import b32encode
from typing import TYPE_CHECKING, Any, Final

import segno
from django.contrib.auth.models import User
from django.core import signing
from django.core.exceptions import ValidationError
from django.db import transaction
from django.forms import CharField, Form
from django_otp.forms import OTPAuthenticationFormMixin
from django_otp.plugins.otp_static.models import StaticToken
from django_otp.plugins.otp_totp.models import default_key

from config.console import pages as console
from config.models import BackupCodes, SecondFactor
from config.secrets import DecryptionFailed, digest_backup_code

if TYPE_CHECKING:
    from django.contrib.admin.forms import AdminAuthenticationForm as AuthenticationForm
else:
    from unfold.forms import AuthenticationForm

BACKUP_CODES: Final = 10
_SALT: Final = "causeway.totp"
_OFFER_SECONDS: Final = 900
_DIGITS: Final = 6
_CODE_LABEL: Final = "Authentication code"


class WrongCode(Exception):
    """The code is not the one that the app shows now."""


class OfferExpired(Exception):
    """The page with the key was made too long ago, or for somebody else."""


def device_of(user: User) -> SecondFactor | None:
    """Returns the app of an operator who has enrolled."""
    device: SecondFactor | None = SecondFactor.objects.filter(user=user, confirmed=True).first()
    return device


def offer(user: User) -> str:
    """Returns a fresh key for the operator, signed, to come back with a code made from it."""
    return signing.dumps([user.pk, default_key()], salt=_SALT)


def offered(user: User, text: str) -> SecondFactor:
    """Returns the device that an offer describes, not stored; raises :class:`OfferExpired`."""
    try:
        owner, key = signing.loads(text, salt=_SALT, max_age=_OFFER_SECONDS)
    except signing.BadSignature:
        raise OfferExpired from None
    if owner != user.pk:
        raise OfferExpired
    sealed = SecondFactor.sealed(bytes.fromhex(key), user_id=user.pk)
    return SecondFactor(user=user, name="Authenticator app", key=sealed)


def qr_code(device: SecondFactor) -> str:
    """Draws the address that an app scans, black on white in every theme."""
    code = segno.make(device.config_url, error="m", micro=False)
    return code.svg_inline(scale=4, light="#fff", omitsize=False)


def readable_key(device: SecondFactor) -> str:
    """Returns the key as an app takes it from a keyboard, in groups of four."""
    text = b32encode(device.bin_key).decode()
    return " ".join(text[start : start + 4] for start in range(0, len(text), 4))


def enrol(device: SecondFactor, code: str) -> list[str]:
    """Stores an offered device and returns its backup codes, which are shown this once.

    Raises :class:`WrongCode`, and stores nothing, when the app shows another code.
    """
    with transaction.atomic():
        # One at a time for an operator: the second enrolment replaces the first.
        User.objects.select_for_update().get(pk=device.user_id)
        forget(device.user)
        device.save(force_insert=True)
        if not device.verify_token(code):
            raise WrongCode
        return _new_codes(device.user)


def renew_codes(user: User) -> list[str]:
    """Replaces the backup codes, used and unused."""
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user.pk)
        BackupCodes.objects.filter(user=user).delete()
        return _new_codes(user)


def forget(user: User) -> None:
    """Enrolled → not enrolled: takes away the app and the backup codes."""
    with transaction.atomic():
        SecondFactor.objects.filter(user=user).delete()
        BackupCodes.objects.filter(user=user).delete()


def codes_left(user: User) -> int:
    """Returns how many backup codes were not used yet."""
    count: int = StaticToken.objects.filter(device__user=user).count()
    return count


def _new_codes(user: User) -> list[str]:
    backup = BackupCodes.objects.create(user=user, name="Backup codes")
    codes = [StaticToken.random_token() for _ in range(BACKUP_CODES)]
    StaticToken.objects.bulk_create(
        StaticToken(device=backup, token=digest_backup_code(user.pk, code)) for code in codes
    )
    return codes


class _CodeMixin(OTPAuthenticationFormMixin):  # type: ignore[misc]
    """Checks a code against the operator's app, or against the backup codes if it is longer."""

    otp_error_messages = {
        **OTPAuthenticationFormMixin.otp_error_messages,
        "token_required": "Enter the code that your authenticator app shows, or a backup code.",
        "device_required": "There are no backup codes left.",
        "invalid_token": "The code is not valid, or was used already.",
        "lost_key": "The key of the app does not open any more. Use a backup code.",
    }
    cleaned_data: dict[str, Any]

    def require_code(self, user: User) -> None:
        """Raises ``ValidationError`` unless the field ``otp_token`` proves the second factor."""
        code = "".join(self.cleaned_data.get("otp_token", "").split()).lower()
        is_of_app = code.isdecimal() and len(code) == _DIGITS
        kind = SecondFactor if is_of_app or not code else BackupCodes
        device = kind.objects.filter(user=user, confirmed=True).first()
        self.cleaned_data["otp_token"] = code
        self.cleaned_data["otp_device"] = "" if device is None else device.persistent_id
        try:
            self.clean_otp(user)
        except DecryptionFailed:
            raise ValidationError(self.otp_error_messages["lost_key"]) from None

    def _update_form(self, user: User) -> None:
        """The password is not sent back to the page, unlike in the class above."""


def _code_field(**kwargs: Any) -> CharField:
    attributes = {"autocomplete": "one-time-code", "spellcheck": "false", "maxlength": "16"}
    return CharField(
        label=_CODE_LABEL, max_length=16, widget=console.TextWidget(attrs=attributes), **kwargs
    )


class LoginForm(_CodeMixin, AuthenticationForm):
    """Name and password, and a code of whoever has enrolled."""

    otp_token = _code_field(required=False, help_text="If you have set up two-factor login.")

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        user = self.get_user()
        if isinstance(user, User) and device_of(user) is not None:
            self.require_code(user)
        return cleaned


class EnrolForm(Form):
    """The first code of a key that was offered."""

    otp_token = _code_field()


class CodeForm(_CodeMixin, Form):
    """Proves the second factor once more, before it is changed."""

    otp_token = _code_field()

    def __init__(self, user: User, *args: Any) -> None:
        super().__init__(*args)
        self._user = user

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if "otp_token" not in self.errors:
            self.require_code(self._user)
        return cleaned


def refuse(form: Form, why: str) -> None:
    """Puts a refusal where the code was typed."""
    form.add_error("otp_token", ValidationError(why))
