"""The ``dflash`` console script: run a command and turn what it raises into an exit code.

In: ``sys.argv``. Out: an exit code from ``docs/exit-codes.md``. ``doctor`` runs without typer, all other commands
through it. What happens to errors stands in ``envguard.cliutil``; no command lives here.
"""

from __future__ import annotations

from collections.abc import Sequence

from envguard.cliutil import run
from envguard.errors import CheckCrashed


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script; returns the exit code."""
    return run("dflash", _command, arguments)


def _command(arguments: list[str]) -> object:
    if arguments[:1] == ["doctor"]:
        from dflash.cli.doctor import run_doctor

        return run_doctor(arguments[1:])
    try:
        import typer
    except Exception as error:  # a half-removed package can raise anything while it is imported
        raise CheckCrashed(f"typer cannot be imported ({type(error).__name__}: {error}): run dflash doctor") from error

    from dflash.cli.app import app

    try:
        return app(args=arguments, prog_name="dflash", standalone_mode=False)
    except typer.Abort as abort:  # typer turns Ctrl-C and every EOFError of a command into this
        if isinstance(abort.__context__, EOFError):
            raise abort.__context__ from None
        raise KeyboardInterrupt from None


if __name__ == "__main__":
    raise SystemExit(main())
