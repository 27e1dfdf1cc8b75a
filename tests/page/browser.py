"""A chromium without a window, driven by its own protocol over two pipes: no other software, no port.

    with Browser(1440, 900) as browser:
        browser.open("http://127.0.0.1:9003/")
        browser.eval("document.title")
        browser.received          # bytes of answers, by path
"""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
import urllib.parse

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    def __init__(self, width=1440, height=900, dark=False):
        self.size, self.dark = (width, height), dark

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="mc-browser-", ignore_cleanup_errors=True)
        to_read, self.to = os.pipe()
        self.back, to_write = os.pipe()

        def as_three_and_four():  # what --remote-debugging-pipe reads and writes
            kept = os.dup(to_write)
            os.dup2(to_read, 3)
            os.dup2(kept, 4)

        self.poll = select.poll()  # of many descriptors, which select() cannot name
        self.poll.register(self.back, select.POLLIN)
        self.log = open(os.path.join(self.folder.name, "log"), "w+b")
        words = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", f"--user-data-dir={self.folder.name}/profile",
                 f"--window-size={self.size[0]},{self.size[1]}", "--remote-debugging-pipe", "about:blank"]
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, close_fds=False, preexec_fn=as_three_and_four)
        os.close(to_read)
        os.close(to_write)
        self.text, self.number, self.answers, self.events, self.session = b"", 0, {}, [], None
        self.received, self.requested, self.paths, self.problems = {}, [], {}, []
        target = next(one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=self.size[0], height=self.size[1], deviceScaleFactor=1, mobile=self.size[0] < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if self.dark else "light"}])
        return self

    def __exit__(self, *unused):
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        os.close(self.back)
        self.log.close()
        self.folder.cleanup()

    def take(self, timeout_s):
        """What has come is looked at; waits for something to come."""
        if self.poll.poll(1000 * timeout_s):
            part = os.read(self.back, 1 << 20)
            assert part, "chromium has ended"
            self.text += part
        while b"\0" in self.text:
            line, self.text = self.text.split(b"\0", 1)
            said = json.loads(line)
            if "id" in said:
                self.answers[said["id"]] = said
            else:
                self.on_event(said["method"], said["params"])

    def on_event(self, method, told):
        if method == "Network.requestWillBeSent":
            path = urllib.parse.urlsplit(told["request"]["url"]).path
            self.paths[told["requestId"]] = path
            self.requested.append(told["request"]["url"])
        elif method == "Network.loadingFinished" and told["requestId"] in self.paths:
            path = self.paths[told["requestId"]]
            self.received[path] = self.received.get(path, 0) + told["encodedDataLength"]
        elif method == "Runtime.exceptionThrown":
            self.problems.append(told["exceptionDetails"].get("exception", {}).get("description", str(told)))
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.problems.append(told["entry"]["text"] + " " + told["entry"].get("url", ""))

    def call(self, method, timeout_s=60, **parameters):
        self.number += 1
        asked = {"id": self.number, "method": method, "params": parameters, **({"sessionId": self.session} if self.session else {})}
        text = json.dumps(asked).encode() + b"\0"
        while text:
            text = text[os.write(self.to, text):]
        end = time.monotonic() + timeout_s
        while self.number not in self.answers:
            assert time.monotonic() < end, f"no answer to {method}"
            self.take(1)
        answer = self.answers.pop(self.number)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def eval(self, script):
        told = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, (script, told["exceptionDetails"])
        return told["result"].get("value")

    def wait(self, script, timeout_s=60):
        end = time.monotonic() + timeout_s
        while not self.eval(script):
            assert time.monotonic() < end, f"{script} did not become true: {self.eval('document.body.innerText')[:3000]}; {self.problems}"
            self.take(.05)

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && Number(document.body?.dataset.turns) >= 1")

    def key(self, key, code=None):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=key if kind == "keyDown" and len(key) == 1 else "", code=code or key)

    def picture(self, path, full=True):
        """The whole page as PNG."""
        height = self.eval("document.documentElement.scrollHeight") if full else self.size[1]
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip={"x": 0, "y": 0, "width": self.size[0], "height": min(height, 16000), "scale": 1})
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))
