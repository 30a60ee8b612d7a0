"""The command `autobwd`, also as `python -m autobwd`."""

import signal
import sys

from autobwd._autobwd import command


def main() -> None:
    # Python would only note an interrupt while the command runs.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(command(["autobwd", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
