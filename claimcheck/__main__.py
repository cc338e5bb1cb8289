"""``python -m claimcheck`` is ``claimcheck``."""

from claimcheck.cli import main

main()
