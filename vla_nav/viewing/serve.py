"""A page's folder over HTTP on the loopback interface, on request only.

127.0.0.1 alone; GET and HEAD of files below the folder; a request under another host name (a web
page that points its own name at 127.0.0.1) is refused.
"""

from __future__ import annotations

import errno
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from vla_nav.errors import UserError

HOST = "127.0.0.1"


class _Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self._is_local():
            super().do_GET()

    def do_HEAD(self) -> None:
        if self._is_local():
            super().do_HEAD()

    def list_directory(self, path: str | bytes) -> None:  # type: ignore[override]
        """No listings: the page names every file that it needs."""
        self.send_error(404)

    def translate_path(self, path: str) -> str:
        """A link that leads out of the folder, or a hidden file, is as good as missing."""
        found = Path(super().translate_path(path))
        root = Path(self.directory).resolve()
        inside = found.resolve()
        parts = inside.relative_to(root).parts if inside.is_relative_to(root) else (".",)
        return str(root / "missing" if any(part.startswith(".") for part in parts) else found)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def _is_local(self) -> bool:
        port = self.server.server_address[1]
        if self.headers.get("Host") in (f"{HOST}:{port}", f"localhost:{port}"):
            return True
        self.send_error(403)
        return False


def make_server(folder: Path, *, port: int = 0) -> ThreadingHTTPServer:
    """A server of `folder`, not yet running; port 0 takes a free one."""
    handler = partial(_Handler, directory=str(folder.resolve()))
    try:
        return ThreadingHTTPServer((HOST, port), handler)
    except (OSError, OverflowError) as error:
        is_taken = getattr(error, "errno", None) == errno.EADDRINUSE
        reason = "is in use" if is_taken else f"cannot be had ({error})"
        raise UserError(
            f"view.port={port}: {reason}; choose another, or 0 for a free one"
        ) from None


def serve(folder: Path, *, port: int = 0) -> None:
    """Serve until interrupted."""
    with make_server(folder, port=port) as server:
        print(f"http://{HOST}:{server.server_address[1]}/  (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
