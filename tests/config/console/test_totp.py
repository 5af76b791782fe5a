from __future__ import annotations

import re
import secrets as random
import time
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django_otp.oath import hotp
from django_otp.oath import totp as code_at
from django_otp.plugins.otp_static.models import StaticToken
from django_otp.plugins.otp_totp.models import TOTPDevice

from config.audit.entries import AuditEntry
from config.console.sign_in import totp
from config.console.sign_in.models import SecondFactor
from config.secrets import DecryptionFailed, digest_backup_code

PASSWORD = "a long enough password"
PAGE = "/admin/two-factor/"
LOGIN = "/admin/login/?next=/admin/"


@pytest.fixture
def user(db: None) -> User:
    return User.objects.create_superuser("ann", password=PASSWORD)


@pytest.fixture
def required(settings: Any) -> None:
    settings.ADMIN_REQUIRES_TOTP = True


def log_in(client: Client, **fields: str) -> Any:
    return client.post(LOGIN, {"username": "ann", "password": PASSWORD, **fields})


def code_of(device: SecondFactor, *, steps: int | None = None) -> str:
    """Returns the code of now, or of a number of steps after the one that was used last."""
    if steps is None:
        return f"{code_at(device.bin_key):06d}"
    return f"{hotp(device.bin_key, device.last_t + steps):06d}"


def offer_of(client: Client) -> str:
    found = re.search(r'name="offer" value="([^"]+)"', client.get(PAGE).content.decode())
    assert found is not None
    return found[1]


def enrol(client: Client, user: User) -> tuple[SecondFactor, list[str]]:
    offer = offer_of(client)
    device = totp.read_offer(user, offer)
    answer = client.post(PAGE, {"offer": offer, "otp_token": code_of(device)})
    codes = re.findall("<li>([a-z2-7]{8})</li>", answer.content.decode())
    return SecondFactor.objects.get(), codes


def enrolled(user: User) -> tuple[Client, SecondFactor, list[str]]:
    """Returns a browser whose operator has enrolled, the device and its backup codes."""
    client = Client()
    log_in(client)
    return client, *enrol(client, user)


def digests(user: User, codes: list[str]) -> set[str]:
    return {digest_backup_code(user.pk, code)[0] for code in codes}


def is_inside(client: Client) -> bool:
    return bool(client.get("/admin/").status_code == 200)


def errors(response: Any) -> list[str]:
    return [str(text) for texts in response.context["form"].errors.values() for text in texts]


def test_login_needs_no_code_by_default(user: User) -> None:
    client = Client()

    assert log_in(client)["Location"] == "/admin/"
    assert is_inside(client)


def test_enrolment_shows_a_code_and_stores_nothing(user: User) -> None:
    client = Client()
    log_in(client)
    response = client.get(PAGE)

    text = response.content.decode()
    assert "<svg" in text
    assert not re.search(r'(?:src|href)="(?:https?:)?//', text)
    assert "no-store" in response["Cache-Control"]
    key = totp.readable_key(totp.read_offer(user, response.context["offer"]))
    assert key in text
    assert not TOTPDevice.objects.exists()


def test_enrolment_accepts_the_code_of_its_key(user: User) -> None:
    client, device, codes = enrolled(user)

    assert (device.user, device.confirmed, len(set(codes))) == (user, True, 10)
    assert set(StaticToken.objects.values_list("token", flat=True)) == digests(user, codes)
    assert is_inside(client)
    for path in (PAGE, "/admin/", f"/admin/otp_totp/totpdevice/{device.pk}/change/"):
        text = client.get(path).content.decode()
        assert not any(hidden in text for hidden in (*codes, device.key, totp.readable_key(device)))
    assert not any(code in str(list(AuditEntry.objects.values())) for code in codes)
    assert device.key not in str(list(AuditEntry.objects.values()))


