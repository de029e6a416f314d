"""One call beside another: what waits for other programs runs in a thread while this one goes on.

In: a call. Out: a function that waits for its result and returns it, or raises what it raised. ``concurrent.futures``
would do, and costs 8 ms of imports at each start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def beside(work: Callable[[], Result]) -> Callable[[], Result]:
    """Start ``work`` in a thread; call what is returned, once, for its result."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result() -> Result:
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    return result
