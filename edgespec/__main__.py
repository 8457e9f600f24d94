"""``python -m edgespec``: the same as the command ``edgespec``."""

from edgespec.cli import main

if __name__ == "__main__":
    main()
