"""A headless Chromium, driven over its debugging protocol: for tests of the report, and for screenshots.

python -m tests.compare.browser report.html shot.png --width 390 --dark
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def program() -> str | None:
    """Return the Chromium of this machine; ``CLAIMCHECK_TEST_CHROMIUM`` names another one."""
    given = os.environ.get("CLAIMCHECK_TEST_CHROMIUM")
    return given or next((found for found in map(shutil.which, PROGRAMS) if found), None)


class Page:
    """One tab."""

    def __init__(self, commands: Any, answers: Any) -> None:
        self._commands, self._answers, self._number = commands, answers, 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self._call(f"{domain}.enable")

    def open(self, path: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a file, and wait until it is complete."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self._call("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._read()

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript; waits for a promise."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def requests(self) -> list[str]:
        """Return the addresses that the page has requested."""
        return [
            event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """Return what the browser logged: errors, and violations of the page's own policy."""
        logged = [each["params"]["entry"]["text"] for each in self.events if each["method"] == "Log.entryAdded"]
        return logged + [str(each["params"]) for each in self.events if each["method"] == "Runtime.exceptionThrown"]

    def screenshot(self, path: Path) -> None:
        """Write the whole page as PNG."""
        data = self._call("Page.captureScreenshot", captureBeyondViewport=True, format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        data = bytearray()
        while not data.endswith(b"\0"):
            byte = self._answers.read(1)
            assert byte, "the browser has ended"
            data += byte
        message: dict[str, Any] = json.loads(data[:-1])
        if "method" in message:
            self.events.append(message)
        return message


@contextmanager
def browser() -> Iterator[Page]:
    """Start a browser with an empty profile and a tab; it reads commands from descriptor 3 and answers on 4."""
    command_read, command_write = os.pipe()
    answer_read, answer_write = os.pipe()
    with tempfile.TemporaryDirectory(prefix="claimcheck-chromium-", ignore_cleanup_errors=True) as profile:
        options = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --remote-debugging-pipe"
        command = f'exec "$@" 3<&{command_read} 4>&{answer_write}'
        process = subprocess.Popen(
            ["bash", "-c", command, "chromium", str(program()), *options.split(), f"--user-data-dir={profile}"],
            pass_fds=(command_read, answer_write), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(command_read)
        os.close(answer_write)
        with os.fdopen(command_write, "wb") as commands, os.fdopen(answer_read, "rb") as answers:
            try:
                yield Page(commands, answers)
            finally:
                process.terminate()
                process.wait(timeout=30)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=1366)
    parser.add_argument("--dark", action="store_true")
    given = parser.parse_args()
    with browser() as tab:
        tab.open(given.page, width=given.width, dark=given.dark)
        tab.screenshot(given.picture)
