"""`python -m samebits.cli`, for a source tree that is used without being installed."""

from samebits.cli import main

main()
