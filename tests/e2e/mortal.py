"""`leasekeeper`, killed by itself at a step: `python -m tests.e2e.mortal STEP worker …`."""

import sys

from leasekeeper.__main__ import main
from tests.snapshots.killed import die_at

if __name__ == "__main__":
    die_at(sys.argv.pop(1))
    main()
