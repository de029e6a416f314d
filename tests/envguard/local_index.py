"""A package index on the loopback interface: static pages of PEP 503, served from a directory.

In: wheels put into it with ``publish``. Out: a URL for uv while the ``with`` block lasts. One server holds several
indexes, as the builds of torch have; nothing outside this machine is reached.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote


@dataclass(frozen=True, kw_only=True)
class LocalIndex:
    """One running server."""

    directory: Path
    url: str

    def index_url(self, name: str) -> str:
        """The root of the index called ``name``."""
        return f"{self.url}/{name}/"


def publish(directory: Path, index: str, wheel: Path) -> None:
    """Put ``wheel`` into an index and write its page anew."""
    name = re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()
    page = directory / index / name
    page.mkdir(parents=True, exist_ok=True)
    (page / wheel.name).write_bytes(wheel.read_bytes())
    links = [
        f'<a href="{quote(each.name)}#sha256={hashlib.sha256(each.read_bytes()).hexdigest()}">{each.name}</a><br>'
        for each in sorted(page.glob("*.whl"))
    ]
    (page / "index.html").write_text("<!DOCTYPE html><html><body>" + "\n".join(links) + "</body></html>")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serve(directory: Path) -> Iterator[LocalIndex]:
    """Serve ``directory`` until the block ends; then the port answers no more."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(directory)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield LocalIndex(directory=directory, url=f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
