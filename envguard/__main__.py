"""``python -m envguard``: the same as the console script."""

from envguard.cli import console

if __name__ == "__main__":
    console()
