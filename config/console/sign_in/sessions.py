"""Operators' sessions: rows under keyed digests, with an end that the server decides.

This module is the setting ``SESSION_ENGINE``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.backends.db import SessionStore as DatabaseStore
from django.contrib.sessions.middleware import SessionMiddleware
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.crypto import salted_hmac

from config.partitions.tables import read_now

SIGNED_IN_AT: Final = "signed_in_at"
BACKGROUND: Final = "Causeway-Background"
"""The header of a request that a page sends by itself, while its operator may be away."""
_SALT: Final = "causeway.session"
# The column of Django's table is as wide.
_DIGITS: Final = 40
# A row is written this often at most while its session is used.
_WRITE_SECONDS: Final = 60


def digest_session_key(key: str) -> str:
    """Returns the key of the row of a session, 160 bits in hexadecimal."""
    return _digest(key, settings.SECRET_KEY)


def _digest(key: str, secret: str) -> str:
    return salted_hmac(_SALT, key, secret=secret, algorithm="sha256").hexdigest()[:_DIGITS]


def _digests(key: str) -> list[str]:
    """Returns the digest of a key under the present secret key and under each earlier one."""
    secrets = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return [_digest(key, secret) for secret in secrets]


class SessionStore(DatabaseStore):
    """A session whose row has a keyed digest in place of the key that the cookie carries.

    A copy of the table is therefore no login. A session ends ``SESSION_LIFETIME`` after the
    sign-in and after ``SESSION_IDLE_TIMEOUT`` without a request, by the database's clock. Its name
    is a part of the salt of the signed data, so it must stay the name of Django's class.
    """

    # A request that nobody made by hand does not put off the end of an idle session.
    is_background = False

    # Django's asynchronous methods would look for the key itself.
    aexists = SessionBase.aexists
    acreate = SessionBase.acreate
    asave = SessionBase.asave
    adelete = SessionBase.adelete
    aload = SessionBase.aload

    def load(self) -> dict[str, Any]:
        """Returns the data of a session that has not ended; puts off its end if it is due."""
        rows = self.model.objects.filter(
            session_key__in=_digests(self.session_key or ""), expire_date__gt=Now()
        )
        row = rows.annotate(now=Now()).first()
        data: dict[str, Any] = {} if row is None else self.decode(row.session_data)
        if row is None or row.now >= _end_of(data):
            self._session_key = None
            return {}
        key = digest_session_key(self.session_key or "")
        until = _expiry_of(data, row.now)
        seconds = min(_WRITE_SECONDS, settings.SESSION_IDLE_TIMEOUT // 10)
        is_due = not self.is_background and abs(until - row.expire_date) > timedelta(
            seconds=seconds
        )
        if row.session_key != key or is_due:
            until = row.expire_date if self.is_background else until
            # Only these columns: a request that runs beside this one may change the data.
            rows.filter(pk=row.pk).update(session_key=key, expire_date=until)
        return data

    def exists(self, session_key: str) -> bool:
        return bool(self.model.objects.filter(session_key__in=_digests(session_key)).exists())

    def create_model_instance(self, data: dict[str, Any]) -> Any:
        now = read_now()
        # Kept when the key changes, as after a new password, so that the end stays where it is.
        data.setdefault(SIGNED_IN_AT, now.timestamp())
        key: str = self._get_or_create_session_key()  # type: ignore[attr-defined]
        return self.model(
            session_key=digest_session_key(key),
            session_data=self.encode(data),
            expire_date=_expiry_of(data, now),
        )

    def delete(self, session_key: str | None = None) -> None:
        key = session_key or self.session_key
        if key is not None:
            self.model.objects.filter(session_key__in=_digests(key)).delete()

    @classmethod
    def clear_expired(cls) -> None:
        cls.get_model_class().objects.filter(expire_date__lt=Now()).delete()


class ConsoleSessionMiddleware(SessionMiddleware):
    """Tells the session of a request whether a page sent that by itself."""

    def process_request(self, request: HttpRequest) -> None:
        super().process_request(request)
        session: Any = request.session
        session.is_background = BACKGROUND in request.headers


def _end_of(data: dict[str, Any]) -> datetime:
    """Returns the time at which a session ends, whether it is used or not."""
    start = datetime.fromtimestamp(data.get(SIGNED_IN_AT, 0), tz=UTC)
    return start + timedelta(seconds=settings.SESSION_LIFETIME)


def _expiry_of(data: dict[str, Any], now: datetime) -> datetime:
    return min(_end_of(data), now + timedelta(seconds=settings.SESSION_IDLE_TIMEOUT))
