"""The stories of usage, keys, customers, search and imports, each walked as every role.

A role does what it may. Everything else of a story is refused in plain English and changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.core.cache import cache
from django.utils import timezone

from accounts.models import ApiKey, Member, Organization
from billing.models import Account
from catalog import imports
from catalog.models import CatalogProposal, LanguageModel, ModelEndpoint
from config.apps import Role
from config.console.lists.models import SavedView
from config.console.sign_in import roles
from endusers.models import EndUser
from inference.models import Generation
from tests.support import factories
from tests.support.browser import MARKS, choose, open_search, press, submit_dialog
from tests.support.catalogue import make_proposal
from tests.support.console import listing
from tests.support.console import page as page_path
from tests.support.operators.walks import (
    ADMINISTRATORS,
    CUSTOMER_CARE,
    EVERYBODY,
    MONEY,
    SUPERUSER,
    Walk,
    assert_refused,
    make_operator,
    take_walk,
)

pytestmark = [*MARKS]

KEY_ACTIONS = {
    "Limit spending": "limit_spending",
    "Rate limits": "limit_rates",
    "Pause": "pause",
    "Revoke": "revoke",
}


class Scene(NamedTuple):
    """A customer with traffic on a public and a private endpoint, and a proposal of prices."""

    tenant: factories.Tenant
    key: ApiKey
    generation: Generation
    subjects: Sequence[tuple[Any, int, str]]
    proposal: CatalogProposal
    prices: Path


@pytest.fixture
def scene(server: str, tmp_path: Path) -> Scene:
    # The first page shows sums of the last minute, which may be those of the test before.
    cache.clear()
    roles.update_roles()
    globex = factories.make_tenant("Globex")
    factories.make_tenant("Initech")
    model = factories.make_model("acme/falcon", name="Falcon")
    provider = factories.make_provider("acme-ai", name="Acme AI")
    public = factories.make_endpoint(model, provider)
    private = factories.make_draft(globex, model, provider)
    key = ApiKey.objects.get(name="inference", workspace=globex.workspace)
    now = timezone.now()
    for number in range(8):
        served: dict[str, Any] = (
            {"private_endpoint": private} if number > 5 else {"model_endpoint": public}
        )
        generation = factories.make_generation(
            globex,
            **served,
            created_at=now - timedelta(minutes=number),
            status="failed" if number == 3 else "completed",
            cost_nano=0 if number == 3 else 2_000_000 * (number + 1),
            end_user="customer-1",
            latency_ms=120,
        )
    user = EndUser.objects.register(organization_id=globex.organization.pk, user="customer-1")
    file = json.loads(imports.export()[0])
    [listed] = file["endpoints"]
    listed["pricing"]["prompt"] = "0.00001"
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps(file))
    return Scene(
        globex,
        key,
        generation,
        [
            *((each, 8, "$0.064") for each in (globex.organization, globex.workspace, key, user)),
            (private, 2, "$0.03"),
            (public, 6, "$0.034"),
            *((each, 8, "$0.064") for each in (provider, model)),
        ],
        make_proposal(public),
        prices,
    )


def ask(walk: Walk, key: str) -> tuple[int, str]:
    """Asks for a model that does not exist; returns the status and the message of the refusal."""
    body = {"model": "acme/nothing", "messages": [{"role": "user", "content": "Hello"}]}
    answer = walk.page.request.post(
        "/api/v1/chat/completions", headers={"Authorization": f"Bearer {key}"}, data=body
    )
    return answer.status, answer.json()["error"]["message"]


def credits_of(scene: Scene) -> int:
    """Returns the credits that the customer has received, in nano-USD."""
    accounts = Account.objects.for_organization(scene.tenant.organization.pk)
    return int(accounts.get(kind=Account.Kind.CREDITS).posted_credits)


def see_usage(walk: Walk, scene: Scene, role: str) -> None:
    """Goes from the first page to the spender, and reads the usage of each object behind it."""
    page = walk.page
    page.goto("/admin/")
    walk.look("home")
    page.get_by_role("link", name="Globex").first.click()
    with page.expect_navigation(url="**/*usage=7d*"):
        page.locator("#usage").get_by_role("link", name="7 days").click()
    page.get_by_text("As a table").first.click()
    assert page.locator("#usage details[open] tbody tr").count() == 7
    for subject, requests, spent in scene.subjects:
        page.goto(f"{page_path(subject)}?usage=24h")
        values = page.locator("#usage .cw-value").all_inner_texts()
        assert values[:2] == [str(requests), spent]
        name = subject._meta.model_name
        if role == SUPERUSER or name in ("organization", "apikey"):
            walk.look(f"usage-{name}")
        if role != SUPERUSER:
            continue
        with page.expect_navigation():
            page.get_by_role("link", name="Generations of this period").click()
        assert page.locator("#result_list tbody").count() == requests
    walk.look("usage-generations")


def manage_keys(walk: Walk, scene: Scene, role: str) -> None:
    """Creates a key, limits it, pauses another one and resumes it, as far as the role may."""
    page = walk.page
    if role in ADMINISTRATORS:
        page.goto(listing(ApiKey, "add"))
        choose(page, "workspace", "Globex / Default")
        page.fill("#id_name", "CI")
        walk.look("key-add")
        press(page, "Save")
        secret = page.locator("#api-key").inner_text()
        for name in ("curl", "OpenAI SDK", "OpenRouter SDK", "Claude Code", "Codex"):
            assert page.get_by_text(name, exact=True).count() == 1
        walk.look("key-issued")
        page.get_by_role("link", name="I have copied the key").click()
        page.wait_for_url("**/change/")
        assert secret not in page.content()
    else:
        page.goto(listing(ApiKey))
        assert page.locator("a.addlink").count() == 0
        assert_refused(walk, role, listing(ApiKey, "add"))
        page.goto(page_path(scene.key))
    assert walk.find_links(*KEY_ACTIONS) == (list(KEY_ACTIONS) if role in CUSTOMER_CARE else [])
    if role not in CUSTOMER_CARE:
        addresses = [page_path(scene.key, verb) for verb in KEY_ACTIONS.values()]
        assert_refused(walk, role, *addresses)
        return
    submit_dialog(page, "Limit spending", limit="12.50")
    submit_dialog(page, "Rate limits", requests_per_minute="60")
    text = page.locator("#main").inner_text()
    assert ("$12.5 in all" in text, "of 60 requests this minute" in text) == (True, True)
    walk.look("key-limited")
    page.goto(page_path(scene.key))
    submit_dialog(page, "Pause")
    assert walk.said() == "The key is paused."
    walk.look("key-paused")
    assert ask(walk, scene.tenant.api_key) == (401, "The API key is disabled.")
    submit_dialog(page, "Resume")
    assert ask(walk, scene.tenant.api_key)[0] == 404


def lead_customer(walk: Walk, scene: Scene, role: str) -> None:
    """Goes through the tabs of a customer, and does for it what the role may do."""
    page = walk.page
    path = page_path(scene.tenant.organization)
    page.goto(listing(Organization))
    walk.look("organizations")
    if role in ADMINISTRATORS:
        page.locator("a.addlink").first.click()
        page.fill("#id_name", "Umbrella")
        press(page, "Save and continue editing")
        walk.look("first-steps")
        page.get_by_role("link", name="Add a member").click()
        assert "Umbrella" in page.locator("#id_organization + .select2-container").inner_text()
    else:
        assert page.locator("a.addlink").count() == 0
        assert_refused(walk, role, listing(Organization, "add"))
    page.goto(path)
    walk.look("overview")
    tabs = page.locator("nav.cw-tabs > a")
    titles = tabs.all_inner_texts()
    assert titles[:4] == ["Overview", "API keys", "Members", "Workspaces"]
    for title in titles[1:] if role == SUPERUSER else titles[-3:]:
        with page.expect_navigation():
            tabs.get_by_text(title, exact=True).click()
        assert tabs.all_inner_texts() == titles
        assert page.locator("nav.cw-tabs [aria-current]").inner_text() == title
        if title in titles[-3:]:
            walk.look("tab-" + title.lower().replace(" ", "-"))
    page.goto(path)
    care_for_members(walk, scene, role)
    page.goto(path)
    grant_credits(walk, scene, role)
    page.goto(path)
    assert walk.find_links("Suspend") == (["Suspend"] if role in ADMINISTRATORS else [])
    if role not in ADMINISTRATORS:
        verbs = ("suspend", "resume", "limit_rates")
        addresses = [page_path(scene.tenant.organization, verb) for verb in verbs]
        assert_refused(walk, role, *addresses)
        return
    submit_dialog(page, "Suspend", reason="The invoice is not paid. Write to Ann.")
    walk.look("suspended")
    assert ask(walk, scene.tenant.api_key) == (
        403,
        "The organization is suspended: The invoice is not paid. Write to Ann.",
    )
    submit_dialog(page, "Resume")
    assert ask(walk, scene.tenant.api_key)[0] == 404


def care_for_members(walk: Walk, scene: Scene, role: str) -> None:
    """Adds a member from the customer's tab, whose form knows the customer."""
    page = walk.page
    with page.expect_navigation():
        page.locator("nav.cw-tabs a").get_by_text("Members", exact=True).click()
    if role not in CUSTOMER_CARE:
        assert page.locator("a.addlink").count() == 0
        assert_refused(walk, role, listing(Member, "add"))
        return
    page.locator("a.addlink").first.click()
    assert "Globex" in page.locator("#id_organization + .select2-container").inner_text()
    page.fill("#id_email", "ann@globex.example")
    press(page, "Save")
    assert "Globex" in page.locator("nav.cw-tabs").inner_text()
    walk.look("member-added")


