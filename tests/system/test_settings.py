"""No setting is silent: each one that the original has works here, or is one line of the log that says what to do, or is refused at the start.
original_settings.txt has their names."""
import collections
import inspect
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from cluster import BUILD, Master, request, says
from ports import free_port
from service_process import CLIENT, Service, environment, run

ORIGINAL = [tuple(line.split()) for line in (pathlib.Path(__file__).parent / "original_settings.txt").read_text().splitlines() if not line.startswith("#")]
SOURCE = pathlib.Path(os.environ["MC_SOURCE"])
MODULES = {**os.environ, "PYTHONPATH": os.environ["MC_PYTHONPATH"]}
IN_VAIN = {"MC_TRANSFER_TIMOUT": "9", "MC_WORKERS_PER_CTX": "4", "MC_RPC_PROTOCOL": "rdma"}


class Client(Service):
    def start(self):
        return self.spawn().wait("is running")


def names(kind, where="-"):
    found = [name for its, place, name in ORIGINAL if (its, place) == (kind, where)]
    assert found and len(found) == len(set(found))
    return found


# ---- variables ----

def variables():
    """What the product's table says of each of the original's: by its name (use, text)."""
    rows = json.loads(subprocess.run([BUILD / "mooncake_doctor", "--variables", "--json"], capture_output=True, timeout=30, check=True).stdout)
    exact = {row["name"]: row for row in rows if not row["is_family"]}
    families = [row for row in rows if row["is_family"]]
    known = {name: exact.get(name) or next((row for row in families if name.startswith(row["name"])), None) for name in names("variable")}
    assert [name for name, row in known.items() if row is None] == [], "not known: a user who sets it is told that it is misspelt"
    return {name: (row["use"], row["text"]) for name, row in known.items()}


def lines_of(text, name):
    return [line for line in text.splitlines() if f"environment: {name} " in line]


def test_variables_without_effect_are_said_at_the_start_of_a_command(monkeypatch):
    """All at once, each in one line with its sentence; those that other software reads in none."""
    known = variables()
    for name, (use, _) in known.items():
        if use != "read":
            monkeypatch.setenv(name, "1")
    with Master() as master:
        log = master.log()
    for name, (use, text) in known.items():
        said = lines_of(log, name)
        assert len(said) == (use in ("needless", "absent")), name
        assert all(line.endswith(text) and line[0] == {"needless": "I", "absent": "W"}[use] for line in said), said


def test_every_command_says_it(tmp_path):
    """What ends by itself, and what serves until it is ended; the rest is in the other tests."""
    name = "MC_NOBODY_KNOWS_THIS"
    for command in (["mooncake_disk", "stat", tmp_path], ["transfer_engine_topology_dump"], ["mooncake_bench", "raw", "--help"]):
        done = subprocess.run([BUILD / command[0], *command[1:]], capture_output=True, text=True, timeout=30, env=environment(**{name: 1}))
        assert len(lines_of(done.stderr, name)) == 1, (command, done.stderr)
    for command in (["mooncake_proxy", "--decode=127.0.0.1:9"], ["mooncake_http_metadata_server"]):
        serving = subprocess.Popen([BUILD / command[0], "--port=0", *command[1:]], stderr=subprocess.PIPE, text=True, env=environment(**{name: 1}))
        lines = [serving.stderr.readline()]  # the first: it is said before anything is done
        serving.terminate()
        lines += serving.communicate(timeout=30)[1].splitlines()
        assert len(lines_of("\n".join(lines), name)) == 1, lines


