"""Drives a headless Chromium over its debugging pipe: opens files, evaluates, listens."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


def find_chromium() -> str | None:
    """Return the path of a Chromium, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One page of a Chromium; commands are those of the DevTools protocol.

    Args:
        to: file descriptor on which commands are written.
        out: file descriptor on which answers and events are read.
        timeout_s: for each command.
    """

    def __init__(self, to: int, out: int, timeout_s: float = 60.0) -> None:
        self.events: list[dict[str, Any]] = []
        self._to, self._out, self._timeout_s = to, out, timeout_s
        self._buffer = b""
        self._id = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Run a command; return its result."""
        self._id += 1
        message: dict[str, Any] = {"id": self._id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + self._timeout_s
        while True:
            found = self._receive(deadline)
            if found.get("id") == self._id:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                return dict(found["result"])
            self.events.append(found)

    def open(self, path: Path, width: int, height: int) -> None:
        """Show a file in a window of this size, and wait until it is loaded and drawn."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + self._timeout_s
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive(deadline))

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; of a promise, what it resolves to."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def complaints(self) -> list[str]:
        """Return what stands in the console, and exceptions, since the page was opened."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event) for event in self.events if event["method"] in kinds]

    def requests(self) -> list[str]:
        """Return the addresses that the page asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._out], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._out, 1 << 20) if ready else b""
            if not chunk:
                raise TimeoutError("Chromium did not answer in time, or went away")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Run a Chromium.

    Args:
        profile: a new, empty folder for its files.
    """
    chromium = find_chromium()
    assert chromium is not None
    commands_out, commands_in = os.pipe()
    answers_out, answers_in = os.pipe()
    # the debugging pipe is file descriptors 3 and 4, whatever numbers ours have
    moved = f'exec 13<&{commands_out} 14>&{answers_in}; exec "$0" "$@" 3<&13 4>&14'
    process = subprocess.Popen(
        ["bash", "-c", moved, chromium, *FLAGS, "--remote-debugging-pipe",
         f"--user-data-dir={profile}", "about:blank"],
        pass_fds=(commands_out, answers_in),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    os.close(commands_out)
    os.close(answers_in)
    try:
        yield Browser(commands_in, answers_out)
    finally:
        os.close(commands_in)  # Chromium ends when its pipe does
        os.close(answers_out)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
