"""web.md shows every setting as it is."""

from __future__ import annotations

import runpy

from gpu_mem_calculator.tools.translation.arguments import tables
from gpu_mem_calculator.web import settings
from tests.conftest import ROOT


def test_the_settings_are_up_to_date() -> None:
    """`python docs/web.py` would change nothing."""
    made = runpy.run_path(str(ROOT / "docs" / "web.py"), run_name="web")["page"]()
    assert made == (ROOT / "docs" / "web.md").read_text("utf-8")


def test_every_setting_is_described() -> None:
    """No more and no fewer."""
    assert tables(settings.__file__).keys() == set(settings.ServiceSettings.__struct_fields__)
