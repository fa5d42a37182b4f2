"""How hard random tests try: `make simulate TIMES=50` tries fifty times as many cases as `make test`."""

from __future__ import annotations

import os

TIMES = int(os.environ.get("STOKER_TEST_TIMES", "1"))