def test_a_process_says_once_what_its_environment_says_in_vain():
    """However many stores and engines it opens."""
    program = """
from mooncake.engine import TransferEngine
from mooncake.store import MooncakeDistributedStore
engines = [TransferEngine() for _ in range(2)]
stores = [MooncakeDistributedStore() for _ in range(2)]
for store in stores:
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", "127.0.0.1:9") == -900
for engine in engines:
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env={**MODULES, "MC_RPC_TIMEOUT_MS": "100", **IN_VAIN})
    assert done.returncode == 0, done.stderr
    assert {name: len(lines_of(done.stderr, name)) for name in IN_VAIN} == dict.fromkeys(IN_VAIN, 1)
    assert "did you mean MC_TRANSFER_TIMEOUT?" in lines_of(done.stderr, "MC_TRANSFER_TIMOUT")[0]
    assert done.stderr.count("environment: ") == len(IN_VAIN)


# ---- flags ----

COMMANDS = {"mooncake_master": [], "mooncake_client": [], "mc_store_rest_server": [], "mooncake_http_metadata_server": [], "transfer_engine_topology_dump": [],
            "mooncake_proxy": [], "transfer_engine_bench": []}


def flags_of(command):
    """By name: (words of the help, what is allowed and the default)."""
    full = command in ("mooncake_master", "mooncake_client", "mc_store_rest_server")
    text = subprocess.run([BUILD / command, "--helpfull" if full else "--help"], capture_output=True, text=True, timeout=30, check=True).stdout
    return {name: (words, more.strip()) for name, words, more in re.findall(r"^  --(\w+)  (.*)\n((?: {8}.*\n)?)", text, re.M)}


def outcome_of_flag(flags, name):
    if name not in flags:
        return "refused"
    words = flags[name][0]
    alias = re.match(r"the same as --(\w+)$", words)
    if alias:
        return outcome_of_flag(flags, alias.group(1))
    return "said" if re.search(r" \[(accepted, no effect here|not here: .+)\]$", words) else "works"


def other_value(allowed):
    """One that a flag may have and that is not its default."""
    default = re.search(r"default \"?([^;\"]*)\"?", allowed).group(1)
    if allowed.startswith("true or false"):
        return "false" if default == "true" else "true"
    if allowed.startswith("one of"):
        return next(word for word in re.match(r"one of ([^;]*);", allowed).group(1).split("|") if word not in ("", default))
    if allowed.startswith("a number"):
        return "0.5"
    if allowed.startswith("text"):
        return "/tmp/x"
    return str(int(default) + 1) if int(default) < 70000 else str(int(default) - 1)


def said_flags(command):
    flags = flags_of(command)
    return {name: other_value(allowed) for name, (words, allowed) in flags.items() if outcome_of_flag(flags, name) == "said" and not words.startswith("the same as")}


def check_said(log, flags):
    said = re.findall(r" --(\w+) changes nothing here: \S.{5,}", log)
    assert sorted(said) == sorted(flags)


def test_flags_without_effect_are_said_once():
    flags = said_flags("mooncake_master")
    assert len(flags) > 60
    with Master(*(f"--{name}={value}" for name, value in flags.items())) as master:
        check_said(master.log(), flags)
        others = said_flags("mooncake_client")
        with Client("--host=127.0.0.1", f"--master_server_address={master.address}", "--global_segment_size=16mb", *(f"--{name}={value}" for name, value in others.items()), command=CLIENT) as node:
            check_said(node.log(), others)
        others = said_flags("mc_store_rest_server")
        with Service(*(f"--{name}={value}" for name, value in others.items()), MOONCAKE_MASTER=master.address) as node:
            check_said(node.log(), others)


def test_flags_of_the_engines_bench_without_effect_are_said_once():
    flags = said_flags("transfer_engine_bench")
    bench = subprocess.Popen([BUILD / "transfer_engine_bench", "--mode=target", "--metadata_server=P2PHANDSHAKE", "--local_server_name=127.0.0.1", "--protocol=tcp",
                              "--buffer_size=4096", *(f"--{name}={value}" for name, value in flags.items())], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env={**os.environ, "MC_LOG_LEVEL": "INFO"})
    bench.stdout.readline()  # target ...
    bench.terminate()
    check_said(bench.communicate(timeout=30)[1], flags)


def test_flags_that_are_refused_are_named():
    refused = [(command, name) for command in COMMANDS for name in names("flag", command) if outcome_of_flag(flags_of(command), name) == "refused"]
    for command, name in refused:
        done = run([str(BUILD / command)], f"--{name}=1")
        assert done.returncode != 0 and f"unknown flag --{name}" in done.stderr, (command, done.stderr)


def test_flags_that_work_are_read():
    """What the help calls neither needless nor absent goes to a member of the configuration or to a variable, or is asked for by name."""
    sources = {"mooncake_master": ["src/store/master/options.c"], "mooncake_client": ["src/store/service/config.c"], "mc_store_rest_server": ["src/store/service/config.c"],
               "mooncake_http_metadata_server": ["src/cmd/mooncake_http_metadata_server.c"], "transfer_engine_topology_dump": ["src/cmd/transfer_engine_topology_dump.c"],
               "mooncake_proxy": ["src/proxy/options.c"], "transfer_engine_bench": ["bench/tool/transfer_engine_bench.c", "bench/tool/common.c"]}
    everywhere = {"help", "helpfull", "version", "verbose", "flagfile"}  # base/options.c
    for command, files in sources.items():
        text, flags = "".join((SOURCE / file).read_text() for file in files), flags_of(command)
        for name in flags:
            if outcome_of_flag(flags, name) != "works" or flags[name][0].startswith("the same as") or name in everywhere:
                continue
            row = re.search(rf'ROW\(\s*"{name}",(?:.|\n)*?(?=(?:ROW|NEEDLESS|ABSENT|ALIAS)\(|\}};)', text)
            is_stored = row and re.search(r"\b(?:INTO|TO)\(", row.group())
            stands_for = re.search(r"; empty: \$(\w+)$", flags[name][0])  # a variable, which is looked at by the lists of those
            assert is_stored or (stands_for and "mc_flags_use(" in text) or len(re.findall(rf'"(?:--)?{name}=?"', text)) > len(re.findall(rf'ROW\(\s*"{name}"', text)), f"{command} --{name}"


# ---- keys and arguments ----

SAID = {  # by the place: what is said, and how the log calls it
    ("key", "service"): {"metadata_server": "metadata_server"},
    ("key", "setup"): {"metadata_server": "setup: metadata_server"},
    ("argument", "allocate_and_mount_segment"): {name: "protocol and location of a mount" for name in ("protocol", "location")},
    ("argument", "transfer_sync_write"): {"transport_hint": "transport_hint"},
    ("key", "drain_job"): {name: f'drain job: "{name}"' for name in ("target_segments", "max_concurrency")},
    ("key", "mount"): {name: "protocol and location of a mount" for name in ("protocol", "location")},
}
SAID["argument", "setup"] = {**SAID["key", "setup"], "engine": "setup: engine"}


def said_of(log):
    return sorted(re.sub(r"^.*?\] ", "", line).split(" change")[0] for line in log.splitlines() if re.search(r" changes? nothing", line))


def test_arguments_that_change_nothing_are_said_once():
    """Those of setup, in either form, of a mount and a transfer."""
    program = """
