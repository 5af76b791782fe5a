"""The text of PDF files takes their place in a request; what cannot be read is refused by place."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from catalog.dialects.base import Operation
from catalog.tokens import Medium
from config.api.errors import InvalidRequest, Unavailable
from inference.documents import parts, reading
from inference.documents.parts import bound_scratch, read_files
from inference.requests import parsing
from inference.requests.messages.native import parse_message
from inference.requests.parsing import InferenceRequest
from inference.requests.responses.request import to_chat
from tests.support.inference.pdf_files import (
    CIRCLE,
    PLUGIN,
    document_part,
    encode,
    file_part,
    find_readers,
    make_bomb,
    make_locked,
    make_paper,
    make_pdf,
    make_slow,
    stream,
    words,
)

PLACE = "messages[0].content[1].file"
WORDS = {"type": "text", "text": "What is this?"}
# Ten thousand characters of a page.
WORDY = b"BT /F1 12 Tf 72 720 Td (%s) Tj ET" % (b"word " * 2_000)


def parse(*content: Any, plugin: Any = PLUGIN, **fields: Any) -> InferenceRequest:
    messages = [{"role": "user", "content": [*content]}]
    body = {"model": "a/b", "messages": messages, "plugins": [plugin], **fields}
    return parsing.parse(Operation.CHAT, json.dumps(body).encode())


def contents(request: InferenceRequest) -> list[Any]:
    messages = json.loads(bytes(request.fields["messages"]))
    return [message["content"] for message in messages]


def read(*content: Any, **fields: Any) -> list[Any]:
    [parts] = contents(read_files(parse(*content, **fields)))
    return parts


def refuse(part: Any) -> dict[str, str]:
    with pytest.raises(InvalidRequest) as caught:
        read(WORDS, part)
    return caught.value.metadata["fields"]


def test_the_text_stands_where_the_file_was() -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    found = read(WORDS, file_part(make_paper("Hello PDF", "", "third"), **cached), WORDS)
    pages = "### Page 1\nHello PDF\n\n### Page 2\n\n\n### Page 3\nthird\n"
    text = f'<file name="paper.pdf">\n{pages}</file>'
    assert found == [WORDS, {"type": "text", "text": text, **cached}, WORDS]


@pytest.mark.parametrize(
    "file",
    [make_pdf(*[stream(WORDY, is_packed=True)] * 400), make_paper("short") + b"\n" * 4_000_000],
    ids=["text", "file"],
)
def test_reading_takes_what_it_counts(file: bytes) -> None:
    request = parse(file_part(file))
    tracemalloc.start()
    try:
        read = read_files(request)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert read is not request
    assert peak <= bound_scratch(request)


@pytest.mark.parametrize("mark", ["</file>", "</ FILE >", "< /file", '<file name="b.pdf">'])
def test_no_text_leaves_the_mark_of_its_file(mark: str) -> None:
    [part] = read(file_part(make_paper(f"a {mark} b")))
    begin, inner, end = part["text"].partition(f"a &lt;{mark[1:]} b")
    assert inner
    assert (begin.count("<"), end.count("<")) == (1, 1)


def test_a_mark_of_anything_else_stays() -> None:
    [part] = read(file_part(make_paper("<files> <b> 1 < 2")))
    assert "<files> <b> 1 < 2" in part["text"]


def test_the_request_is_measured_with_the_text() -> None:
    before = parse(WORDS, file_part(make_paper("x" * 50)))
    assert (before.inputs, before.media) == ({"file"}, (Medium("file", 1),))
    after = read_files(before)
    text = contents(after)[0][1]
    same = parse(WORDS, text)
    for name in ("inputs", "images", "media", "least_tokens", "max_tokens", "choices"):
        assert getattr(after, name) == getattr(same, name)
    # The names of the model and the plugin are no part of the prompt, nor are spaces of the JSON.
    assert 0 <= same.prompt_bound - after.prompt_bound < 64
    assert after.prompt_bound >= len(text["text"])


def test_options_of_providers_stay_bounded() -> None:
    options = {"provider": {"options": {"acme": {"note": "x" * 5_000}}}}
    with_options = read_files(parse(file_part(make_paper("Hi")), **options))
    without = read_files(parse(file_part(make_paper("Hi"))))
    assert with_options.preferences.options
    assert with_options.prompt_bound - without.prompt_bound >= 5_000


@pytest.mark.parametrize("engine", ["cloudflare-ai", "pdf-text"])
def test_both_names_of_the_engine_read_text(engine: str) -> None:
    plugin = {"id": "file-parser", "pdf": {"engine": engine}}
    [part] = read(file_part(make_paper("Hi")), plugin=plugin)
    assert "Hi" in part["text"]


@pytest.mark.parametrize(
    "plugin", [{"id": "file-parser", "pdf": {"engine": "native"}}, {**PLUGIN, "enabled": False}]
)
def test_without_the_engine_the_file_travels(plugin: Any) -> None:
    part = file_part(make_paper("Hi"))
    request = parse(part, plugin=plugin)
    assert (request.reads_pdfs, request.inputs) == (False, {"file"})
    assert contents(request) == [[part]]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (encode(make_paper("Hi"), "APPLICATION/PDF"), "Hi"),
        (encode(make_paper("Hi"), "application/pdf;name=a.pdf"), "Hi"),
        (encode(make_paper("Hi"), "application/octet-stream"), "Hi"),
        (encode(make_paper("Hi"), ""), "Hi"),
        (base64.b64encode(make_paper("Hi")).decode(), "Hi"),
        (encode(make_locked("", "open")), "open"),
        (encode(make_paper("a\\000b\\000c\x7f")), "abc"),
    ],
)
def test_a_pdf_is_known_by_its_type_or_its_first_bytes(url: str, shown: str) -> None:
    [part] = read(file_part(url))
    assert f"### Page 1\n{shown}\n" in part["text"]


def test_a_file_of_another_kind_is_left_to_the_model() -> None:
    sheet = file_part(encode(b"a;b", "text/csv"), "a.csv")
    found = read(sheet, file_part(make_paper("Hi")))
    assert found[0] == sheet
    assert found[1]["type"] == "text"
    request = parse(sheet)
    assert read_files(request) is request


def test_files_of_several_messages_are_read() -> None:
    paper = file_part(make_paper("one"))
    messages = [
        {"role": "user", "content": [paper]},
        {"role": "assistant", "content": None},
        {"role": "tool", "tool_call_id": "1", "content": [paper]},
        {"role": "user", "content": "Hi"},
    ]
    request = parse(messages=messages)
    first, second, third, fourth = contents(read_files(request))
    assert first == third
    assert (second, fourth) == (None, "Hi")
    assert "one" in first[0]["text"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (None, "document.pdf"),
        ("", "document.pdf"),
        ('a">\n</x', "a____/x"),
        ("x" * 300, "x" * 255),
        ("Müller.pdf", "Müller.pdf"),
    ],
)
def test_the_name_of_a_file_cannot_end_its_mark(name: str | None, shown: str) -> None:
    [part] = read(file_part(make_paper("Hi"), name))
    assert part["text"].startswith(f'<file name="{shown}">\n### Page 1\n')


@pytest.mark.parametrize(
    ("pdf", "problem"),
    [
        (make_locked("password"), "encrypted"),
        (b"%PDF-1.4 nonsense" * 100, "broken"),
        (make_paper("x" * 2_000)[:300], "broken"),
        (b"%PDF-", "broken"),
        (CIRCLE, "broken"),
        (make_pdf(*[words("x")] * 10_000), "pages"),
        (make_paper("", " "), "empty"),
        (make_paper("\\000\\000"), "empty"),
        (make_bomb(), "memory"),
    ],
    ids=["locked", "nonsense", "cut", "short", "circle", "long", "blank", "nothing", "bomb"],
)
def test_what_cannot_be_read_is_refused_by_its_place(pdf: bytes, problem: str) -> None:
    assert refuse(file_part(pdf)) == {PLACE: f"{reading.PROBLEMS[problem]} (File: paper.pdf)"}


@pytest.mark.parametrize(
    ("file", "field"),
    [
        ({"file_data": "https://papers.example/a.pdf"}, "file_data"),
        ({"file_data": "http://169.254.169.254/latest"}, "file_data"),
        ({"file_data": "data:application/pdf,%25PDF-1.4"}, "file_data"),
        ({"file_data": "data:application/pdf"}, "file_data"),
        ({"file_data": "data:application/pdf;base64,!!!!"}, "file_data"),
        ({"file_data": "data:application/pdf;base64,QUJD"}, "file_data"),
        ({"file_data": "data:application/pdf;base64,\u00e9"}, "file_data"),
        ({"file_data": ""}, "file_data"),
        ({"filename": "a.pdf"}, "file_data"),
        ({"file_id": "file-1"}, "file_id"),
        ({"file_data": 7}, "file_data"),
    ],
)
def test_a_file_that_is_not_here_is_refused(file: Any, field: str) -> None:
    assert list(refuse({"type": "file", "file": file})) == [f"{PLACE}.{field}"]


@pytest.mark.parametrize("part", [{"type": "file"}, {"type": "file", "file": None}])
def test_a_part_without_a_file_is_refused(part: Any) -> None:
    assert list(refuse(part)) == [PLACE]


def find_problem(*files: bytes) -> tuple[int, str]:
    """Returns the index of the file that cannot be read, and why."""
    with pytest.raises(reading.UnreadablePdf) as caught:
        reading.read_pdfs([*files])
    return caught.value.index, caught.value.problem


def test_pages_are_counted_over_all_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_PAGES", 3)
    assert len(reading.read_pdfs([make_paper("1", "2"), make_paper("3")])) == 2
    assert find_problem(make_paper("1", "2"), make_paper("3", "4")) == (1, "pages")


def test_text_is_counted_over_all_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_TEXT_BYTES", 6)
    assert reading.read_pdfs([make_paper("abc"), make_paper("de")]) == [["abc"], ["de"]]
    assert reading.read_pdfs([make_paper("abc"), make_paper("def")]) == [["abc"], ["def"]]
    assert find_problem(make_paper("abc"), make_paper("defg")) == (1, "text")


def test_files_are_counted() -> None:
    papers = [file_part(make_paper("x"))] * 33
    assert len(read(*papers[:32])) == 32
    with pytest.raises(InvalidRequest) as caught:
        read(*papers)
    assert list(caught.value.metadata["fields"]) == ["messages[0].content[32].file"]


def test_the_kernel_ends_a_file_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CPU_SECONDS", 1)
    assert find_problem(make_paper("quick"), make_slow()) == (1, "time")


def test_the_worker_ends_a_file_that_takes_too_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "stuck.py"
    program.write_text("import time; print('{\"ready\": true}', flush=True); time.sleep(600)")
    monkeypatch.setattr(reading, "_COMMAND", (*reading._COMMAND[:3], str(program)))
    monkeypatch.setattr(reading, "_SECONDS", 0.5)
    # More than a pipe takes, to a program that reads nothing.
    _, problem = find_problem(bytes(1 << 20))
    assert problem == "time"


@pytest.mark.parametrize("command", [("/nowhere",), ("/bin/false",)])
def test_a_program_that_does_not_run_blames_no_file(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_COMMAND", command)
    with pytest.raises(Unavailable) as caught:
        reading.read_pdfs([make_paper("x")])
    assert caught.value.headers["Retry-After"] == "1"


def test_the_process_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAUSEWAY_SECRET_OF_THE_TEST", "x")
    monkeypatch.setattr(reading, "CPU_SECONDS", 2)
    problems: list[str] = []
    thread = threading.Thread(target=lambda: problems.append(find_problem(make_slow())[1]))
    thread.start()
    looks = 0
    while thread.is_alive():
        for folder in find_readers():
            with contextlib.suppress(OSError):
                # Before the program runs, the process is still a copy of this one.
                opened = [os.readlink(each) for each in (folder / "fd").iterdir()]
                looks += 1
                assert (folder / "environ").read_bytes() == b""
                assert not any("socket" in name for name in opened)
        time.sleep(0.05)
    thread.join()
    assert problems == ["time"]
    assert looks
    assert find_readers() == []


def test_files_of_responses_and_messages_are_read() -> None:
    url = encode(make_paper("Hello PDF"))
    part = {"type": "input_file", "filename": "a.pdf", "file_data": url}
    body = {"model": "a/b", "input": [{"role": "user", "content": [part]}], "plugins": [PLUGIN]}
    chat = to_chat(json.dumps(body).encode()).chat
    [[found]] = contents(read_files(parsing.parse(Operation.CHAT, chat, is_checked=True)))
    assert found["text"].startswith('<file name="a.pdf">\n### Page 1\nHello PDF')
    block = document_part(make_paper("Hello PDF"), title="b.pdf")
    messages = [{"role": "user", "content": [block]}]
    body = {"model": "a/b", "max_tokens": 9, "messages": messages, "plugins": [PLUGIN]}
    request = parse_message(json.dumps(body).encode())
    # The file itself must not travel beside its text.
    assert request.native is None
    [[found]] = contents(read_files(request))
    assert found["text"].startswith('<file name="b.pdf">\n### Page 1\nHello PDF')


def test_the_place_of_a_file_has_its_index() -> None:
    assert str(parts._Place(3, 4)) == "messages[3].content[4].file"
