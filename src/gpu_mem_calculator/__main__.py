"""`python -m gpu_mem_calculator` is the command line."""

from .cli.main import main

raise SystemExit(main())