import sys
from mooncake.engine import TransferEngine
from mooncake.store import MooncakeDistributedStore
engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
for _ in range(2):
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "http://127.0.0.1:9/metadata", 16 << 20, 1 << 20, "tcp", "", sys.argv[1], engine.get_engine()) == 0
    assert store.allocate_and_mount_segment(16 << 20, "tcp", "cpu:0")["ret"] == 0
    assert store.close() == 0
    store = MooncakeDistributedStore()
    assert store.setup({"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_address": sys.argv[1], "global_segment_sise": "1mb",
                        "save_chunk_meta": "True", "tenant_id": "default"}) == 0
    assert store.close() == 0
    assert engine.transfer_sync_write("127.0.0.1:9", 0, 0, 0, "rdma") <= 0
    assert engine.transfer_sync("127.0.0.1:9", 0, 0, 0, 1, None, "") <= 0
"""
    with Master() as master:
        done = subprocess.run([sys.executable, "-c", program, master.address], capture_output=True, text=True, timeout=60, env=MODULES)
    assert done.returncode == 0, done.stderr
    wanted = {words for place in (("argument", "setup"), ("key", "setup"), ("argument", "allocate_and_mount_segment"), ("argument", "transfer_sync_write"))
              for words in SAID[place].values()}
    assert said_of(done.stderr) == sorted({*wanted, 'setup: unknown key "global_segment_sise"'})
    assert 'did you mean "global_segment_size"?' in done.stderr


def test_keys_that_change_nothing_are_said():
    """Those of a store service's file, of a mount by its REST API, and of a drain job."""
    with Master() as master, tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"local_hostname": "127.0.0.1", "metadata_server": "http://127.0.0.1:9/metadata", "master_server_address": master.address}, file)
        file.flush()
        with Service(f"--config={file.name}", "--global_segment_size=16mb") as node:
            for _ in range(2):
                assert node.call("POST", "/api/mount", {"size": 16 << 20, "protocol": "tcp", "location": "cpu:0"})[0] == 200
            assert said_of(node.log()) == sorted({*SAID["key", "service"].values(), *SAID["key", "mount"].values()})
        body = json.dumps({"segments": ["nobody:1"], "target_segments": ["a:1"], "max_concurrency": 4}).encode()
        assert request(master.metrics_port, "POST", "/api/v1/drain_jobs", body)[0] >= 400
        assert said_of(master.log()) == sorted(SAID["key", "drain_job"].values())