def grant_credits(walk: Walk, scene: Scene, role: str) -> None:
    """Grants credits in the dialog of the customer's page."""
    assert walk.find_links("Grant credits") == (["Grant credits"] if role in MONEY else [])
    if role not in MONEY:
        assert_refused(walk, role, page_path(scene.tenant.organization, "grant"))
        return
    submit_dialog(walk.page, "Grant credits", amount="25", note="The first month.")
    assert walk.said() == "$25 granted to Globex."


def find_anything(walk: Walk, scene: Scene, role: str) -> None:
    """Finds rows by what customers name, saves the filters of a list, and takes the rows along."""
    page = walk.page
    page.goto("/admin/")
    terms = {
        scene.generation.pk: scene.generation.pk,
        scene.key.label: f"inference ({scene.key.label})",
        str(scene.key.pk): f"inference ({scene.key.label})",
        "glob": "Globex",
        "customer-1": "customer-1",
        # Only administrators may see operators.
        "operator": "operator" if role in ADMINISTRATORS else "Nothing was found.",
        "nowhere": "Nothing was found.",
    }
    # The walk of a superuser tries every kind of term, the others what differs by role.
    tried = terms if role == SUPERUSER else ("glob", "operator")
    for term in tried:
        found = terms[term]
        open_search(page)
        box = page.locator("#search-input-command")
        with page.expect_response(lambda answer: "/search/" in answer.url):
            box.fill(term)
            box.press("End")
        page.locator("#command-results").get_by_text(found).first.wait_for()
        if found in ("Globex", "Nothing was found."):
            walk.look(f"find-{term}")
        page.keyboard.press("Escape")
    page.goto(f"{listing(Generation)}?status__exact=failed")
    assert page.locator("#result_list tbody").count() == 1
    page.get_by_role("button", name="Filters").click()
    walk.look("filters")
    page.keyboard.press("Escape")
    page.get_by_text("Save these filters").click()
    page.fill("#view-name", "Failures")
    walk.look("save-view")
    press(page, "Save")
    walk.look("saved-view")
    with page.expect_download() as file:
        page.get_by_role("link", name="Export as CSV").click()
    assert Path(file.value.path()).read_text().count("\n") == 2
    page.locator("#result_list tbody a").first.click()
    page.wait_for_url("**/change/**")
    walk.look("generation")


