"""The ``dflash`` console script: run the typer application and turn what it raises into an exit code.

In: ``sys.argv``. Out: an exit code from ``docs/exit-codes.md``. Where typer cannot be imported, ``dflash doctor`` runs
without it. What happens to errors stands in ``envguard.cliutil``; no command lives here.
"""

from __future__ import annotations

from collections.abc import Sequence

from envguard.cliutil import run


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script; returns the exit code."""
    try:
        import typer
    except Exception as error:  # a half-removed package can raise anything while it is imported
        problem = f"{type(error).__name__}: {error}"
        return run("dflash", lambda rest: _fall_back(rest, problem), arguments)
    return run("dflash", _run_app, arguments, interrupts=(typer.Abort,))


def _run_app(arguments: list[str]) -> object:
    from dflash.cli.app import app

    return app(args=arguments, prog_name="dflash", standalone_mode=False)


def _fall_back(arguments: list[str], problem: str) -> int:
    from dflash.cli.fallback import run_without_typer

    return run_without_typer(arguments, problem)


if __name__ == "__main__":
    raise SystemExit(main())
