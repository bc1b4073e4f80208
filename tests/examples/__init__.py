"""Tests of `examples/`, whose folders are flat: their files import each other by plain name."""

import sys
from pathlib import Path

GPTLITE = Path(__file__).parents[2] / "examples" / "gptlite"
sys.path.insert(0, str(GPTLITE))
