"""Chromium without a window, told what to do over a pipe: opens a page, waits for what it says, takes its picture."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
# Chromium takes orders at descriptor 3 and answers at 4.
START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
WAIT_SECONDS = 180
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run")


class Tab:
    """One page. Orders are answered one after the other."""

    def __init__(self, orders: Any, answers: Any) -> None:
        self._orders, self._answers, self._number, self._session = orders, answers, 0, None
        target = self.order("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.order("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def order(self, method: str, **values: Any) -> dict[str, Any]:
        self._number += 1
        said = {"id": self._number, "method": method, "params": values}
        if self._session is not None:
            said["sessionId"] = self._session
        self._orders.write(json.dumps(said).encode() + b"\0")
        self._orders.flush()
        while (answer := self._read()).get("id") != self._number:
            assert answer, "the browser is gone"
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self) -> dict[str, Any]:
        found = bytearray()
        while (piece := self._answers.read(1)) not in (b"\0", b""):
            found += piece
        return json.loads(found) if found else {}

    def open(self, address: str) -> None:
        self.order("Page.navigate", url=address)

    def value(self, expression: str) -> Any:
        """What an expression comes to, once it is known."""
        found = self.order("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, condition: str) -> None:
        """Looks again whenever the page changes."""
        self.value(
            f"new Promise((yes, no) => {{ setTimeout(() => no(new Error('waited in vain')), {WAIT_SECONDS * 1000});"
            f" const look = () => ({condition}) && yes(true); look();"
            " new MutationObserver(look).observe(document, {subtree: true, childList: true, attributes: true,"
            " characterData: true}); document.addEventListener('readystatechange', look); })"
        )

    def picture(self, path: Path, width: int, height: int) -> None:
        self.order("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        path.write_bytes(base64.b64decode(self.order("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser(profile: Path) -> Iterator[Tab]:
    assert CHROMIUM is not None
    take, tell = os.pipe()
    hear, say = os.pipe()
    # Away from 3 and 4, so that neither is overwritten before it is moved there.
    theirs = [fcntl.fcntl(each, fcntl.F_DUPFD, 64) for each in (take, say)]
    words = [sys.executable, "-c", START, *map(str, theirs), CHROMIUM, *OPTIONS, f"--user-data-dir={profile}"]
    with subprocess.Popen(words, pass_fds=theirs, stderr=subprocess.DEVNULL) as process:
        for each in (*theirs, take, say):
            os.close(each)
        with os.fdopen(tell, "wb") as orders, os.fdopen(hear, "rb") as answers:
            try:
                yield Tab(orders, answers)
            finally:
                process.terminate()
                process.wait(60)