def test_enrolment_ends_sessions_that_did_not_enter_a_code(user: User) -> None:
    before, client = Client(), Client()
    for browser in (before, client):
        log_in(browser)
    device, _ = enrol(client, user)

    assert is_inside(client)
    assert not is_inside(before)
    password = f"/admin/auth/user/{user.pk}/password/"
    new = {"password1": "another long password", "password2": "another long password"}
    assert before.post(password, new)["Location"].startswith("/admin/login/")
    user.refresh_from_db()
    assert user.check_password(PASSWORD)

    log_in(before, otp_token=code_of(device, steps=1))
    assert is_inside(before)


@pytest.mark.parametrize("code", ["000000", "", "abc", "12345678901234567"])
def test_enrolment_refuses_a_wrong_code(user: User, code: str) -> None:
    client = Client()
    log_in(client)
    offer = offer_of(client)
    if code == code_of(totp.read_offer(user, offer)):
        pytest.skip("the one code in a million that is right")
    response = client.post(PAGE, {"offer": offer, "otp_token": code})

    assert response.context["offer"] == offer
    assert errors(response)
    assert not TOTPDevice.objects.exists()
    assert not StaticToken.objects.exists()


def test_enrolment_refuses_the_offer_of_another_operator(user: User) -> None:
    stranger = User.objects.create_superuser("bob")
    client = Client()
    log_in(client)
    offer = totp.make_offer(stranger)
    code = code_of(totp.read_offer(stranger, offer))
    for text in (offer, "forged", offer_of(client)[:-1] + "!"):
        response = client.post(PAGE, {"offer": text, "otp_token": code})
        assert errors(response) == ["The page was open for too long. Scan the new QR code."]
    assert not TOTPDevice.objects.exists()


def test_login_after_enrolment_needs_a_code(user: User) -> None:
    _, device, _ = enrolled(user)
    client = Client()
    response = log_in(client)

    assert errors(response) == [
        "Enter the code that your authenticator app shows, or a backup code."
    ]
    assert PASSWORD not in response.content.decode()
    assert not is_inside(client)
    # Enrolment used up this code.
    used = log_in(client, otp_token=code_of(device, steps=0))
    assert errors(used) == ["The code is not valid or was already used."]
    code = code_of(device, steps=1)
    assert log_in(client, otp_token=f" {code[:3]} {code[3:]} ")["Location"] == "/admin/"
    assert is_inside(client)


def test_wrong_codes_lock_like_wrong_passwords(user: User) -> None:
    client, device, codes = enrolled(user)
    wrong = "111111" if code_of(device, steps=1) != "111111" else "222222"
    for _ in range(5):
        answer = log_in(Client(), otp_token=wrong)
        assert errors(answer) == ["The code is not valid or was already used."]

    for code in (code_of(device, steps=1), codes[0]):
        answer = log_in(Client(), otp_token=code)
        assert (answer.status_code, int(answer["Retry-After"]) > 800) == (429, True)
    assert totp.codes_left(user) == 10
    page = client.post(PAGE, {"action": "off", "otp_token": codes[0]})
    assert page.status_code == 429
    assert TOTPDevice.objects.exists()


def test_backup_code_works_once(user: User) -> None:
    _, _, codes = enrolled(user)
    first, second = Client(), Client()

    assert log_in(first, otp_token=codes[0].upper())["Location"] == "/admin/"
    assert errors(log_in(second, otp_token=codes[0])) == [
        "The code is not valid or was already used."
    ]
    assert (is_inside(first), is_inside(second)) == (True, False)
    assert totp.codes_left(user) == 9


def test_login_requires_setup_of_a_required_factor(user: User, required: None) -> None:
    client = Client()
    log_in(client)

    response = client.get("/admin/", follow=True)
    assert [path for path, _ in response.redirect_chain] == ["/admin/login/?next=/admin/", PAGE]
    for path in ("/admin/accounts/apikey/", "/admin/search/?s=key", "/admin/password_change/"):
        assert client.get(path)["Location"].startswith("/admin/login/")
    assert client.post("/admin/auth/user/add/", {}).status_code == 302
    assert response.context["sidebar_navigation"] == []
    enrol(client, user)
    assert is_inside(client)


