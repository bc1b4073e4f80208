"""Python imports this at start-up, so that children of tests are mutated, too."""

import os

if "MUTANTS_FOLDER" in os.environ:
    import maintenance.mutants.switch  # noqa: F401
