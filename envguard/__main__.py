"""``python -m envguard``: the same as the console script."""

from envguard.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
