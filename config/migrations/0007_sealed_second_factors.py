"""Seals the keys of operators' second factors and digests their backup codes.

The way back opens the keys; backup codes have to be made anew.
"""

from django.db import migrations

from config import secrets


def seal(apps, schema_editor):
    for device in apps.get_model("otp_totp", "TOTPDevice").objects.all():
        key = bytes.fromhex(device.key)
        device.key = secrets.seal_key(key, associated=f"second factor|{device.user_id}")
        device.save(update_fields=["key"])
    for code in apps.get_model("otp_static", "StaticToken").objects.select_related("device"):
        code.token = secrets.digest_backup_code(code.device.user_id, code.token)
        code.save(update_fields=["token"])


def unseal(apps, schema_editor):
    for device in apps.get_model("otp_totp", "TOTPDevice").objects.all():
        key = secrets.unseal_key(device.key, associated=f"second factor|{device.user_id}")
        device.key = key.hex()
        device.save(update_fields=["key"])


class Migration(migrations.Migration):
    dependencies = [
        ("config", "0006_audit_by_actor"),
        ("otp_static", "0003_add_timestamps"),
        ("otp_totp", "0003_add_timestamps"),
    ]

    operations = [
        migrations.CreateModel(
            name="SecondFactor",
            fields=[],
            options={"proxy": True, "default_permissions": (), "indexes": [], "constraints": []},
            bases=("otp_totp.totpdevice",),
        ),
        migrations.CreateModel(
            name="BackupCodes",
            fields=[],
            options={"proxy": True, "default_permissions": (), "indexes": [], "constraints": []},
            bases=("otp_static.staticdevice",),
        ),
        migrations.RunPython(seal, unseal),
    ]