def test_required_factor_ends_older_sessions(user: User, settings: Any) -> None:
    client, older = Client(), Client()
    log_in(older)
    log_in(client)
    enrol(client, user)
    settings.ADMIN_REQUIRES_TOTP = True

    assert (is_inside(client), is_inside(older)) == (True, False)
    assert older.get(PAGE)["Location"].startswith("/admin/login/")
    assert older.get("/admin/", follow=True).status_code == 200


def test_factor_is_changed_only_with_a_code(user: User) -> None:
    client, device, codes = enrolled(user)
    for form in ({"action": "off"}, {"action": "codes", "otp_token": "wrongwro"}):
        client.post(PAGE, form)
    assert (SecondFactor.objects.get(), totp.codes_left(user)) == (device, 10)

    answer = client.post(PAGE, {"action": "codes", "otp_token": code_of(device, steps=1)})
    fresh = re.findall("<li>([a-z2-7]{8})</li>", answer.content.decode())
    assert set(StaticToken.objects.values_list("token", flat=True)) == digests(user, fresh)
    assert set(fresh).isdisjoint(codes)
    client.post(PAGE, {"action": "off", "otp_token": fresh[0]})
    assert not TOTPDevice.objects.exists()
    assert not StaticToken.objects.exists()
    assert is_inside(client)


def test_required_factor_cannot_be_turned_off(user: User, required: None) -> None:
    client, device, codes = enrolled(user)
    client.post(PAGE, {"action": "off", "otp_token": codes[0]})

    assert SecondFactor.objects.get() == device


def test_another_operator_can_remove_a_lost_factor(user: User) -> None:
    _, device, _ = enrolled(user)
    other = Client()
    other.force_login(User.objects.create_superuser("bob"))
    other.post(f"/admin/otp_totp/totpdevice/{device.pk}/remove/", {"_form_submitted": "True"})

    assert not TOTPDevice.objects.exists()
    assert log_in(Client())["Location"] == "/admin/"
    found = AuditEntry.objects.get(kind="otp_totp.totpdevice", after__isnull=True)
    assert (found.actor, found.before["key"]) == ("operator bob", "********")


def test_key_is_sealed_to_its_operator(user: User) -> None:
    _, device, _ = enrolled(user)
    stored = TOTPDevice.objects.get().key

    assert (stored, len(stored)) == (device.key, 76)
    assert len(device.bin_key) == 20
    assert device.bin_key.hex() not in stored
    bob = User.objects.create_superuser("bob")
    for key in (stored, stored.swapcase(), "no base64", ""):
        moved = SecondFactor.objects.create(user=bob, name="app", key=key)
        with pytest.raises(DecryptionFailed):
            _ = moved.bin_key


def test_backup_codes_work_without_the_credential_key(user: User, settings: Any) -> None:
    _, device, codes = enrolled(user)
    code = code_of(device, steps=1)
    settings.CREDENTIAL_KEYS = [random.token_bytes(32)]
    client = Client()

    assert errors(log_in(client, otp_token=code)) == [
        "The key of your app cannot be decrypted. Use a backup code."
    ]
    assert not is_inside(client)
    assert log_in(client, otp_token=codes[0])["Location"] == "/admin/"
    assert is_inside(client)


def test_page_redirects_everyone_but_operators(db: None) -> None:
    for client in (Client(), Client()):
        assert client.get(PAGE)["Location"] == f"/admin/login/?next={PAGE}"
        client.force_login(User.objects.create_user(f"user {time.monotonic_ns()}"))
        assert client.get(PAGE)["Location"] == f"/admin/login/?next={PAGE}"
