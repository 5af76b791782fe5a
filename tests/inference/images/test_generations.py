"""Images through the gateway: three interfaces over one operation."""

from __future__ import annotations

import base64
from typing import Any, Final

import pytest
import requests

from billing.models import Transfer
from tests.support import factories
from tests.support.database.snapshots import unchanged
from tests.support.inference.health import failures_of
from tests.support.inference.pictures import DATA_URL, EDITS, GENERATIONS, PNG, ROUTER, reference
from tests.support.inference.site import Site, error_of
from tests.support.ledger import assert_in_order
from tests.support.simulator.pictures import make_png
from tests.support.suite.tiers import draw_examples


def ask(site: Site, path: str = ROUTER, **fields: Any) -> requests.Response:
    return site.post({"model": site.model.slug, "prompt": "a black cat", **fields}, path=path)


def edit(site: Site, *files: tuple[str, Any], **fields: Any) -> requests.Response:
    """Sends a form, as clients of OpenAI do."""
    fields = {"model": site.model.slug, "prompt": "a black cat", **fields}
    return site.post(None, path=EDITS, data=fields, files=list(files))


@pytest.mark.parametrize("path", [ROUTER, GENERATIONS])
def test_an_image_has_every_member_and_costs_its_tokens(site: Site, path: str) -> None:
    site.publish(price=factories.make_price("0.001", "0.00001"))
    answer = ask(site, path, size="1024x1024", quality="low", n=2)
    assert answer.status_code == 200
    body = answer.json()
    row = site.settled()
    encoded = base64.b64encode(make_png(1024, 1024)).decode()
    assert body.pop("data") == [{"b64_json": encoded, "media_type": "image/png"}] * 2
    usage = body.pop("usage")
    assert body == {
        "id": row.pk,
        "created": 1_780_272_000,
        "model": site.model.slug,
        "provider": "Acme AI",
        "background": "opaque",
        "output_format": "png",
        "quality": "low",
        "size": "1024x1024",
    }
    counts = {
        "prompt_tokens": 3, "completion_tokens": 544, "total_tokens": 547,
        "input_tokens": 3, "output_tokens": 544, "cost": 0.00844, "is_byok": False,
        "input_tokens_details": {"image_tokens": 0, "text_tokens": 3},
        "output_tokens_details": {"image_tokens": 544, "text_tokens": 0},
    }  # fmt: skip
    assert {name: usage[name] for name in counts} == counts
    assert (row.operation, row.status) == ("images/generations", "completed")
    assert (row.prompt_tokens, row.completion_tokens, row.is_estimated) == (3, 544, False)
    posted = Transfer.objects.get(reference=row.pk)
    assert (posted.status, posted.posted_nano) == ("posted", 8_440_000)
    assert_in_order()


def test_an_edit_in_a_form_and_one_with_references_are_the_same(site: Site) -> None:
    site.publish()
    form = edit(site, ("image", ("a.png", PNG, "image/png")), n="1", quality="low")
    assert form.status_code == 200
    json_body = ask(site, input_references=[reference()], n=1, quality="low")
    assert json_body.status_code == 200
    first, second = site.dialled()
    assert first.path == second.path == "/v1/images/edits"
    assert first.body == second.body
    assert first.body["image"] == [{"type": "image/png", "bytes": len(PNG)}]
    assert form.json()["usage"]["input_tokens_details"]["image_tokens"] == 200
    assert_in_order()


def test_a_form_may_have_several_images_a_mask_and_options(site: Site) -> None:
    site.publish()
    picture = ("a.png", PNG, "image/png")
    files = [("image[]", picture), ("image[]", picture), ("mask", picture)]
    answer = edit(site, *files, input_fidelity="high", provider='{"only": ["acme"]}')
    assert answer.status_code == 200
    [sent] = site.dialled()
    assert len(sent.body["image"]) == 2
    assert len(sent.body["mask"]) == 1
    assert sent.body["input_fidelity"] == "high"
    assert "provider" not in sent.body


