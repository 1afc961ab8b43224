"""A headless Chromium, driven over a pair of pipes by the DevTools protocol: no driver, no library, no port.

The profile is fresh and goes with the process. Must not know what the pages are.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip
HAND_OVER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads commands from 3 and writes answers to 4."""
ANSWER_S = 60.0
"""A way out of a hang: how long the browser may take for one answer."""
HOW_TO_GET_IT = (
    "there is no Chromium here to look at the page with. Debian, Ubuntu: apt-get install chromium; "
    "macOS: brew install --cask chromium; or name one: GYM_CKPT_CHROMIUM=/path/to/chrome"
)


def find() -> str | None:
    """The browser to use: `GYM_CKPT_CHROMIUM`, or the first of `NAMES` on the path."""
    named = os.environ.get("GYM_CKPT_CHROMIUM")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One process, and one page of it, of `width` by `height` pixels. Raises `OSError` when it cannot be started."""

    def __init__(self, program: str, width: int = 1600, height: int = 950) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="gym-ckpt-chromium-", ignore_cleanup_errors=True)
        ours, theirs = _pipe(), _pipe()
        flags = [*FLAGS, f"--user-data-dir={self._profile.name}", f"--window-size={width},{height}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", HAND_OVER, str(ours[0]), str(theirs[1]), program, *flags],
            pass_fds=(ours[0], theirs[1]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (ours[0], theirs[1]):
            os.close(end)
        self._write, self._read = ours[1], theirs[0]
        self._pending = b""
        self._number = 0
        self._session = ""
        self.errors: list[str] = []
        """What went wrong in the page: uncaught exceptions, and requests to anywhere."""

    def __enter__(self) -> Self:
        try:
            self._attach()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _attach(self) -> None:
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self._ask(f"{domain}.enable")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()

    def open(self, page: Path, fragment: str = "") -> None:
        """Load a file; comes back when its scripts have run."""
        self._ask("Page.navigate", url="about:blank")
        self.wait("location.href === 'about:blank'")
        self._ask("Page.navigate", url=f"{page.resolve().as_uri()}{fragment}")
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def value(self, expression: str) -> Any:
        """What JavaScript says; a promise is awaited. Raises `AssertionError` when it throws."""
        said = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def wait(self, expression: str) -> None:
        """Until JavaScript says true."""
        end = time.monotonic() + ANSWER_S
        while not self.value(expression):
            assert time.monotonic() < end, f"this never came true: {expression}"
            time.sleep(0.02)

    def key(self, key: str) -> None:
        """Press a key: a character, or a name such as `Enter`."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        self._ask("Input.dispatchKeyEvent", type="keyDown", key=key, **({"text": text} if text else {}))
        self._ask("Input.dispatchKeyEvent", type="keyUp", key=key)

    def type(self, text: str) -> None:
        for each in text:
            self.key(each)

    def point(self, x: float, y: float, *, click: bool = False) -> None:
        """Move the pointer there, and press."""
        self._ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self._ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def wheel(self, x: float, y: float, by: float) -> None:
        self._ask("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=by)

    def screenshot(self, path: Path) -> None:
        """Keep what is seen, as PNG."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"]))

    def _ask(self, method: str, **params: Any) -> Any:
        self._number += 1
        whose = {"sessionId": self._session} if self._session else {}
        _write_all(self._write, json.dumps({"id": self._number, "method": method, "params": params, **whose}).encode())
        while True:
            said = json.loads(self._next())
            if said.get("id") == self._number:
                assert "error" not in said, f"{method}: {said['error']}"
                return said["result"]
            self._event(said)

    def _event(self, said: Any) -> None:
        match said.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(str(said["params"]["exceptionDetails"])[:500])
            case "Network.requestWillBeSent":
                url = said["params"]["request"]["url"]
                if not url.startswith(("file:", "about:", "data:")):
                    self.errors.append(f"the page asks for {url}")

    def _next(self) -> bytes:
        end = time.monotonic() + ANSWER_S
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"the browser has said nothing for {ANSWER_S:g} s"
            part = os.read(self._read, 1 << 16)
            assert part, f"the browser has ended (status {self._process.poll()})"
            self._pending += part
        message, _, self._pending = self._pending.partition(b"\0")
        return message


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are no numbers that the browser's own two could be confused with."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]


def _write_all(fd: int, message: bytes) -> None:
    rest = message + b"\0"
    while rest:
        rest = rest[os.write(fd, rest) :]
