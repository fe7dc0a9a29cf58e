"""Headless Chromium for tools/check_report and tools/check_dashboard, controlled through the DevTools protocol over a pipe (JSON
messages terminated by a zero byte)."""
import base64
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Recommendations of level "verbose" are ignored; every Chromium release adds some.
FAILING_LOG_LEVELS = ("warning", "error")
FAILING_CONSOLE_CALLS = ("warning", "error", "assert")


def find_browser():
    for name in ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome"):
        if shutil.which(name):
            return name
    sys.exit("no Chromium found; run tools/setup --tests")


@contextlib.contextmanager
def work_folder(prefix):
    """A temporary folder below build/, because Chromium from a snap cannot read /tmp."""
    (ROOT / "build").mkdir(exist_ok=True)
    folder = pathlib.Path(tempfile.mkdtemp(dir=ROOT / "build", prefix=prefix))
    try:
        yield folder
    finally:  # helper processes of Chromium may still write to their profile for a moment
        for _ in range(50):
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(0.1)


def is_complaint(event):
    """True for exceptions and for log entries and console calls that are warnings or errors."""
    method, params = event.get("method"), event.get("params", {})
    if method == "Runtime.exceptionThrown":
        return True
    if method == "Log.entryAdded":
        return params["entry"]["level"] in FAILING_LOG_LEVELS
    return method == "Runtime.consoleAPICalled" and params["type"] in FAILING_CONSOLE_CALLS


class Browser:
    """One tab of a browser process. `complaints` collects the events that fail a check."""

    def __init__(self, program, profile, width, height):
        to_browser, self.pipe_out = os.pipe()
        self.pipe_in, from_browser = os.pipe()

        def pipes():
            os.dup2(os.dup(to_browser), 3)
            os.dup2(os.dup(from_browser), 4)

        self.process = subprocess.Popen([program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", f"--window-size={width},{height}",
                                         f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        close_fds=False, preexec_fn=pipes, start_new_session=True)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.last, self.loads, self.complaints, self.session = b"", 0, 0, [], None
        page = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.call(domain + ".enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def call(self, method, **parameters):
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters} | ({"sessionId": self.session} if self.session else {})
        os.write(self.pipe_out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.buffer:
                self.buffer += os.read(self.pipe_in, 1 << 20) or sys.exit("the browser ended unexpectedly")
            text, self.buffer = self.buffer.split(b"\0", 1)
            event = json.loads(text)
            if event.get("id") == self.last:
                return event.get("result", {})
            self.loads += event.get("method") == "Page.loadEventFired"
            if is_complaint(event):
                self.complaints.append(event["params"])

    def value(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def wait(self, expression, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.value(expression):
                return True
            time.sleep(0.05)
        return False

    def open(self, url, seconds=20):
        """Navigates and waits for the load event; events arrive while other calls wait for their results."""
        before, end = self.loads, time.monotonic() + seconds
        self.call("Page.navigate", url=url)
        while self.loads == before and time.monotonic() < end:
            self.value("0")
            time.sleep(0.02)

    def open_text(self, path, text):
        """Writes the page to `path` and opens it from there."""
        path.write_text(text)
        self.open(path.resolve().as_uri())

    def screenshot(self, path):
        path = pathlib.Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # with its helper processes
        self.process.wait()
        os.close(self.pipe_out)
        os.close(self.pipe_in)
