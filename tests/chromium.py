"""A real headless Chromium, controlled over a pipe without a driver or port."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # the tests may run as root, and load only their own pages
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--host-resolver-rules=MAP *.example 127.0.0.1",  # names of this machine, as a hostile page may use
)


def find() -> str:
    """Return the browser of this machine; on Debian, install it if possible."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None and shutil.which("apt-get") and os.geteuid() == 0:
        quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with suppress(subprocess.CalledProcessError):
            subprocess.run(["apt-get", "update"], **quiet)  # type: ignore[call-overload]  # plain options
        with suppress(subprocess.CalledProcessError):
            subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", "chromium"], **quiet)  # type: ignore[call-overload]  # plain options
        found = shutil.which("chromium")
    assert found, f"these tests need a browser: install one of {', '.join(NAMES)}"
    return found


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self._tell("Page.enable")
        self._tell("Runtime.enable")

    def _tell(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.tell(method, self._session, **parameters)

    def go(self, address: str) -> None:
        """Open an address, and wait until it is loaded."""
        self._browser.forget()
        self._tell("Page.navigate", url=address)
        self._browser.await_event("Page.loadEventFired", self._session)

    def free_of_policies(self) -> None:
        """Disable the content security policy, for what must hold without one."""
        self._tell("Page.setBypassCSP", enabled=True)

    def run(self, script: str) -> Any:
        """Run a script and return its value; a promise is awaited."""
        answer = self._tell("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def run_and_load(self, script: str) -> None:
        """Run what leads to another page, and wait for that page."""
        self._browser.forget()
        self.run(script)
        self._browser.await_event("Page.loadEventFired", self._session)

    def emulate(self, width: int, *, dark: bool = False) -> None:
        """Set the window's width and the light or dark colours of the system."""
        self._tell(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 600
        )
        colours = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._tell("Emulation.setEmulatedMedia", features=[colours])

    def record(self) -> None:
        """Record requests and errors from now on."""
        self._tell("Network.enable")
        self._tell("Log.enable")

    def requested(self) -> list[str]:
        """Return the addresses that the page has requested since it was opened."""
        sent = self._browser.events("Network.requestWillBeSent", self._session)
        return [event["request"]["url"] for event in sent]

    def complaints(self) -> list[str]:
        """Return uncaught errors, violated policies and failed requests."""
        thrown = self._browser.events("Runtime.exceptionThrown", self._session)
        logged = self._browser.events("Log.entryAdded", self._session)
        return [str(event) for event in (*thrown, *logged)]

    def screenshot(self) -> bytes:
        """Return a screenshot as PNG."""
        return b64decode(self._tell("Page.captureScreenshot", format="png")["data"])

    @property
    def text(self) -> str:
        """Return the visible text."""
        return str(self.run("document.body ? document.body.innerText : ''"))


class Browser:
    """One process with its own profile."""

    def __init__(self, to: Any, come: Any) -> None:
        self._to = to
        self._come = come
        self._number = 0
        self._events: list[dict[str, Any]] = []

    def page(self) -> Page:
        target = self.tell("Target.createTarget", None, url="about:blank")["targetId"]
        session = self.tell("Target.attachToTarget", None, targetId=target, flatten=True)["sessionId"]
        return Page(self, session)

    def tell(self, method: str, session: str | None, /, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        self._to.write(json.dumps(message).encode() + b"\0")
        self._to.flush()
        while True:
            heard = self._hear()
            if heard.get("id") == self._number:
                assert "error" not in heard, heard["error"]
                answer: dict[str, Any] = heard["result"]
                return answer
            self._events.append(heard)

    def forget(self) -> None:
        """Record events from now on."""
        self._events.clear()

    def events(self, name: str, session: str) -> list[dict[str, Any]]:
        """Return the recorded events of this kind since the page was opened."""
        return [one["params"] for one in self._events if (one.get("method"), one.get("sessionId")) == (name, session)]

    def await_event(self, name: str, session: str) -> None:
        while True:
            for event in self._events:
                if event.get("method") == name and event.get("sessionId") == session:
                    return
            self._events.append(self._hear())

    def _hear(self) -> dict[str, Any]:
        heard = b""
        while not heard.endswith(b"\0"):
            piece = self._come.read(1)
            assert piece, "the browser has ended"
            heard += piece
        message: dict[str, Any] = json.loads(heard[:-1])
        return message


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start a browser with a new profile, until the test ends."""
    program = find()
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()

    command = [program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
    # Chromium reads from 3 and writes to 4
    shell = ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{from_write}', "chromium", *command]
    process = subprocess.Popen(
        shell,
        pass_fds=(to_read, from_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(from_write)
    with os.fdopen(to_write, "wb") as to, os.fdopen(from_read, "rb") as come:
        speaking = Browser(to, come)
        try:
            yield speaking
            with suppress(OSError, AssertionError):
                speaking.tell("Browser.close", None)
        finally:
            process.kill()
            process.wait(20)
