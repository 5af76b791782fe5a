"""Replaces the keys of stored sessions by digests, so that operators stay signed in.

The code is a copy of that of the sessions at this time, so that a later change of them does not
change this step.
"""

from datetime import timedelta

from django.conf import settings
from django.contrib.sessions.serializers import JSONSerializer
from django.core import signing
from django.db import migrations
from django.utils import timezone
from django.utils.crypto import salted_hmac

SALT = "django.contrib.sessions.SessionStore"


def digest_keys(apps, schema_editor):
    Session = apps.get_model("sessions", "Session")
    now = timezone.now()
    idle = now + timedelta(seconds=settings.SESSION_IDLE_TIMEOUT)
    # A digest is longer than a key.
    for row in list(Session.objects.filter(session_key__regex="^[a-z0-9]{32}$")):
        rows = Session.objects.filter(pk=row.pk)
        try:
            data = signing.loads(row.session_data, salt=SALT, serializer=JSONSerializer)
        except signing.BadSignature:
            rows.delete()
            continue
        digest = salted_hmac("causeway.session", row.pk, algorithm="sha256").hexdigest()[:40]
        data = {"signed_in_at": now.timestamp(), **data}
        rows.update(
            session_key=digest,
            session_data=signing.dumps(data, salt=SALT, serializer=JSONSerializer, compress=True),
            expire_date=min(row.expire_date, idle),
        )


def delete_sessions(apps, schema_editor):
    """Ends all sessions: a digest would be a valid key to the code before this step."""
    apps.get_model("sessions", "Session").objects.all().delete()


class Migration(migrations.Migration):
    dependencies = [("config", "0001_initial"), ("sessions", "0001_initial")]

    operations = [migrations.RunPython(digest_keys, delete_sessions)]
