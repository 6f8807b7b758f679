"""A real Chromium for tests and pictures, driven by its DevTools protocol over two pipes.

Nothing has to be installed beside Chromium: the pipes carry JSON messages that end in a NUL byte. Elements
are found by the role and the name that a screen reader is told. So a test uses what a person looks for, does
not know the markup, and cannot find a control without a name.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import time
from threading import Thread

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
"""Path of the browser, or None: `apt-get install chromium`."""
PATIENCE_S = 30
"""Seconds after which something that a page should show will not come any more."""
OPTIONS = (
    "--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--lang=en",
    "--force-color-profile=srgb",
)  # fmt: skip
KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "Space": (32, " ")}
"""Keys with their codes and the text that they type."""
HEIGHT = 900
"""Pixels of a window."""
LOADED = """new Promise((done) => {
  if (document.readyState === "complete") done(true);
  else addEventListener("load", () => done(true));
})"""
UNTIL = """new Promise((done) => {
  const look = () => { if (document.body.innerText.replace(/\\s+/g, " ").includes(%s)) done(true); };
  new MutationObserver(look).observe(document, {
    subtree: true, childList: true, characterData: true, attributes: true });
  look();
})"""


class Refused(AssertionError):
    """Chromium did not do what it was asked."""


class Browser:
    """A Chromium process; `open` gives a page that shares nothing with other pages.

    directory: where it keeps its profile and its log.
    """

    def __init__(self, directory):
        self._log = directory / "chromium.log"
        command = [CHROMIUM, *OPTIONS, f"--user-data-dir={directory / 'profile'}"]
        if os.geteuid() == 0:
            command.append("--no-sandbox")
        with self._log.open("wb") as log:
            # It reads from descriptor 3 and writes to 4.
            self._process = subprocess.Popen(
                ["sh", "-c", 'exec "$@" 3<&0 4>&1 </dev/null >&2', "sh", *command],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._asked = 0
        self._answers = {}
        self._pages = {}
        self._rest = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """End the process and all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(PATIENCE_S)

    def open(self, *, width=1280, dark=False, scripts=True):
        """Open an empty page with cookies of its own."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, context)
        page.begin(width=width, dark=dark, scripts=scripts)
        return page

    def call(self, method, session=None, /, **params):
        """Ask Chromium to do something, and return its answer."""
        self._asked += 1
        number = self._asked
        message = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        self._process.stdin.write(json.dumps(message).encode() + b"\0")
        self._process.stdin.flush()
        answer = self.wait(lambda: self._answers.pop(number, None), method)
        if "error" in answer:
            raise Refused(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def wait(self, found, what):
        """Take what Chromium tells until `found` returns something, and return that."""
        end_s = time.monotonic() + PATIENCE_S
        while (value := found()) is None:
            self._read(max(0.0, end_s - time.monotonic()), what)
        return value

    def _read(self, left_s, what):
        output = self._process.stdout.fileno()
        ready, _, _ = select.select([output], [], [], left_s)
        told = os.read(output, 1 << 20) if ready else b""
        if not told:
            raise AssertionError(f"no answer to {what}; Chromium says: {self._log.read_text()[-2000:]}")
        *messages, self._rest = (self._rest + told).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._answers[message["id"]] = message
            elif (page := self._pages.get(message.get("sessionId"))) is not None:
                page.told(message["method"], message["params"])


class Page:
    """One open page.

    complaints: errors and warnings of its console, such as a script that failed or what a policy refused.
    """

    def __init__(self, browser, session, context):
        self._browser, self._session, self._context = browser, session, context
        self._loads = self._width = 0
        self.complaints, self._forgiven = [], []

    def begin(self, *, width, dark, scripts):
        """Set the page up before it shows anything."""
        self._width = width
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.call(f"{domain}.enable")
        self.js(LOADED)
        self._size(HEIGHT)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)

    def _size(self, height):
        window = {"width": self._width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **window)

    def call(self, method, /, **params):
        """Ask Chromium to do something with this page."""
        return self._browser.call(method, self._session, **params)

    def told(self, method, params):
        """Note what has happened in the page."""
        match method:
            case "Page.loadEventFired":
                self._loads += 1
            case "Runtime.exceptionThrown":
                self._complain(str(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in {"error", "warning", "assert"}:
                self._complain(str(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in {"error", "warning"}:
                self._complain(params["entry"]["text"])

    def _complain(self, text):
        if not any(part in text for part in self._forgiven):
            self.complaints.append(text)

    def forgive(self, part):
        """Forget complaints that a test has provoked, also those to come. Return how many there were."""
        before = len(self.complaints)
        self._forgiven.append(part)
        self.complaints = [one for one in self.complaints if part not in one]
        return before - len(self.complaints)

    def close(self):
        """Close the page, and forget its cookies."""
        self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)

    # ── going somewhere ──

    def go(self, url):
        """Open an address, and wait until it has been loaded."""
        with self.new_page():
            answer = self.call("Page.navigate", url=url)
            assert "errorText" not in answer, answer

    @contextlib.contextmanager
    def new_page(self):
        """Wait for the page that the block leads to."""
        before = self._loads
        yield
        self._browser.wait(lambda: self._loads > before or None, "a new page")

    # ── looking ──

    def js(self, expression):
        """Return what an expression gives in the page; of a promise, what it is kept with."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    @property
    def text(self):
        """The text that can be seen, in one line."""
        return " ".join(self.js("document.body.innerText").split())

    def until(self, text):
        """Wait until this text can be seen; the page is told of each change, and is not reloaded."""
        try:
            self.js(UNTIL % json.dumps(text))
        except AssertionError as exc:
            raise AssertionError(f"{text!r} does not appear; there is: {self.text}") from exc

    def names(self, role):
        """The names of all elements of a role that a screen reader finds."""
        return [name for _, its_role, name in self._tree() if its_role == role]

    def _tree(self):
        """Element, role and name of all that a screen reader finds."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node.get("backendDOMNodeId"), _value(node, "role"), " ".join(_value(node, "name").split()))
            for node in nodes
            if not node["ignored"]
        ]

    def _find(self, role, name):
        fits = name.search if isinstance(name, re.Pattern) else name.__eq__
        tree = self._tree()
        found = [element for element, its_role, its_name in tree if its_role == role and fits(its_name)]
        assert found, f"there is no {role} {name!r}, but {self.names(role)}; the page says: {self.text}"
        return found[0]

    # ── acting ──

    def click(self, role, name):
        """Click the first element of this role and name; a pattern may be a part of the name."""
        x, y = self._place(role, name)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def _place(self, role, name):
        """The middle of an element, in the window."""
        for _ in range(4):
            with contextlib.suppress(Refused):  # an update has put another one in its place
                return self._middle(self._find(role, name))
        return self._middle(self._find(role, name))

    def _middle(self, element):
        self.call("DOM.scrollIntoViewIfNeeded", backendNodeId=element)
        quad = self.call("DOM.getContentQuads", backendNodeId=element)["quads"][0]
        return sum(quad[0::2]) / 4, sum(quad[1::2]) / 4

    def follow(self, role, name):
        """Click something that leads to a new page, and wait for that."""
        with self.new_page():
            self.click(role, name)

    def fill(self, role, name, text):
        """Replace what stands in a field."""
        self.focus(role, name)
        self.js("document.activeElement.select()")
        self.call("Input.insertText", text=text)

    def focus(self, role, name):
        """Put the focus on an element."""
        self.call("DOM.focus", backendNodeId=self._find(role, name))

    def press(self, key):
        """Press a key: one of `KEYS`, or a letter."""
        code, text = KEYS.get(key, (ord(key[0].upper()), key))
        pressed = {"key": " " if key == "Space" else key, "code": key, "windowsVirtualKeyCode": code}
        down = {"text": text} if text else {}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **pressed, **down)
        self.call("Input.dispatchKeyEvent", type="keyUp", **pressed)


def _value(node, what):
    return str(node.get(what, {}).get("value", ""))


@contextlib.contextmanager
def serving(app):
    """Serve a dashboard on a port of this machine, and give its address."""
    import uvicorn

    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_level="warning", log_config=None, timeout_graceful_shutdown=5)
    )
    server.capture_signals = contextlib.nullcontext  # only the main thread may
    thread = Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
