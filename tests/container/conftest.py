"""What `deploy/` has beside the chart can be imported here, as its scripts import each other."""

from __future__ import annotations

import sys

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "deploy"))
