"""Programs' own test files, run twice: on ours and on the original's wheel, each in namespaces of its own (scenarios/suite.py).

    outcomes = run(side, Suite(...))        # {case: [outcome, why]}; a case is FILE::CLASS::TEST

Test files that a wheel or a source archive on PyPI holds come from there. Others lie below the folder that MC_FOREIGN_SOURCES names, as their
repositories have them (`mooncake`, `checkpoint-engine`, ...); without it their tests are skipped, by name. Nothing of them is kept here.
"""
import dataclasses
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

import pytest

from sides import CLIENTS, SCENARIOS, environment_python, ours_cluster

SUITE_SECONDS_MAX = 900
RUN_SECONDS_MAX = 600
CASE_SECONDS_MAX = 120
METADATA = "http://127.0.0.1:8080/metadata"
MASTER_PORT, METADATA_PORT = 50051, 8080  # namespaces of their own: the defaults that the test files know


def sources(name, part=""):
    """That part of the checkout of that name; skips the test where it is not."""
    folder = os.environ.get("MC_FOREIGN_SOURCES")
    if folder is None:
        pytest.skip(f"MC_FOREIGN_SOURCES names no folder; {name}'s test files are on no package index")
    if not (pathlib.Path(folder) / name / part).is_dir():
        pytest.skip(f"MC_FOREIGN_SOURCES has no {pathlib.Path(name) / part}")
    return pathlib.Path(folder) / name


@dataclasses.dataclass
class Suite:
    """What is run, and on what. `master` None: no services."""

    runs: list  # each either files of one pytest, below `folder`, or a list: a name and the words of a command; "NAME&" runs beside the next
    folder: pathlib.Path
    environment: str = "lmcache"
    beside: tuple = ("suites",)  # folders to import from
    master: tuple = None  # its flags
    metadata: bool = True  # a metadata server of its own
    client: bool = False  # a mooncake_client
    beside_it: dict = dataclasses.field(default_factory=dict)  # {file that serves while the others run: what it says when it does}
    env: dict = dataclasses.field(default_factory=dict)
    files: dict = dataclasses.field(default_factory=dict)  # {path below `folder`: text}: what the test files would take from the network
    pytest: tuple = ()  # more arguments


def tool(side, name):
    """A command of the package: ours as it was built, the original's by its wheel's script."""
    return str(ours_cluster.BUILD / name if side.name == "ours" else side.path / "bin" / name)


def services(side, suite):
    found = []
    if suite.metadata:
        # The original's is a Python script, of a package that its wheel does not bring.
        program = [tool(side, "mooncake_http_metadata_server")]
        found.append({"command": ([environment_python(suite.environment)] if side.name == "original" else []) + program + ["--port", str(METADATA_PORT)],
                      "port": METADATA_PORT})
    if suite.master is not None:
        found.append({"command": [tool(side, "mooncake_master"), *suite.master], "port": MASTER_PORT})
    if suite.client:
        found.append({"command": [tool(side, "mooncake_client")], "port": 50052})
    for file, says in suite.beside_it.items():
        found.append({"command": [environment_python(suite.environment), "-B", str(suite.folder / file)], "says": says})
    return found


def plan(side, suite, work):
    python = environment_python(suite.environment)
    shutil.copytree(suite.folder, work / "tests", symlinks=True)  # without the program's package, which lies beside them
    for name, text in suite.files.items():
        (work / "tests" / name).parent.mkdir(parents=True)
        (work / "tests" / name).write_text(text)
    runs = []
    for one in suite.runs:
        if isinstance(one, str):
            runs.append({"name": one, "command": [python, "-B", "-m", "pytest", *shlex.split(one), "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors",
                                                  f"--timeout={CASE_SECONDS_MAX}", *suite.pytest]})
        else:
            name, *words = one
            runs.append({"name": name.strip("&"), "command": [python, "-B", *words], "beside": name.endswith("&")})
        runs[-1]["folder"] = str(work / "tests")
    return {"services": services(side, suite), "runs": runs, "seconds": RUN_SECONDS_MAX}


def run(side, suite):
    """The outcomes; a plan that does not come to its end fails the test."""
    with tempfile.TemporaryDirectory(prefix="mc-suite-") as folder:
        work = pathlib.Path(folder)
        path = work / "plan.json"
        path.write_text(json.dumps(plan(side, suite, work)))
        (work / "tmp").mkdir()
        env = side.env(MC_METADATA_SERVER=METADATA, MOONCAKE_TE_META_DATA_SERVER=METADATA, DEFAULT_KV_LEASE_TTL="500", TMPDIR=str(work / "tmp"),
                       MOONCAKE_MASTER=f"127.0.0.1:{MASTER_PORT}", MOONCAKE_PROTOCOL="tcp", DEVICE_NAME="",
                       PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTEST_PLUGINS="pytest_timeout,pytest_asyncio.plugin,pytest_mock,absent")
        env["PATH"] = os.pathsep.join([str(pathlib.Path(tool(side, "")).resolve()), os.environ["PATH"]])
        env["PYTHONPATH"] = os.pathsep.join([str(side.path), str(SCENARIOS), *(str(CLIENTS / name) for name in suite.beside)])
        env.update(suite.env)
        root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        command = ["unshare", *root, "--net", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child", sys.executable, "-B",
                   str(SCENARIOS / "suite.py"), str(path)]
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=SUITE_SECONDS_MAX)
        lines = [line for line in done.stdout.splitlines() if line.startswith('{"outcomes"')]
        assert lines, f"{side.name}: the plan did not end: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return json.loads(lines[-1])["outcomes"]


def names(outcomes, wanted="passed"):
    return {case for case, (outcome, _) in outcomes.items() if outcome == wanted}
