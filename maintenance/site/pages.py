"""The service's pages as plain files: their addresses are relative, and their policy a line of the
page.
"""

from __future__ import annotations

import re
from pathlib import Path

from gpu_mem_calculator.web.addresses import PLAN
from gpu_mem_calculator.web.app import PAGES, STATIC
from gpu_mem_calculator.web.facts import FACT
from gpu_mem_calculator.web.observability import HEADERS

POLICY = "content-security-policy"
MAIN = re.compile(r"<main .*</main>", re.DOTALL)
PLANS_LINK = f'      <a href="/{PLAN}">Plan</a>\n'  # to what this page has no numpy for
NO_PLANS = """
    <p class="note">Plans need the service: this page without a server has no numpy. Start it with
    <code>gpu-mem-calc serve</code>, or use <code>gpu-mem-calc plan</code>.</p>"""
NO_SERVICE = """<main class="report page missing">
    <h1>API</h1>
    <p>These pages have no server: they calculate in your browser, and no program can ask them. For
    programs, start the service with <code>gpu-mem-calc serve</code>. Its page at <code>/docs</code>
    lists every address, as <a href="openapi.json">openapi.json</a> does. Its answers are the same,
    byte for byte.</p>
  </main>"""


def policy() -> str:
    """The service's policy, with what compiles Python's program; a line of a page has no say about
    frames.
    """
    rules = [rule for rule in HEADERS[POLICY].split("; ") if not rule.startswith("frame-ancestors")]
    return "; ".join([*rules, "script-src 'self' 'wasm-unsafe-eval'"])


def file_name(address: str) -> str:
    """What an address of the service is called here."""
    if address == "/":
        return "./"
    if address in PAGES:
        return str(PAGES[address])
    if address in FACT:
        return f"facts/{address.rsplit('/', 1)[1]}.json"
    if not address.startswith("/static/") and address != "/openapi.json":
        raise LookupError(f"{address} is linked, and no file of the page without a server")
    return address[1:]


def pages(documents: str = "") -> dict[str, str]:
    """Every page by the name of its file, with a link to the documents where there are some."""
    link = f'\n      <a href="{documents}/index.html">Documents</a>\n    </nav>'
    made = {
        name: _page(address, (STATIC / name).read_text("utf-8")) for address, name in PAGES.items()
    }
    if not documents:
        return made
    return {name: text.replace("\n    </nav>", link, 1) for name, text in made.items()}


def _page(address: str, text: str) -> str:
    if address == "/docs":
        text = (STATIC / "missing.html").read_text("utf-8").replace("Page not found", "API")
        text = MAIN.sub(lambda _: NO_SERVICE, text)
    text = text.replace(PLANS_LINK, "")
    if address == f"/{PLAN}":
        text = text.replace("</h1>", f"</h1>{NO_PLANS}", 1)
    calculates = " data-calculates" if address == "/" else ""
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy()}">\n  '
        f'<script src="bridge.js"{calculates}></script>\n  '
    )
    text = text.replace('<meta name="viewport"', f'{head}<meta name="viewport"', 1)
    return re.sub(r'(?<==")/[^"]*(?=")', lambda found: file_name(found[0]), text)


def static_files() -> dict[str, Path]:
    """Every static file by its name here."""
    return {
        f"static/{path.relative_to(STATIC).as_posix()}": path for path in STATIC.glob("*/*")
    } | {f"static/{path.name}": path for path in STATIC.glob("*.*") if path.suffix != ".html"}