def plan_import(walk: Walk, scene: Scene, role: str) -> None:
    """Sees the changes of a proposal and of a file before they count, and decides."""
    page = walk.page
    page.goto(listing(CatalogProposal))
    walk.look("proposals")
    page.goto(page_path(scene.proposal))
    assert "+100 %" in page.locator(".cw-plan").inner_text()
    walk.look("proposal")
    decisions = ["Approve", "Refuse"]
    assert walk.find_links(*decisions) == (decisions if role in MONEY else [])
    if role in MONEY:
        submit_dialog(page, "Approve")
        assert walk.said() == "The changes are applied."
    else:
        addresses = [page_path(scene.proposal, verb) for verb in ("approve", "refuse")]
        assert_refused(walk, role, *addresses)
    page.goto(listing(LanguageModel))
    walk.look("models")
    assert walk.find_links("Import file") == (["Import file"] if role in ADMINISTRATORS else [])
    if role not in ADMINISTRATORS:
        assert_refused(walk, role, listing(LanguageModel, "import_file"))
        return
    page.get_by_role("link", name="Import file").click()
    walk.look("import")
    page.set_input_files("#id_file", scene.prices)
    press(page, "Preview the import")
    assert "+900 %" in page.locator(".cw-plan").inner_text()
    walk.look("import-plan")
    press(page, "Import")
    walk.look("imported")


STORIES: Sequence[Callable[[Walk, Scene, str], None]] = (
    see_usage, manage_keys, lead_customer, find_anything, plan_import,
)  # fmt: skip


@pytest.mark.parametrize("role", EVERYBODY)
def test_stories_are_walked_as_each_role(server: str, scene: Scene, role: str) -> None:
    operator = make_operator(None if role == SUPERUSER else Role(role))

    def walk_all(walk: Walk) -> None:
        for story in STORIES:
            story(walk, scene, role)

    assert take_walk(server, operator, walk_all, name=role.lower()) == []
    assert SavedView.objects.get().operator_id == operator.pk
    assert set(ApiKey.objects.filter(name="CI").values_list("limit_nano", flat=True)) == (
        {12_500_000_000} if role in ADMINISTRATORS else set()
    )
    names = {"Globex", "Initech", *(["Umbrella"] if role in ADMINISTRATORS else [])}
    assert set(Organization.objects.values_list("name", flat=True)) == names
    assert Member.objects.filter(email="ann@globex.example").exists() == (role in CUSTOMER_CARE)
    assert credits_of(scene) == (1_025_000_000_000 if role in MONEY else 1_000_000_000_000)
    price = ModelEndpoint.objects.get().price
    if role in ADMINISTRATORS:
        expected = ("0.00001", "0.000002")
    else:
        expected = ("0.000001", "0.000004" if role in MONEY else "0.000002")
    assert (price.prompt, price.completion) == tuple(map(Decimal, expected))