WRONG_FIELDS: Final[list[tuple[dict[str, Any], str]]] = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": ["a"]}, "prompt"),
    ({"n": 0}, "n"),
    ({"n": 11}, "n"),
    ({"n": "1"}, "n"),
    ({"size": "huge"}, "size"),
    ({"size": "0x0"}, "size"),
    ({"size": "100000x1024"}, "size"),
    ({"resolution": "8K"}, "resolution"),
    ({"aspect_ratio": "16:10"}, "aspect_ratio"),
    ({"size": "1024x1024", "aspect_ratio": "3:2"}, "aspect_ratio"),
    ({"size": "1024x1024", "resolution": "4K"}, "resolution"),
    ({"size": "2K", "resolution": "4K"}, "resolution"),
    ({"quality": "best"}, "quality"),
    ({"output_format": "bmp"}, "output_format"),
    ({"output_compression": 101, "output_format": "jpeg"}, "output_compression"),
    ({"output_compression": -1, "output_format": "jpeg"}, "output_compression"),
    ({"output_compression": 99}, "output_compression"),
    ({"output_compression": 99, "output_format": "png"}, "output_compression"),
    ({"background": "transparent", "output_format": "jpeg"}, "background"),
    ({"partial_images": 1}, "partial_images"),
    ({"partial_images": 4, "stream": True}, "partial_images"),
    ({"frame_count": 2}, "frame_count"),
    ({"frame_count": 17, "output_format": "gif"}, "frame_count"),
    ({"svg": {"model": "x"}}, "svg"),
    ({"mask": reference()}, "mask"),
    ({"input_fidelity": "high"}, "input_fidelity"),
    ({"input_references": [reference()] * 17}, "input_references"),
    ({"input_references": [{"type": "image_url"}]}, "input_references[0].image_url"),
    ({"input_references": [reference("cat.png")]}, "input_references[0].image_url.url"),
    (
        {"input_references": [reference(), reference("data:image/png;base64,A")]},
        "input_references[1].image_url.url",
    ),
    ({"input_references": [reference()], "mask": reference("x")}, "mask.image_url.url"),
    ({"input_references": [reference()], "mask": reference(), "markup": reference()}, "markup"),
    ({"response_format": "png"}, "response_format"),
    ({"seed": 1.5}, "seed"),
    ({"user": "a\n"}, "user"),
    ({"stream": 1}, "stream"),
    ({"provider": {"options": {"acme": {"n": 9}}}}, "provider.options.acme.n"),
    ({"provider": {"options": {"acme": {"quality": "hd"}}}}, "provider.options.acme.quality"),
]


def test_null_false_and_empty_members_ask_for_nothing(site: Site) -> None:
    site.publish()
    empty = dict.fromkeys(
        (
            "n", "size", "resolution", "aspect_ratio", "quality", "output_format", "background",
            "output_compression", "input_references", "mask", "markup", "input_fidelity", "seed",
            "moderation", "style", "response_format", "complexity", "svg", "frame_count",
            "frame_duration_ms", "stream", "partial_images", "provider", "user",
            "safety_identifier", "session_id",
        )
    )  # fmt: skip
    for path in (ROUTER, GENERATIONS):
        answer = ask(site, path, **{**empty, "input_references": [], "stream": False, "user": ""})
        assert answer.status_code == 200
    for sent in site.dialled():
        assert sent.body == {"model": "sim-echo", "prompt": "a black cat"}


IMAGE = ("image", ("a.png", PNG))


WRONG_FORMS: Final[list[tuple[list[Any], dict[str, Any], str]]] = [
    ([], {}, "image"),
    ([("image", ("a.txt", b"no image", "image/png"))], {}, "image"),
    ([("image", ("a.png", b"", "image/png"))], {}, "image"),
    ([("image[]", ("a.png", PNG)), ("image[]", ("b.png", b"GIF7"))], {}, "image[1]"),
    ([IMAGE] * 17, {}, "image"),
    ([IMAGE, ("audio", ("a.wav", b"RIFF"))], {}, "audio"),
    ([IMAGE, *[("mask", ("a.png", PNG))] * 2], {}, "mask"),
    ([IMAGE], {"n": "0"}, "n"),
    ([IMAGE], {"n": "two"}, "n"),
    ([IMAGE], {"stream": "yes"}, "stream"),
    ([IMAGE], {"mask": DATA_URL}, "mask"),
    ([IMAGE], {"prompt": ["a", "b"]}, "prompt"),
    ([IMAGE], {"prompt": ""}, "prompt"),
    ([IMAGE], {"size": "huge"}, "size"),
]


def test_a_wrong_field_or_form_is_named_and_nothing_is_held(published: Site) -> None:
    with unchanged():
        for fields, name in draw_examples(WRONG_FIELDS):
            for path in (ROUTER, GENERATIONS):
                error = error_of(ask(published, path, **fields), 400)
                assert (fields, list(error["metadata"]["fields"])) == (fields, [name])
        for files, fields, name in WRONG_FORMS:
            # Without a file, the library would not send a form.
            files = files or [("quality", (None, "low"))]
            error = error_of(edit(published, *files, **fields), 400)
            assert (files, fields, list(error["metadata"]["fields"])) == (files, fields, [name])
        # Edits in JSON are sent to the other route.
        error = error_of(ask(published, EDITS, input_references=[reference()]), 400)
        assert "input_references of /images" in error["message"]
    published.assert_nothing_happened()


@pytest.mark.parametrize(("buffers", "status"), [(2, 429), (3, 200)])
def test_a_form_counts_with_the_base64_of_its_images(
    site: Site, settings: Any, buffers: int, status: int
) -> None:
    site.publish()
    picture = PNG + bytes(300_000)
    settings.ORGANIZATION_BUFFERED_BYTES = buffers * len(picture)
    assert edit(site, ("image", ("a.png", picture, "image/png"))).status_code == status


