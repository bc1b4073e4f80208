"""The page without a server: plain files in a sub-folder, and Python in the browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from gpu_mem_calculator.web.observability import HEADERS
from gpu_mem_calculator.web.settings import ServiceSettings
from maintenance.site.packages import MSGSPEC
from maintenance.site.pages import POLICY, policy
from tests.browser.chrome import Visit
from tests.conftest import ROOT
from tests.golden.stored_runs import drawn_runs
from tests.services import running

from .conftest import SUB_FOLDER, WAIT, Files

# `quick llama3.1-8b --qlora --gpu 4090`
QLORA = (
    "/#train?model.name=llama3.1-8b&training.precision=bf16_pure&training.autocast=true"
    "&training.optimizer=paged_adamw_8bit&training.activation_checkpointing=full"
    "&training.lora.r=16&training.lora.target_modules=all-linear&training.quantization=nf4"
    "&training.double_quant=true&training.upcast_unquantized=true"
    "&hardware.gpu=4090&hardware.num_gpus=1"
)
MOST_BYTES = 12_000_000  # that opening the page loads from a server that compresses nothing
SETTLED = """() => document.querySelector(".verdict .says")
  && !document.querySelector("#result.empty, .pending, .numbers .old")"""
CONTROLLED = "navigator.serviceWorker.controller?.state === 'activated'"
ASK = """async ([path, body]) => {
  const answer = await fetch(path, {method: "POST", body});
  return [answer.status, await answer.text()];
}"""
FORGET_FILES = """caches.keys().then(names => Promise.all(
  names.filter(name => name.endsWith(" files")).map(name => caches.delete(name))))"""
FORGET_ANSWERS = """caches.keys().then(names => Promise.all(
  names.filter(name => !name.endsWith(" files")).map(name => caches.delete(name))))"""


@pytest.fixture
def visit(browser: Browser, site: str) -> Iterator[Visit]:
    """A visit of someone who was never here, which does nothing odd."""
    context = browser.new_context()
    context.set_default_timeout(WAIT)
    made = Visit(context.new_page(), site)
    made.note()
    yield made
    context.close()
    assert not made.strangers, "the page asked for something that is not its own"
    assert not made.errors


def open_page(visit: Visit, path: str) -> Page:
    """The page with its verdict."""
    visit.open(path, settled=False)
    visit.page.wait_for_function(SETTLED, polling=100)
    return visit.page


def test_a_link_is_answered_from_plain_files_and_again_without_a_network(
    visit: Visit, server: ThreadingHTTPServer
) -> None:
    """In a sub-folder; what was loaded is kept, and new questions are answered, too."""
    page = open_page(visit, QLORA)
    expect(page.locator(".verdict")).to_contain_text("needs 18.3 of 23.5 GiB per GPU")
    expect(page.locator(".verdict .says")).to_contain_text("fits")
    page.wait_for_function(CONTROLLED, polling=100)
    assert 5_000_000 < Files.sent < MOST_BYTES
    page.evaluate(FORGET_ANSWERS)

    server.shutdown()
    server.server_close()
    page.reload()
    page.wait_for_function(SETTLED, polling=100)
    expect(page.locator(".verdict")).to_contain_text("needs 18.3 of 23.5 GiB per GPU")
    expect(page.locator("#loading")).to_have_count(0)
    page.goto(visit.address + QLORA.replace("4090", "t4"))
    expect(page.locator(".verdict .says")).to_contain_text("does not fit")
    page.goto(f"{visit.address}/accuracy.html")
    expect(page.locator("#runs > *").first).to_be_visible()


@pytest.mark.proof
def test_a_known_link_is_drawn_before_python_has_started(visit: Visit) -> None:
    """What was answered once is kept."""
    page = open_page(visit, QLORA)
    page.wait_for_function(CONTROLLED, polling=100)
    page.route(re.compile("calculator.tar.gz"), lambda route: None)  # Python never starts
    page.evaluate(
        "caches.keys().then(names => caches.delete(names.find(n => n.endsWith(' files'))))"
    )
    page.reload()
    page.wait_for_function(SETTLED, polling=100)
    expect(page.locator("#loading")).to_contain_text("Loading the calculator")


@pytest.mark.parametrize(
    "part", [slice(0, 8), pytest.param(slice(8, 60), marks=pytest.mark.proof)], ids=["8", "60"]
)
def test_answers_are_the_service_s_to_the_byte(visit: Visit, part: slice) -> None:
    """Random set-ups, each with everything that the page shows of it; and what is not a run."""
    visit.open("/accuracy.html", settled=False)
    asked = [("/api/look?width=1000&replay=true", run) for run in drawn_runs(60)[part]]
    asked += [
        ("/api/look?width=10", {}),
        ("/api/look?colour=red", {}),
        ("/api/room", {"model": {"name": "owner/never-heard-of"}}),
        ("/api/import", {"text": "vllm serve Qwen/Qwen2.5-7B --max-model-len 8192"}),
        ("/api/diagnose", {"text": "torch.OutOfMemoryError: CUDA out of memory."}),
        ("/api/export/yaml", {"model": {"name": "gpt2"}, "training": {"batch_size": 2}}),
    ]
    with running(ServiceSettings(log_level="error", slow_seconds=300)) as service:
        for path, run in asked:
            body = json.dumps(run)
            answer = httpx.post(service + path, content=body, timeout=300)
            assert visit.page.evaluate(ASK, [path, body]) == [answer.status_code, answer.text], run


def test_no_link_leads_to_what_needs_a_server(visit: Visit) -> None:
    """Neither in the head of a page nor above the picture."""
    for path in ("/", "/accuracy.html", "/docs.html"):
        page = visit.open(path, settled=False)
        expect(page.get_by_role("link", name="Accuracy").first).to_be_visible()
        expect(page.get_by_role("link", name="Plan", exact=True)).to_have_count(0)


def test_what_needs_a_server_says_so(visit: Visit) -> None:
    """A plan needs numpy, and a program needs an address."""
    page = visit.open("/plan.html", settled=False)
    expect(page.locator("main")).to_contain_text("Plans need the service")
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.locator("#problems")).to_contain_text("gpu-mem-calc serve")
    page = visit.open("/docs.html", settled=False)
    expect(page.locator("main")).to_contain_text("no program can ask them")


@pytest.mark.proof
def test_a_picture_is_saved(visit: Visit) -> None:
    """Its address is an image's, which the page itself calculates."""
    page = open_page(visit, QLORA)
    page.wait_for_function(CONTROLLED, polling=100)
    page.get_by_role("button", name="Save").click()
    with page.expect_download() as waiting:
        page.get_by_role("menuitem", name="Picture, PNG").click()
    assert Path(waiting.value.path()).read_bytes().startswith(b"\x89PNG")
    assert [urlsplit(one).path for one in visit.strangers] == ["/api/picture.svg"]
    visit.strangers.clear()  # it was answered without the server, which has no such file


def test_every_address_is_a_file_beside_the_page(built: Path) -> None:
    """Links, styles and scripts are relative, and there."""
    folder = built / SUB_FOLDER
    for page in folder.glob("*.html"):
        text = page.read_text("utf-8")
        assert f'content="{policy()}"' in text
        for address in re.findall(r'(?:href|src)="([^"#]+)', text):
            assert not address.startswith(("/", "http")), (page.name, address)
            assert (folder / address.removeprefix("./")).exists(), (page.name, address)


def test_the_policy_is_the_service_s_and_the_service_compiles_no_program() -> None:
    """Only the page without a server may compile Python's program."""
    rules = HEADERS[POLICY].split("; ")
    here = policy().split("; ")
    assert set(here) - set(rules) == {"script-src 'self' 'wasm-unsafe-eval'"}
    assert set(rules) - set(here) == {"frame-ancestors 'none'"}


def test_msgspec_is_the_version_that_is_tested() -> None:
    """The wheel for the browser is of the version that everything else is tested with."""
    assert MSGSPEC in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
