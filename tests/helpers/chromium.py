"""A headless Chromium with a phone's profile, driven through its DevTools protocol over a pipe."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PHONE = {"width": 412, "height": 915, "deviceScaleFactor": 1, "mobile": True}  # a Pixel, in CSS pixels
WAIT_S = 60.0


class Chromium:
    """One page. Messages are JSON with a zero byte behind each, as ``--remote-debugging-pipe`` wants them."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._out, self._in = os.fdopen(to_browser, "wb"), os.fdopen(from_browser, "rb")
        self._number = 0
        self._session: str | None = None
        self._rest = b""
        self.problems: list[str] = []
        """Exceptions of scripts and errors on the console."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", **PHONE)
        self.call("Emulation.setTouchEmulationEnabled", enabled=True)

    def call(self, method: str, **parameters: Any) -> Any:
        """The answer to a call; events that come before it are looked through for problems."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._note(answer)

    def open(self, url: str) -> None:
        """Go to ``url`` and wait until its script has run."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + WAIT_S
        while not self.run(condition):
            assert time.monotonic() < end, condition
            time.sleep(0.02)

    def press(self, selector: str) -> None:
        """A tap on what ``selector`` finds, which has to be visible."""
        self.wait(
            f"document.querySelector({json.dumps(selector)}).checkVisibility() && !document.querySelector({json.dumps(selector)}).disabled"
        )
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def dark(self, dark: bool) -> None:
        """What the device prefers."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, name: str) -> bytes:
        """A picture; also written as ``name`` to the folder EDGESPEC_SCREENSHOTS, if that is set."""
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        folder = os.environ.get("EDGESPEC_SCREENSHOTS")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).write_bytes(data)
        return data

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._in.fileno(), 1 << 16)
            assert data, "the browser is gone"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(parameters["entry"]["text"])


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Chromium]:
    """A browser of its own; the test is skipped where there is none."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs Chromium")
    browser_in, to_browser = os.pipe()
    from_browser, browser_out = os.pipe()
    arguments = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        f"--user-data-dir={profile}",
    ]
    shell = 'exec 3<&"$0" 4>&"$1"; shift; exec "$@"'  # the browser reads descriptor 3 and writes 4
    command = ["bash", "-c", shell, str(browser_in), str(browser_out), program, *arguments, "--remote-debugging-pipe"]
    process = subprocess.Popen(command, pass_fds=(browser_in, browser_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(browser_in)
    os.close(browser_out)
    try:
        yield Chromium(to_browser, from_browser)
    finally:
        process.terminate()
        process.wait(timeout=20)