def test_the_end_users_name_never_leaves(site: Site) -> None:
    site.publish()
    assert ask(site, GENERATIONS, safety_identifier="alice", user="bob").status_code == 200
    [sent] = site.dialled()
    assert "safety_identifier" not in sent.body
    assert sent.body.get("user") not in ("alice", "bob")


@pytest.mark.parametrize("path", [ROUTER, GENERATIONS])
@pytest.mark.parametrize(
    "behaviour",
    ["sim-picture-more", "sim-picture-none", "sim-picture-broken", "sim-picture-number"],
)
def test_a_bad_answer_is_free_and_the_next_candidate_answers(
    site: Site, path: str, behaviour: str
) -> None:
    site.publish(behaviour, provider=site.another_provider("bad"))
    only = ask(site, path)
    assert only.status_code == 502
    row = site.settled()
    assert (row.status, row.cost_nano) == ("failed", 0)
    site.publish()
    answer = ask(site, path, provider={"order": ["bad", "acme"]})
    assert answer.status_code == 200
    assert answer.json()["provider"] == "Acme AI"
    assert_in_order()


def test_urls_instead_of_data_say_nothing_about_the_health_of_an_endpoint(site: Site) -> None:
    refused = site.publish("sim-picture-url")
    assert ask(site, ROUTER).status_code == 502
    other = site.publish("sim-picture-none", provider=site.another_provider("other"))
    assert ask(site, ROUTER, provider={"order": ["other"]}).status_code == 502
    # Workers share what they know once a second, the earlier outcome first.
    site.eventually(lambda: failures_of(other.pk) == 1)
    assert not failures_of(refused.pk)


def test_urls_pass_only_where_openais_interface_has_them(site: Site) -> None:
    site.publish("sim-picture-url")
    assert ask(site, ROUTER).status_code == 502
    assert ask(site, GENERATIONS, response_format="b64_json").status_code == 502
    for asked in ({}, {"response_format": "url"}):
        answer = ask(site, GENERATIONS, **asked)
        assert answer.status_code == 200
        assert answer.json()["data"] == [
            {"url": "https://pictures.example/1.png", "revised_prompt": "a cat"}
        ]
    refused = ask(site, ROUTER, response_format="url")
    assert refused.status_code == 400
    assert list(refused.json()["error"]["metadata"]["fields"]) == ["response_format"]


def test_an_endpoint_that_lists_the_format_is_asked_for_data(site: Site) -> None:
    site.publish(supported_parameters=["response_format", "size"])
    assert ask(site).status_code == 200
    [sent] = site.dialled()
    assert sent.body["response_format"] == "b64_json"


def test_a_data_url_is_the_image(site: Site) -> None:
    site.publish("sim-picture-data-url")
    [image] = ask(site).json()["data"]
    assert base64.b64decode(image["b64_json"]) == make_png(1024, 1024)
    assert image["media_type"] == "image/png"


def test_fewer_images_are_an_answer(site: Site) -> None:
    site.publish("sim-picture-fewer")
    answer = ask(site, n=3)
    assert answer.status_code == 200
    assert len(answer.json()["data"]) == 1


def test_a_field_without_effect_goes_around_or_is_refused_by_name(site: Site) -> None:
    listed = site.another_provider("listed")
    site.publish()
    refused = ask(site, seed=7)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("seed: ")
    site.publish(provider=listed, supported_parameters=["seed"])
    answer = ask(site, seed=7, provider={"order": ["acme", "listed"]})
    assert answer.json()["provider"] == "Listed"
    [sent] = site.dialled()
    assert sent.body["seed"] == 7


def test_a_model_without_images_is_not_asked(published: Site) -> None:
    for output in ("text", "embeddings", "video", "rerank"):
        published.produce(output)
        for path in (ROUTER, GENERATIONS):
            error = error_of(ask(published, path), 404)
            [excluded] = error["metadata"]["excluded"]
            assert (output, excluded["excluded_by"]) == (output, ["operation_not_supported"])
    assert published.dialled() == []


def test_an_image_that_the_balance_does_not_cover_is_refused(site: Site) -> None:
    # An image has no bound that a request could lower, so no such bound is sent either.
    site.publish(price=factories.make_price("0.000001", "0.1"))
    assert error_of(ask(site), 402)["metadata"]["affordable_max_tokens"] == 0
    site.assert_nothing_happened()


def test_a_workspace_may_name_the_model(site: Site) -> None:
    site.publish()
    body = {"prompt": "a cat"}
    missing = site.post(body, path=GENERATIONS)
    assert missing.status_code == 400
    assert list(missing.json()["error"]["metadata"]["fields"]) == ["model"]
    workspace = site.tenant.workspace
    workspace.default_image_model = site.model.slug
    workspace.save(update_fields=["default_image_model"])
    for path in (ROUTER, GENERATIONS):
        answer = site.post(body, path=path)
        assert answer.status_code == 200
        assert answer.json()["model"] == site.model.slug
