"""A program's own test files, in namespaces of their own: fixed ports, and `pkill` of what they take for theirs, harm nobody else.

suite.py PLAN.json      started by suites.py under unshare; prints one JSON line, the outcome of each case

The plan: {"folder": where to run, "services": [{"command", and "port" or what it "says"}], "runs": [{"name", "command", "env", "beside"}]}. A run that is pytest
gives an outcome for each of its cases, any other one by its exit code. What is "beside" is started and waited for with the next one. This process
is the first of its namespace: what it leaves behind ends with it.
"""
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

START_SECONDS_MAX = 60


def is_ready(service, log):
    if "says" in service:
        return service["says"] in log.read_text(errors="replace")
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", service["port"])) == 0


def start(service, folder):
    log = folder / f"service-{pathlib.Path(service['command'][0]).name}-{len(list(folder.iterdir()))}.log"
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen(service["command"], stdin=subprocess.DEVNULL, stdout=file, stderr=file, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    end = time.monotonic() + START_SECONDS_MAX
    while process.poll() is None and time.monotonic() < end:
        if is_ready(service, log):
            return
        time.sleep(0.05)
    raise SystemExit(f"{service} does not serve: {log.read_text(errors='replace')[-3000:]}")


def cases_of(report):
    """{case: [outcome, why]} of a JUnit report; a case is MODULE.CLASS::TEST."""
    cases = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        outcome, why = "passed", ""
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                outcome, why = child.tag, f"{child.get('message') or ''}\n{child.text or ''}"
        cases[f"{case.get('classname')}::{case.get('name')}"] = [outcome, why[-3000:]]
    return cases


class Run:
    """One of the plan's runs, while it goes on."""

    def __init__(self, run, number, folder):
        self.run = run
        self.report = folder / f"{number}.xml" if "pytest" in run["command"] else None
        self.log = open(folder / f"{number}.log", "w+", encoding="utf-8", errors="replace")
        command = run["command"] + ([f"--junitxml={self.report}"] if self.report else [])
        self.process = subprocess.Popen(command, cwd=run.get("folder"), stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        env={**os.environ, **run.get("env", {})})

    def end(self, seconds):
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = f"not done after {seconds} s"
        said = pathlib.Path(self.log.name).read_text(errors="replace")[-6000:]
        name = self.run["name"]
        if self.report is not None:
            # An exit code of 0 or 1 says that pytest ran to its end; without that there is no outcome to believe.
            return cases_of(self.report) if code in (0, 1) and self.report.exists() else {name: ["error", f"pytest: {code}\n{said}"]}
        return {name: ["passed" if code == 0 else "failure", f"exit code {code}\n{said}"]}


def main():
    plan = json.loads(pathlib.Path(sys.argv[1]).read_text())
    folder = pathlib.Path(tempfile.mkdtemp(prefix="mc-suite-"))
    # The original looks for an interface beside the loopback, and gives up without one.
    for words in "link set lo up", "link add suite0 type veth peer name suite1", "addr add 10.255.0.1/24 dev suite0", "link set suite0 up", "link set suite1 up":
        subprocess.run(["ip", *words.split()], check=True)
    for service in plan["services"]:
        start(service, folder)
    outcomes, beside = {}, []
    for number, one in enumerate(plan["runs"]):
        run = Run(one, number, folder)
        if one.get("beside"):
            beside.append(run)
            continue
        for each in [run, *beside]:
            outcomes.update(each.end(plan["seconds"]))
            print(each.run["name"], round(time.monotonic()), file=sys.stderr, flush=True)
        beside.clear()
    print(json.dumps({"outcomes": outcomes}), flush=True)


if __name__ == "__main__":
    main()
