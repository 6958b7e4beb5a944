"""A headless Chromium driven over WebDriver (https://www.w3.org/TR/webdriver2/) with the standard
library alone: Debian's packages chromium and chromium-driver are enough."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

KEYS = {
    "left": "\ue012",
    "up": "\ue013",
    "right": "\ue014",
    "down": "\ue015",
    "home": "\ue011",
    "end": "\ue010",
    "escape": "\ue00c",
}
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def why_missing() -> str | None:
    """What is missing for a browser test, or None."""
    names = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"needs {' and '.join(names)} (Debian: chromium, chromium-driver)" if names else None


class Browser:
    """One session. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._opener = build_opener(ProxyHandler({}))
        self._log = open(folder / "chromedriver.log", "w+")  # noqa: SIM115 - closed by `close`
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder), "HOME": str(folder)},
            start_new_session=True,
        )
        self._session = ""
        self._base = f"http://127.0.0.1:{self._port()}"
        arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--window-size=1400,1200",
            f"--user-data-dir={folder / 'profile'}",
        ]
        wanted = {
            "goog:chromeOptions": {"binary": shutil.which("chromium"), "args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        try:
            answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        except BaseException:
            self.close()
            raise
        self._session = f"/session/{answer['sessionId']}"

    def open(self, address: str) -> None:
        """Go to an address, by a blank page, so that another fragment loads the page anew."""
        self._command("POST", "/url", {"url": "about:blank"})
        self._command("POST", "/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a function body in the page."""
        return self._command("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script: str) -> Any:
        """Until an expression is true; its value."""
        deadline = time.monotonic() + 10
        while not (value := self.run(f"return {script}")):
            assert time.monotonic() < deadline, f"never true: {script}; log: {self.log()}"
            time.sleep(0.02)
        return value

    def press(self, key: str) -> None:
        """A key as a user presses it."""
        value = KEYS.get(key, key)
        actions = [{"type": kind, "value": value} for kind in ("keyDown", "keyUp")]
        body = {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}
        self._command("POST", "/actions", body)

    def click(self, selector: str) -> None:
        """A click as a user makes it."""
        found = self._command("POST", "/element", {"using": "css selector", "value": selector})
        self._command("POST", f"/element/{found[_ELEMENT]}/click", {})

    def text(self, selector: str) -> str:
        """The text content of the first match."""
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def log(self) -> list[str]:
        """What the console said since the last call."""
        return [line["message"] for line in self._command("POST", "/se/log", {"type": "browser"})]

    def picture(self, path: Path) -> None:
        """A screenshot."""
        path.write_bytes(base64.b64decode(self._command("GET", "/screenshot")))

    def close(self) -> None:
        """End browser and driver."""
        if self._session:
            self._command("DELETE", "")
        self._driver.terminate()
        self._driver.wait()
        self._log.close()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _port(self) -> int:
        deadline = time.monotonic() + 20
        while True:
            said = Path(self._log.name).read_text()
            if found := re.search(r"on port (\d+)\.", said):
                return int(found[1])
            assert time.monotonic() < deadline, said
            assert self._driver.poll() is None, said
            time.sleep(0.05)

    def _command(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._call(method, f"{self._session}{path}", body)

    def _call(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self._base}{path}", data, method=method)
        with self._opener.open(request, timeout=60) as answer:
            return json.load(answer)["value"]
