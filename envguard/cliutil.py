"""What every command line of the project does around its commands: errors, exit codes, ``--debug``, closed pipes.

In: a callable that takes the arguments. Out: an exit code; a person gets one line on stderr a problem, never a
traceback unless ``--debug`` stands on the line or ``<PROGRAM>_DEBUG`` is set. It knows typer's errors only by their
shape, since envguard imports nothing but the standard library and ``packaging``.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Protocol, TextIO, runtime_checkable

from envguard.errors import CRASHED, FINDINGS, INTERRUPTED, OK, USAGE, ToolError

CLOSED_PIPE = 141
"""128 + SIGPIPE: what a shell reports for a program whose reader went away."""

OS_ADVICE = {
    errno.ENOSPC: "free some space, or choose another place",
    errno.EDQUOT: "free some space, or choose another place",
    errno.EROFS: "choose another place",
    errno.EACCES: "choose another place, or change its permissions",
    errno.EPERM: "choose another place, or change its permissions",
}
"""What helps against an ``OSError``, by its number."""

OWN_PACKAGES = ("dflash", "envguard", "cache_tools")


@runtime_checkable
class _CommandLineError(Protocol):
    """A usage error of click or typer, whichever of their versions is installed."""

    exit_code: int

    def format_message(self) -> str: ...


def run(program: str, command: Callable[[list[str]], object], arguments: Sequence[str] | None = None) -> int:
    """Call ``command`` with the arguments (``sys.argv`` by default) and return the exit code.

    An int that ``command`` returns is the code, anything else is 0. ``SystemExit`` passes through, unless it is what
    typer makes of a reader that has gone.
    """
    code = _run(program, command, arguments)
    atexit.register(_ending_with, code)
    return code


def _run(program: str, command: Callable[[list[str]], object], arguments: Sequence[str] | None) -> int:
    _open_closed_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug, rest = split_debug(given)
    debug = debug or bool(os.environ.get(f"{program.upper().replace('-', '_')}_DEBUG"))
    try:
        with _interrupts:
            result = command(rest)
            sys.stdout.flush()
        if result == INTERRUPTED:  # typer turns Ctrl-C into this code, without a word
            return _interrupted()
        return result if isinstance(result, int) else OK
    except BrokenPipeError:
        return _closed_pipe()
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):
            return _closed_pipe()
        raise
    except KeyboardInterrupt:
        return _interrupted()
    except Exception as error:
        if debug:
            import traceback

            traceback.print_exc()
        return _explain(program, error)


class _Interrupts:
    """Ctrl-C counts also where somebody swallowed its ``KeyboardInterrupt`` or made another error of it."""

    def __init__(self) -> None:
        self.asked = False

    def _on_signal(self, _number: int, _frame: object) -> None:
        self.asked = True
        raise KeyboardInterrupt

    def __enter__(self) -> None:
        self.asked = False
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            with contextlib.suppress(ValueError):  # not the main thread, which alone gets signals
                signal.signal(signal.SIGINT, self._on_signal)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if signal.getsignal(signal.SIGINT) == self._on_signal:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self.asked and (kind is None or issubclass(kind, Exception)):
            raise KeyboardInterrupt


_interrupts = _Interrupts()


def _interrupted() -> int:
    """Say so; a second Ctrl-C, or the first one sent twice by a launcher, ends the process without a traceback."""
    with contextlib.suppress(ValueError):  # not the main thread, which alone gets signals
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    say("interrupted")
    return INTERRUPTED


def _ending_with(code: int) -> None:
    """Packages take seconds at exit: a signal that comes meanwhile ends the process as it was to end."""

    def on_signal(_number: int, _frame: object) -> None:
        os._exit(code)

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            signal.signal(number, on_signal)


def split_debug(arguments: Sequence[str]) -> tuple[bool, list[str]]:
    """Whether ``--debug`` stands before any ``--``, and the arguments without it."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    head = [each for each in arguments[:end] if each != "--debug"]
    return len(head) < end, head + list(arguments[end:])


def say(line: str) -> None:
    """One line of talk on stderr; where it cannot be written, the work and the exit code still count."""
    if sys.stderr is None:  # print would take stdout instead
        return
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:  # full, or its reader is gone: there is nobody to tell
        discard(sys.stderr)


def write_out(text: str) -> None:
    """Write data to stdout; where the reader has gone, end quietly with 141.

    Raises:
        SystemExit: the reader has gone. (Not BrokenPipeError: typer would turn it into a failure of the command.)
    """
    encoding = sys.stdout.encoding or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)  # names of files can be any bytes
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise SystemExit(_closed_pipe()) from None


def _explain(program: str, error: Exception) -> int:
    if isinstance(error, ToolError):
        for line in str(error).splitlines():
            say(f"error: {line}")
        return error.exit_code
    if isinstance(error, _CommandLineError):
        message = error.format_message()
        is_help = message.startswith("Usage:")  # a group called without a command
        say(message if is_help else f"error: {message.rstrip('.')}; see {_command_path(program, error)} --help")
        return USAGE
    if isinstance(error, OSError) and error.errno is not None:
        say(f"error: {describe_os_error(error)}")
        return FINDINGS
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "start new thread" in str(error)):
        say("error: this process gets no more memory or threads: see ulimit -v and -u, and the limits of its container")
        return FINDINGS
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] not in OWN_PACKAGES:
        say(f"error: a package cannot be imported ({error}): the environment has drifted, run envguard doctor")
        return CRASHED
    advice = "run envguard doctor, and if it finds nothing, repeat with --debug and report the traceback"
    say(f"error: a bug in {program} ({type(error).__name__}: {error}): {advice}")
    return CRASHED


def describe_os_error(error: OSError) -> str:
    """One line for what the system refused: the place, its words, what to do."""
    place = error.filename or error.filename2
    if not place and error.errno == errno.ENOENT:  # what os.getcwd raises
        return "the current directory has been deleted; change into another one"
    where = f"{place}: " if place else ""
    advice = OS_ADVICE.get(error.errno or 0, "choose another place")
    return f"{where}{(error.strerror or type(error).__name__).lower()}; {advice}"


def _command_path(program: str, error: object) -> str:
    return str(getattr(getattr(error, "ctx", None), "command_path", program))


def _open_closed_streams() -> None:
    """Give a stream that the caller closed (``>&-``) a place: else its number goes to the next file that is opened."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - as long as the process lives


def _closed_pipe() -> int:
    discard(sys.stdout)
    return CLOSED_PIPE


def discard(stream: TextIO) -> None:
    """Give ``stream``, which the interpreter flushes once more at exit, somewhere to write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
