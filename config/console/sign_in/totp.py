"""Operators' second factor: a time-based code from an authenticator app, or a backup code.

The key is stored only after the first valid code has proved that the app holds it, so that opening
the enrolment page changes nothing.
"""

from __future__ import annotations

from base64 import b32encode
from typing import Any, Final

import segno
from django.contrib.auth.models import User
from django.core import signing
from django.core.exceptions import ValidationError
from django.db import transaction
from django.forms import CharField, Form
from django.http import HttpRequest
from django_otp.forms import OTPAuthenticationFormMixin
from django_otp.plugins.otp_static.models import StaticToken
from django_otp.plugins.otp_totp.models import default_key

from config.console.sign_in.models import BackupCodes, SecondFactor
from config.console.sign_in.throttle import count_attempt
from config.console.unfold import AuthenticationForm, OwnPasswordForm, TextWidget
from config.secrets import DecryptionFailed, digest_backup_code

BACKUP_CODES: Final = 10
_SALT: Final = "causeway.totp"
_OFFER_SECONDS: Final = 900
_DIGITS: Final = 6
_CODE_LABEL: Final = "Authentication code"


class WrongCode(Exception):
    """The code is not the current code of the app."""


class OfferExpired(Exception):
    """The enrolment page is too old, or was made for another operator."""


def device_of(user: User) -> SecondFactor | None:
    """Returns the operator's authenticator app, or ``None`` before enrolment."""
    return SecondFactor.objects.filter(user=user, confirmed=True).first()


def make_offer(user: User) -> str:
    """Returns a new signed key, which the enrolment form sends back with the first code."""
    return signing.dumps([user.pk, default_key()], salt=_SALT)


def read_offer(user: User, text: str) -> SecondFactor:
    """Returns the unstored device of an offer; raises :class:`OfferExpired`."""
    try:
        owner, key = signing.loads(text, salt=_SALT, max_age=_OFFER_SECONDS)
    except signing.BadSignature:
        raise OfferExpired from None
    if owner != user.pk:
        raise OfferExpired
    sealed = SecondFactor.seal(bytes.fromhex(key), user_id=user.pk)
    return SecondFactor(user=user, name="Authenticator app", key=sealed)


def qr_code(device: SecondFactor) -> str:
    """Returns the SVG that an app scans, black on white in every theme."""
    code = segno.make(device.config_url, error="m", micro=False)
    return code.svg_inline(scale=4, light="#fff", omitsize=False)


def readable_key(device: SecondFactor) -> str:
    """Returns the key for typing into an app: base32 in groups of four."""
    text = b32encode(device.bin_key).decode()
    return " ".join(text[start : start + 4] for start in range(0, len(text), 4))


def enrol(device: SecondFactor, code: str) -> list[str]:
    """Stores a device and returns its new backup codes, which are shown only once.

    Raises :class:`WrongCode` and stores nothing when the code is wrong.
    """
    with transaction.atomic():
        # Serializes enrolments of one operator: the second one replaces the first.
        User.objects.select_for_update().get(pk=device.user_id)
        remove(device.user)
        device.save(force_insert=True)
        if not device.verify_token(code):
            raise WrongCode
        return _new_codes(device.user)


def renew_codes(user: User) -> list[str]:
    """Replaces all backup codes and returns the new ones."""
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user.pk)
        BackupCodes.objects.filter(user=user).delete()
        return _new_codes(user)


def remove(user: User) -> None:
    """Removes the operator's authenticator app and backup codes."""
    with transaction.atomic():
        SecondFactor.objects.filter(user=user).delete()
        BackupCodes.objects.filter(user=user).delete()


def codes_left(user: User) -> int:
    """Returns the number of unused backup codes."""
    return StaticToken.objects.filter(device__user=user).count()


def _new_codes(user: User) -> list[str]:
    backup = BackupCodes.objects.create(user=user, name="Backup codes")
    codes = [StaticToken.random_token() for _ in range(BACKUP_CODES)]
    StaticToken.objects.bulk_create(
        StaticToken(device=backup, token=digest_backup_code(user.pk, code)[0]) for code in codes
    )
    return codes


class _CodeMixin(OTPAuthenticationFormMixin):  # type: ignore[misc]
    """Checks six digits against the operator's app, and a longer code against the backup codes."""

    otp_error_messages = {
        **OTPAuthenticationFormMixin.otp_error_messages,
        "token_required": "Enter the code that your authenticator app shows, or a backup code.",
        "device_required": "No backup codes are left.",
        "invalid_token": "The code is not valid or was already used.",
        "lost_key": "The key of your app cannot be decrypted. Use a backup code.",
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
        """Does nothing, because the base class would send the password back to the page."""


def _code_field(**kwargs: Any) -> CharField:
    attributes = {"autocomplete": "one-time-code", "spellcheck": "false", "maxlength": "16"}
    return CharField(
        label=_CODE_LABEL, max_length=16, widget=TextWidget(attrs=attributes), **kwargs
    )


class LoginForm(_CodeMixin, AuthenticationForm):
    """Asks for name and password, and for a code if the operator has enrolled."""

    otp_token = _code_field(required=False, help_text="Only if you have set up two-factor login.")

    def clean(self) -> dict[str, Any]:
        """Checks the password and the code as one attempt, which is refused before it is hashed."""
        account = self.cleaned_data.get("username")
        if not account or not self.cleaned_data.get("password"):
            return self.cleaned_data
        assert self.request is not None, "the address of the attempt is needed"
        with count_attempt(self.request, account):
            cleaned: dict[str, Any] = super().clean() or self.cleaned_data
            user = self.get_user()
            if isinstance(user, User) and device_of(user) is not None:
                self.require_code(user)
        return cleaned


class PasswordForm(OwnPasswordForm):
    """Asks for the old password, which counts as an attempt to sign in, and for a new one."""

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._request = request

    def clean_old_password(self) -> str:
        with count_attempt(self._request, self.user.get_username()):
            return super().clean_old_password()


class EnrolForm(Form):
    """Asks for the first code of a new key."""

    otp_token = _code_field()


class CodeForm(_CodeMixin, Form):
    """Asks for a code again before the second factor is changed."""

    otp_token = _code_field()

    def __init__(self, request: HttpRequest, user: User, *args: Any) -> None:
        super().__init__(*args)
        self._request, self._user = request, user

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if "otp_token" not in self.errors:
            with count_attempt(self._request, self._user.get_username()):
                self.require_code(self._user)
        return cleaned


def add_code_error(form: Form, text: str) -> None:
    """Shows an error beside the code."""
    form.add_error("otp_token", ValidationError(text))