def taken(kind, where):
    """Names that are taken at that place."""
    sys.path.insert(0, os.environ["MC_PYTHONPATH"])
    from mooncake.engine import TransferEngine
    from mooncake.mooncake_config import _BY_SPELLING
    from mooncake.store import MooncakeDistributedStore, ReplicateConfig
    if (kind, where) == ("key", "service"):
        return _BY_SPELLING
    if where == "ReplicateConfig":
        return [name for name in dir(ReplicateConfig) if not name.startswith("_")]
    if where in ("drain_job", "mount"):
        return {"drain_job": ["segments", *SAID[kind, where]], "mount": ["size", *SAID[kind, where]]}[where]
    return inspect.signature(getattr(TransferEngine if where == "transfer_sync_write" else MooncakeDistributedStore, where)).parameters


def test_the_table():
    """What becomes of each name; its lines are shown by pytest -rP."""
    rows, known = [], variables()
    flags = {command: flags_of(command) for command in COMMANDS}
    for kind, where, name in ORIGINAL:
        if kind == "variable":
            outcome = {"read": "works", "others": "is read by others"}.get(known[name][0], "said")
        elif kind == "flag":
            outcome = outcome_of_flag(flags[where], name)
        else:
            outcome = "said" if name in SAID.get((kind, where), {}) else "works" if name in taken(kind, where) else "silent"
        rows.append((kind, where, name, outcome))
        print(f"{kind:9} {where:28} {name:56} {outcome}")
    counts = collections.Counter((kind, outcome) for kind, _, _, outcome in rows)
    print(*sorted(counts.items()), sep="\n")
    assert {where for kind, where, _ in ORIGINAL if kind == "flag"} <= set(COMMANDS)
    assert len(rows) == len(ORIGINAL) == len(set(ORIGINAL)) > 500
    assert [row for row in rows if row[3] == "silent"] == []
    told = re.search(r"of (\d+) names of the original \((\d+) variables, (\d+) flags, (\d+) arguments and keys\) (\d+) work, (\d+) are\s+said in the log .*?, "
                     r"(\d+) flags are refused by name, (\d+) variables are", (SOURCE / "docs" / "status.md").read_text(), re.S)
    kinds, outcomes = collections.Counter(row[0] for row in rows), collections.Counter(row[3] for row in rows)
    assert [int(number) for number in told.groups()] == [len(rows), kinds["variable"], kinds["flag"], kinds["argument"] + kinds["key"],
                                                         *(outcomes[name] for name in ("works", "said", "refused", "is read by others"))]
    assert all(counts[kind, outcome] > 0 for kind in ("variable", "flag", "argument", "key") for outcome in ("works", "said"))


# ---- settings that work, by what they do ----

def test_log_dir(tmp_path):
    """What goes to stderr goes to the file too, after what is there."""
    with Master(f"--log_dir={tmp_path}") as master:
        path, log = tmp_path / f"mooncake_master.{master.pid}.log", master.log()
        assert "Master service started" in log and path.read_text().startswith(log[:200]) and log in path.read_text()
    with Master(f"--log_dir={tmp_path}/nothing") as master:
        says(master, "nothing: No such file or directory; it goes to stderr only")
    program = "from mooncake.engine import TransferEngine; assert TransferEngine().initialize('127.0.0.1', 'P2PHANDSHAKE', 'tcp', '') == 0"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env={**MODULES, "MC_LOG_DIR": str(tmp_path)})
    [path] = [path for path in tmp_path.iterdir() if "python" in path.name]
    assert done.returncode == 0 and path.read_text() == done.stderr and "handshakes on port" in done.stderr


