"""`python -m lifecycle.cli` is `stoker`."""

import sys

from lifecycle.cli import main

sys.exit(main())
