"""Writes what web.md shows: the table of settings, and the picture of the page.

python docs/web.py             the table
python docs/web.py --picture   also page.png, from a real browser (Chromium and Playwright)
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from gpu_mem_calculator.tools.translation.arguments import tables
from gpu_mem_calculator.web import settings
from gpu_mem_calculator.web.settings import PREFIX, ServiceSettings

WORDS = tables(settings.__file__)
PAGE = Path(__file__).with_name("web.md")
PICTURE = Path(__file__).with_name("page.png")
PORT = 8765


def table() -> str:
    """Each setting, its default, what it is."""
    plain = msgspec.to_builtins(ServiceSettings())
    rows = ["| variable | default | |", "|---|---|---|"]
    for name, value in plain.items():
        shown = ",".join(value) if isinstance(value, list) else str(value).lower()
        default = f"`{shown}`" if shown else ""
        rows.append(f"| `{PREFIX}{name.upper()}` | {default} | {WORDS[name]} |")
    return "\n".join(rows)


def page() -> str:
    """web.md as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    made = f"<!-- settings -->\n{table()}\n<!-- end -->"
    return re.sub(r"<!-- settings -->.*?<!-- end -->", lambda _: made, text, flags=re.DOTALL)


def picture() -> None:
    """The page as it opens."""
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "gpu_mem_calculator", "serve", "--port", str(PORT)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(8)
        with sync_playwright() as play:
            browser = play.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            shown = browser.new_page(viewport={"width": 1440, "height": 900})
            shown.goto(f"http://127.0.0.1:{PORT}/")
            shown.wait_for_timeout(4000)
            shown.screenshot(path=PICTURE)
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    if "--picture" in sys.argv:
        picture()
