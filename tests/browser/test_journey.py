"""An operator's journey through the console in a real browser, and a check of every page."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import requests
from django.contrib.auth.models import User
from django.core.cache import cache
from django.urls import reverse
from django.utils import timezone
from django_otp.oath import totp as code_at
from playwright.sync_api import Page

from accounts.models import ApiKey, Organization
from billing.models import Account
from config.audit import context as audit
from config.audit.entries import AuditEntry
from config.console.sign_in import totp
from endpoints import validation
from endpoints.models import PrivateEndpoint, Validation
from endusers.models import EndUser
from inference.ids import new_generation_id
from inference.models import Generation
from tests.support import factories
from tests.support.browser import (
    CUT_OFF,
    MARKS,
    OVERFLOW,
    PASSWORD,
    choose,
    enter,
    is_file,
    log_in,
    page_of,
    press,
    submit_dialog,
)
from tests.support.console import SECOND_FACTOR, SECRET, listing, page_paths
from tests.support.console import page as change_page
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator
from tests.support.suite.tiers import draw_examples

pytestmark = [*MARKS]

PICTURES: Final = os.environ.get("CAUSEWAY_SCREENSHOTS", "")
# The pages of the console are crawled in so many tests.
PARTS: Final = 4


def said(page: Page) -> str:
    """Returns the message that the last action displayed."""
    return page.locator("#main li > div.rounded-default").first.inner_text()


def rows(page: Page) -> list[list[str]]:
    """Returns the rows of a list without their checkboxes."""
    found = []
    for row in page.locator("#result_list tr:has(td)").all():
        cells = (_timeless(text) for text in row.locator("td, th").all_inner_texts())
        found.append([text for text in cells if text])
    return found


def shown(page: Page, *names: str) -> list[str]:
    """Returns the values of the read-only fields with the given labels."""
    values = "xpath=//label[normalize-space()='{}']/../following-sibling::div[1]"
    return [
        page.locator(values.format(name)).locator(".readonly").inner_text().strip()
        for name in names
    ]


def history(page: Page) -> list[list[str]]:
    """Returns the events of an endpoint, latest first: title, actor, reason and failed checks."""
    found = []
    for event in page.locator("#history > li").all():
        title = event.locator(".cw-what").inner_text()
        texts = event.locator(".cw-by, .cw-text").all_inner_texts()
        cells = event.locator("tr:has-text('failed') td").all_inner_texts()
        failed = [text.strip() for text in cells if text.strip()]
        found.append([title, *texts, " ".join(failed).strip()])
    return [[_timeless(text) for text in event if text] for event in found]


def _timeless(text: str) -> str:
    timeless = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "", text)
    return re.sub(r"\d+ ms", "N ms", timeless).strip()


def test_operator_sets_up_a_customer_who_sends_traffic(
    server: str,
    simulator: Simulator,
    settings: Any,
    tmp_path: Path,
    eventually: Callable[[Callable[[], bool]], None],
) -> None:
    settings.ADMIN_REQUIRES_TOTP = True
    user = User.objects.create_superuser("operator", password=PASSWORD)
    device = totp.read_offer(user, totp.make_offer(user))
    totp.enrol(device, f"{code_at(device.bin_key):06d}")
    # Enrolment used up the current code, so the login needs the next one.
    code = f"{code_at(device.bin_key, t0=-device.step):06d}"
    provider = factories.make_provider("acme-ai", name="Acme AI")
    factories.make_endpoint(factories.make_model("acme/falcon", name="Falcon"), provider)
    users = tmp_path / "customers.csv"
    users.write_text("user,is_active\ncustomer-1,true\ncustomer-2,false\n")

    with page_of(server) as (page, complaints):
        page.goto("/admin/login/?next=/admin/")
        page.fill("#id_username", "operator")
        page.fill("#id_password", PASSWORD)
        press(page, "Log in")
        assert page.locator("[role=alert]").inner_text() == (
            "Enter the code that your authenticator app shows, or a backup code."
        )
        log_in(page, code=code)
        assert page.title() == "Overview | Causeway"

        page.goto(reverse("admin:accounts_organization_add"))
        page.fill("#id_name", "Globex")
        press(page, "Save")
        assert said(page) == "The organization “Globex” was added successfully."
        page.wait_for_url("**/change/")
        page.goto(listing(Organization))
        assert rows(page) == [
            ["Globex", "globex", "ACTIVE", "$0.00", "$0.00", "-", "100 (default)"]
        ]
        page.locator("#result_list").get_by_role("link", name="Globex").click()
        submit_dialog(page, "Grant credits", amount="25", note="The first month.")
        assert said(page) == "$25 granted to Globex."
        values = page.locator(".cw-title, .cw-value").all_inner_texts()
        assert {"Balance", "$25", "Available", "Held", "$0", "Spent"} <= {
            value.rpartition("\n")[2] for value in values
        }

        page.goto(reverse("admin:endusers_enduser_changelist"))
        page.get_by_role("link", name="Import file").click()
        page.set_input_files("#id_file", users)
        assert page.input_value("#id_organization") == ""
        page.fill("#id_organization", "globex")
        press(page, "Preview the import")
        assert page.locator("form.cw-panel p, form.cw-panel li").all_inner_texts() == [
            "Import customers.csv? Nothing has been changed yet.",
            "end users: 2 new, 0 changed, 0 unchanged",
        ]
        planned = page.locator(".cw-subject").all_inner_texts()
        assert [" ".join(text.split()) for text in planned] == [
            "CREATE end users customer-1",
            "CREATE end users customer-2",
        ]
        press(page, "Import")
        assert said(page) == "The file was imported. end users: 2 new, 0 changed, 0 unchanged."
        assert sorted(rows(page)) == [
            ["customer-1", "Globex", "ACTIVE"],
            ["customer-2", "Globex", "INACTIVE"],
        ]

        page.goto(reverse("admin:accounts_apikey_add"))
        choose(page, "workspace", "Globex / Default")
        page.fill("#id_name", "CI")
        press(page, "Save")
        key = page.locator("#api-key").inner_text()
        label = f"{key[:9]}…{key[-3:]}"
        assert re.fullmatch("sk-cw-[0-9A-Za-z]{49}", key)
        assert page.get_by_text("Copy the key now.").inner_text() == (
            "Copy the key now. It is not stored and cannot be shown again."
        )
        page.get_by_role("link", name="I have copied the key").click()
        page.wait_for_url("**/change/")
        assert shown(page, "Label", "Type", "Status") == [label, "INFERENCE", "USABLE"]
        assert key not in page.content()

        page.goto(reverse("admin:accounts_byokcredential_add"))
        choose(page, "owner", "Globex")
        page.select_option("#id_provider", label="Acme AI")
        page.fill("#id_secret", SECRET)
        page.fill("#id_name", "Own deployment")
        press(page, "Save")
        assert said(page) == "The BYOK credential “acme-ai …3210” was added successfully."
        page.goto(reverse("admin:accounts_byokcredential_changelist"))
        assert rows(page) == [
            ["acme-ai", "Own deployment", "…3210", "IN USE", "Globex", "all workspaces", "-", "0"]
        ]

        page.goto(reverse("admin:endpoints_privateendpoint_add"))
        choose(page, "organization", "Globex")
        choose(page, "model", "Falcon")
        choose(page, "provider", "Acme AI")
        page.fill("#id_upstream_model_id", "sim-echo-key")
        page.fill("#id_base_url", simulator.base_url)
        press(page, "Save")
        assert said(page) == "The private endpoint “Falcon at Acme AI” was added successfully."
        assert shown(page, "Status", "Validation") == ["DRAFT", "NONE"]
        failed = [
            "VALIDATION FAILED",
            "by operator operator",
            "for activation, in Default, with acme-ai …3210, N ms, $0",
            "completion FAILED upstream_error 200 401 Incorrect API key provided: Bearer ********.",
        ]
        submit_dialog(page, "Validate")
        assert said(page) == "The validation failed: completion (upstream_error)."
        assert shown(page, "Status", "Validation") == ["DRAFT", "FAILED"]
        created = ["CREATED", "by operator operator"]
        assert history(page) == [failed, created]
        submit_dialog(page, "Activate")
        assert said(page) == "The endpoint has no passed validation: call validate first."
        submit_dialog(page, "Edit", upstream_model_id="sim-echo")
        assert said(page) == "The draft is saved."
        assert shown(page, "Validation", "Upstream model ID") == ["NONE", "sim-echo"]
        submit_dialog(page, "Validate")
        assert said(page) == "The validation passed."
        submit_dialog(page, "Activate")
        assert said(page) == "The endpoint is active."
        assert shown(page, "Status", "Validation") == ["ACTIVE", "PASSED"]
        passed = [
            "VALIDATION PASSED",
            "by operator operator",
            "for activation, in Default, with acme-ai …3210, N ms, $0.000044",
        ]
        activated = ["ACTIVATED", "by operator operator"]
        change = "upstream_model_id: sim-echo-key → sim-echo"
        edited = ["EDITED", "by operator operator", change]
        assert history(page) == [activated, passed, edited, failed, created]
        endpoint = page.url
        endpoint_id = endpoint.split("/")[-3]

        answer = requests.post(
            f"{server}/api/v1/chat/completions",
            json={
                "model": "acme/falcon",
                "messages": [{"role": "user", "content": "Over the causeway"}],
                "user": "customer-1",
            },
            headers={"Authorization": f"Bearer {key}"},
            timeout=60,
        ).json()
        assert answer["choices"][0]["message"]["content"] == "You said: Over the causeway"

        def has_arrived() -> bool:
            page.goto(reverse("admin:inference_generation_changelist"))
            return [row[1] for row in rows(page)] == ["COMPLETED"]

        eventually(has_arrived)
        assert rows(page) == [
            [answer["id"], "COMPLETED", "Globex", "acme/falcon", "Acme AI", "3 + 5", "$0", "N ms"]
        ]
        page.locator("#result_list").get_by_role("link", name=answer["id"]).click()
        page.wait_for_url("**/change/")
        assert shown(page, "Organization", "API key", "End user", "Private endpoint") == [
            "Globex", f"CI ({label})", "customer-1", "Falcon at Acme AI",
        ]  # fmt: skip
        assert shown(page, "Cost", "Upstream cost") == ["$0", "$0.000013"]

        page.goto(endpoint)
        submit_dialog(page, "Disable", reason="The contract ended.")
        assert said(page) == "The endpoint is disabled."
        assert shown(page, "Status") == ["DISABLED"]
        disabled = ["DISABLED", "by operator operator", "The contract ended."]
        assert history(page) == [disabled, activated, passed, edited, failed, created]

        page.goto(reverse("admin:config_auditentry_changelist"))
        *changes, entered, mistyped = rows(page)
        assert (entered[0], entered[-1]) == ("operator operator", "sign-in: signed_in")
        assert (mistyped[0], mistyped[-1]) == ("address 127.0.0.1", "sign-in: failed")
        assert [row[-1].removeprefix("admin: ") for row in changes] == [
            "endpoints_privateendpoint_disable",
            "endpoints_privateendpoint_activate",
            "endpoints_privateendpoint_validate",
            "endpoints_privateendpoint_validate",
            "endpoints_privateendpoint_edit",
            "endpoints_privateendpoint_validate",
            "endpoints_privateendpoint_add",
            "endpoints_privateendpoint_add",
            "accounts_byokcredential_add",
            "accounts_apikey_add",
            "import end users",
            "accounts_organization_grant",
            "accounts_organization_add",
            "accounts_organization_add",
        ]
        assert {row[0] for row in changes} == {"operator operator"}
        # The validation that passed bound the credential.
        bound = changes.pop(3)
        assert (bound[2][:15], bound[3]) == ("BYOK credential", "bound_domains")
        assert [re.sub(r"(?<!endpoint) \d+$", "", " ".join(row[1:3])) for row in changes] == [
            *[f"CHANGED private endpoint {endpoint_id[:8]}"] * 5,
            f"CREATED private endpoint {endpoint_id[:8]}",
            "CREATED price version",
            "CREATED BYOK credential Own deployment",
            "CREATED API key CI",
            "RECORDED import",
            "CREATED transfer",
            "CREATED workspace Default",
            "CREATED organization Globex",
        ]
        page.locator("#result_list a").first.click()
        page.wait_for_url("**/change/")
        assert shown(page, "Actor", "Change", "Organization") == [
            "operator operator", "CHANGED", "Globex",
        ]  # fmt: skip
        cells = page.locator(".cw-table td").all_inner_texts()
        assert cells[3:] == [
            "disabled_by", "", "operator operator",
            "disabled_reason", "", "The contract ended.",
            "status", "active", "disabled",
        ]  # fmt: skip
    assert complaints == []


@pytest.mark.parametrize("part", range(PARTS))
def test_every_page_fits_a_phone_and_shows_no_secret(
    server: str, tenant: Tenant, world: dict[str, Any], part: int
) -> None:
    User.objects.create_superuser("operator", password=PASSWORD)
    # These texts cannot be wrapped, and they must not widen a page.
    Organization.objects.update(name="Unbroken" * 20)
    failed = {"name": "model", "passed": False, "reason": "model_mismatch"}
    told = {"upstream_status": 404, "upstream_message": "x" * 512, "actual_model": "y" * 255}
    Validation.objects.update(outcome="failed", checks=[failed | told])
    paths = page_paths(world)
    hidden = (SECRET, SECOND_FACTOR, tenant.api_key, tenant.management_key)
    wide, telling = [], []

    with page_of(server, width=390) as (page, complaints):
        # A dialog that is opened directly is a fragment without an icon link.
        page.route("**/favicon.ico", lambda route: route.fulfill(status=204))
        enter(page)
        for path in draw_examples(paths[part::PARTS]):
            if path.endswith("/export/") and is_file(page, path):
                continue
            answer = page.goto(path)
            assert (path, answer and answer.status) == (path, 200)
            if not page.locator("link[rel=stylesheet]").count():
                page.add_style_tag(url="/static/causeway/console.css")
            if page.evaluate(OVERFLOW) > 0 or page.evaluate(CUT_OFF):
                wide.append((path, page.evaluate(OVERFLOW), page.evaluate(CUT_OFF)))
            if any(secret in page.content() for secret in hidden):
                telling.append(path)

    assert (complaints, wide) == ([], [])
    assert telling == []
    assert {"/admin/", change_page(world["endpoints.privateendpoint"])} <= set(paths)


@pytest.mark.skipif(not PICTURES, reason="takes pictures of the console where they are asked for")
def test_pictures_of_the_main_pages_are_taken(server: str, simulator: Simulator) -> None:
    """``CAUSEWAY_SCREENSHOTS=DIR pytest tests/browser/test_journey.py -k pictures`` fills DIR.

    Each picture shows the full height of its page. Its name has the page, the width and the colour
    scheme, for instance ``home-390-dark.png``.
    """
    paths = _scene(simulator)
    for width, scheme in itertools.product((1440, 1024, 390), ("light", "dark")):
        with page_of(server, width=width, color_scheme=scheme) as (page, complaints):
            page.goto("/admin/login/")
            page.screenshot(path=Path(PICTURES) / f"login-{width}-{scheme}.png")
            log_in(page)
            for name, path in paths.items():
                page.set_viewport_size({"width": width, "height": 900})
                page.goto(path)
                height = page.evaluate("document.documentElement.scrollHeight")
                # In a shorter window, sticky elements would cover the middle of the picture.
                page.set_viewport_size({"width": width, "height": max(height, 900)})
                page.screenshot(path=Path(PICTURES) / f"{name}-{width}-{scheme}.png")
        assert complaints == []


def _scene(simulator: Simulator) -> dict[str, str]:
    """Creates a day of traffic of two customers; returns the paths of the pages by short names."""
    cache.clear()
    User.objects.create_superuser("operator", password=PASSWORD)
    globex, initech = factories.make_tenant("Globex"), factories.make_tenant("Initech")
    factories.make_tenant("Hooli", credits_usd=3)
    acme = factories.make_provider("acme-ai", name="Acme AI")
    models = [
        factories.make_model(f"acme/{slug}", name=f"Acme: {slug.title()}", created=1_780_272_000)
        for slug in ("falcon", "heron", "swift")
    ]
    public = [factories.make_endpoint(model, acme) for model in models]
    chance = Random(7)
    made = timezone.now()
    for number in range(120):
        made -= timedelta(minutes=4 + 16 * chance.random() ** 2 + 6 * (60 < number < 90))
        chosen = chance.choices(range(3), (5, 3, 1))[0]
        prompt, completion = chance.randrange(400, 2_400), chance.randrange(40, 400)
        is_failed = chance.random() < 0.04
        cost = 0 if is_failed else 1_000 * prompt + 2_000 * completion
        factories.make_generation(
            chance.choice((globex, globex, initech)),
            id=f"gen-{int(made.timestamp())}-{new_generation_id().rsplit('-', 1)[1]}",
            created_at=made,
            model=models[chosen].slug,
            model_endpoint=public[chosen],
            status="failed" if is_failed else "completed",
            error_type="upstream_error" if is_failed else None,
            cost_nano=cost,
            upstream_cost_nano=cost,
            prompt_tokens=prompt,
            completion_tokens=0 if is_failed else completion,
            end_user=f"customer-{chance.choices(range(5), (5, 4, 2, 1, 1))[0]}",
            latency_ms=chance.randrange(90, 420),
            duration_ms=700,
        )
    for user in range(5):
        EndUser.objects.register(organization_id=globex.organization.pk, user=f"customer-{user}")
    with audit.acting_as("operator ann", "admin: endpoints_privateendpoint_edit"):
        factories.make_credential(globex, acme)
        declared: Any = {"declared_region": "europe", "declared_zdr": True, "by": "operator ann"}
        falcon = factories.make_draft(
            globex,
            models[0],
            acme,
            base_url=simulator.base_url,
            upstream_model_id="sim-wrong-model",
            **declared,
        )
        validation.run(falcon, workspace_id=globex.workspace.pk)
        falcon.edit(upstream_model_id="falcon-9", **declared)
        validation.run(falcon, workspace_id=globex.workspace.pk)
        falcon.activate(by="operator ann")
        heron = factories.make_draft(
            globex, models[1], acme, base_url=simulator.base_url, upstream_model_id="sim-no-usage"
        )
        validation.run(heron, workspace_id=globex.workspace.pk)
        swift = factories.make_active(initech, models[2], acme, base_url=simulator.base_url)
        swift.disable(by="operator ann", reason="The contract ended.")
    key = ApiKey.objects.get(organization=globex.organization, is_management=False)
    generation = Generation.objects.filter(organization=globex.organization)[0]
    entry = AuditEntry.objects.filter(kind="endpoints.privateendpoint").order_by("-id")[0]
    shown = (globex.organization, key, falcon, generation, entry)
    return {
        "home": "/admin/",
        "organizations": listing(Organization),
        **{row._meta.model_name: change_page(row) for row in shown},
        "draft": change_page(heron),
        "endpoints": listing(PrivateEndpoint),
        "add": listing(PrivateEndpoint, "add"),
        "generations": listing(Generation),
        "validations": listing(Validation),
        "end-users": listing(EndUser),
        "import": reverse("admin:endusers_enduser_import_file"),
        "audit": listing(AuditEntry),
        "accounts": listing(Account),
        "two-factor": reverse("admin:two_factor"),
    }