def test_log_format(tmp_path):
    """Each line of stderr and file is an object; what Python's logging is handed is as ever."""
    with Master(f"--log_dir={tmp_path}", environment={"MC_LOG_FORMAT": "json"}) as master:
        lines = [json.loads(line) for line in master.log().splitlines()]
        assert all(sorted(line) == ["file", "level", "line", "message", "thread", "time"] for line in lines)
        assert [line["level"] for line in lines if "HTTP metrics server started" in line["message"]] == ["INFO"]
        assert (tmp_path / f"mooncake_master.{master.pid}.log").read_text().startswith(master.log()[:200])
    program = """
import logging
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
from mooncake import logs
from mooncake.engine import TransferEngine
with logs.to_logging():
    assert TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
"""
    environment = {**MODULES, "MC_LOG_FORMAT": "json", "MC_LOG_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment)
    [path] = [path for path in tmp_path.iterdir() if "python" in path.name]
    assert done.returncode == 0 and re.search(r"^INFO .*handshakes on port", done.stderr, re.M), done.stderr
    assert any("handshakes on port" in json.loads(line)["message"] for line in path.read_text().splitlines())
    with Master(environment={"MC_LOG_FORMAT": "xml"}) as master:
        assert "MC_LOG_FORMAT=xml: json or glog is expected" in master.log()


def test_a_protocol_can_be_forced():
    """MC_FORCE_HCA looks for devices whatever is asked for, MC_FORCE_TCP never does and wins."""
    program = """
import sys
from mooncake.engine import TransferEngine
from mooncake.store import MooncakeDistributedStore
assert TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", sys.argv[2], "") == 0
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, sys.argv[2], "", sys.argv[1]) == 0
store.close()
"""
    with Master() as master:
        for protocol, variable, looks in (("tcp", {}, 0), ("tcp", {"MC_FORCE_HCA": "1"}, 2), ("rdma", {"MC_FORCE_TCP": "1"}, 0), ("rdma", {"MC_FORCE_HCA": "1", "MC_FORCE_TCP": "1"}, 0),
                                          ("rdma", {}, 2)):
            done = subprocess.run([sys.executable, "-c", program, master.address, protocol], capture_output=True, text=True, timeout=60, env={**MODULES, **variable})
            assert done.returncode == 0, done.stderr
            assert len(re.findall(r"protocol rdma: |RDMA device ", done.stderr)) >= looks and (looks or "RDMA" not in done.stderr), (protocol, variable, done.stderr)


def test_a_name_may_mean_its_port():
    """MC_LEGACY_RPC_PORT_BINDING: handshakes are at the port that the name has, or at MC_HANDSHAKE_PORT; one that is taken is an error."""
    program = """
import socket, sys
from mooncake.engine import TransferEngine
taken = socket.socket()
taken.bind(("127.0.0.1", 0))
port = taken.getsockname()[1]
name = "127.0.0.1:%d" % port if sys.argv[1] == "named" else "127.0.0.1"
if sys.argv[1] != "named":
    import os
    port = int(os.environ["MC_HANDSHAKE_PORT"])
else:
    taken.listen()
    assert TransferEngine().initialize(name, "P2PHANDSHAKE", "tcp", "") == -1
taken.close()
engine = TransferEngine()
assert engine.initialize(name, "P2PHANDSHAKE", "tcp", "") == 0
assert engine.get_rpc_port() == port
"""
    for kind, more in (("named", {}), ("unnamed", {"MC_HANDSHAKE_PORT": str(free_port())})):
        done = subprocess.run([sys.executable, "-c", program, kind], capture_output=True, text=True, timeout=60, env={**MODULES, "MC_LEGACY_RPC_PORT_BINDING": "1", **more})
        assert done.returncode == 0, done.stderr
    assert "MC_LEGACY_RPC_PORT_BINDING asks for, cannot be had" in subprocess.run([sys.executable, "-c", program, "named"], capture_output=True, text=True, timeout=60,
                                                                                  env={**MODULES, "MC_LEGACY_RPC_PORT_BINDING": "1"}).stderr
