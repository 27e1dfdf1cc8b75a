"""Little memory, a disk, and restarts: the store node (`mooncake_client`) and both servers are ended and started again between the turns of conversations.

The servers lend no memory, so all that outlives a turn lies at the node: with a disk, without one, and there is no node at all. The conversations go one
after the other, so that a first token waits for nothing but its own prompt; each turn is asked on the other instance. Only the master runs on.
"""

import pathlib
import shutil
import statistics
import tempfile
import time

import e2e_client
from contestants.base import answers, free_port
from e2e_parts import ANSWER_TOKENS, Result, same_answer, spread
from e2e_servers import BLOCK_BYTES, BLOCK_TOKENS, FOLDER, MIB, Engine, Pair, Server, connector, plain_env, say

CONVERSATIONS = 4
NEW_TOKENS = 512
WITNESS_BLOCKS = 8
NODE_BYTES = 32 * BLOCK_BYTES  # of which the first turn takes 24
DISK_BYTES = 1024 * MIB
QUIET_SECONDS, QUIET_SECONDS_MAX = 4, 60


class Node(Server):
    """A store node with little memory, and with a disk if there is a folder for it. start() again starts another process in its place."""

    def __init__(self, variant, master, folder, label):
        self.variant, self.master, self.folder, self.label = variant, master, folder, label
        self.port, self.metrics_port = free_port(), free_port()
        self.start()

    def start(self):
        program = self.variant.master_program.with_name("mooncake_client")
        program.chmod(program.stat().st_mode | 0o111)
        command = [program, "--host=127.0.0.1", f"--port={self.port}", f"--global_segment_size={NODE_BYTES}", "--metadata_server=P2PHANDSHAKE", "--protocol=tcp",
                   f"--master_server_address={self.master.address}", "--enable_http_server=true", f"--http_port={self.metrics_port}",
                   f"--enable_offload={str(self.folder is not None).lower()}"]  # fmt: skip
        env = {**plain_env(), "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": str(DISK_BYTES)}
        if self.folder is not None:
            env["MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"] = str(self.folder)
        if self.variant.name == "original":  # as small and as often as it can: it writes nothing before a bucket is full
            env.update({"MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": "1", "MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES": str(4 * BLOCK_BYTES),
                        "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT": "4"})  # fmt: skip
        super().__init__(f"node-{self.label}", command, env)
        self.wait_for(lambda: answers(f"http://127.0.0.1:{self.metrics_port}/metrics", 5), 60, "answer at /metrics")

    def read_blocks(self):
        """From its disk, since it was started."""
        return e2e_client.counter(self.metrics_port, "mooncake_ssd_read_bytes_total") / BLOCK_BYTES


class Site(Pair):
    """Two servers that lend nothing, and the node that does."""

    def __init__(self, name):
        self.case, self.node, variant = name, None, name.split()[0]
        self.has_disk = variant != "none" and "without" not in name
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="disk-", dir=FOLDER)) if self.has_disk else None
        label = "disk-" + name.replace(" ", "-")
        super().__init__(variant, label=label, master_flags=["--enable_offload=true"] if self.has_disk else [], segment_bytes=0)
        try:
            self.node = Node(self.variant, self.master, self.folder, label) if self.variant else None
        except BaseException:
            self.stop()
            raise

    def settle(self):
        """Saving is background work: until nothing more comes to the master, and none to the disk."""
        if not self.master:
            return
        port, until = self.master.metrics_port, time.monotonic() + QUIET_SECONDS_MAX
        seen, since = None, 0.0
        while time.monotonic() < until and (seen is None or time.monotonic() - since < QUIET_SECONDS):
            now = [e2e_client.counter(port, name) for name in ("master_key_count", "file_cache_nums_")]
            if now != seen:
                seen, since = now, time.monotonic()
            time.sleep(0.2)
        say(f"{self.case}: {seen[0]:.0f} keys, {seen[1]:.0f} on the disk")

    def again(self):
        """Both servers and the node end as an operator ends them, and others come in their place."""
        for server in (*self.engines, *([self.node] if self.node else [])):
            server.stop()
        if self.node:
            self.node.start()
        transfer = connector("MooncakeStoreConnector", "kv_both") if self.variant else None
        self.engines = [Engine(engine.number, self.variant, self.master, transfer, label=self.name, segment_bytes=0, port=engine.port) for engine in self.engines]
        self.wait()

    def stop(self):
        super().stop()
        if self.node:
            self.node.stop()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


class Course:
    """The turns of one case."""

    def __init__(self, site, turns):
        self.site, self.histories = site, [[] for _ in range(CONVERSATIONS)]
        self.first_seconds, self.taken, self.wanted, self.read_blocks, self.witnesses = [], [], [], [], []
        for turn in range(turns):
            if turn > 0:
                self.site.settle()
                self.site.again()
                self._ask_witness(turn)
            self._turn(turn)
            self._see_witness(turn)
            self.read_blocks.append(site.node.read_blocks() if site.node else 0)

    def _turn(self, turn):
        seconds, taken, wanted = [], 0, 0
        for number, history in enumerate(self.histories):
            wanted += self._saved(history)
            history += e2e_client.prompt(f"disk {number} {turn}", NEW_TOKENS)
            answer, more = e2e_client.counted(self.site.engines[(number + turn) % 2].port, history, ANSWER_TOKENS)
            seconds.append(answer.first_seconds)
            taken += more
            history += answer.tokens
        self.first_seconds.append(seconds)
        self.taken.append(taken)
        self.wanted.append(wanted)
        say(f"{self.site.case}, turn {turn + 1}: TTFT {statistics.mean(seconds):.3f} s, {taken:.0f} of {wanted} tokens from the store")

    @staticmethod
    def _saved(history):
        """What an earlier turn can have saved of it: the whole blocks of its prompt."""
        return max(0, len(history) - ANSWER_TOKENS) // BLOCK_TOKENS * BLOCK_TOKENS

    def _see_witness(self, turn):
        """A prompt whose answer is known from instance 0's own blocks."""
        self.witness = e2e_client.prompt(f"witness {turn}", WITNESS_BLOCKS * BLOCK_TOKENS + 64)
        for _ in range(2):
            self.known = e2e_client.complete(self.site.engines[0].port, self.witness, ANSWER_TOKENS)

    def _ask_witness(self, turn):
        """After the restart, on instance 1, before anything else was loaded."""
        answer, taken = e2e_client.counted(self.site.engines[1].port, self.witness, ANSWER_TOKENS)
        blocks = self.site.node.read_blocks() if self.site.node else 0
        self.witnesses.append((taken, blocks, same_answer(self.known, answer)))


def report(result, name, course):
    for turn, seconds in enumerate(course.first_seconds):
        result.row(f"{name}, turn {turn + 1}: TTFT, min/median/max s", spread(seconds))
    again = len(course.taken) - 1
    result.row(f"{name}: tokens taken after {again} restart(s)", f"{sum(course.taken[1:]):.0f} of {sum(course.wanted[1:])}")
    if course.site.node:
        result.row(f"{name}: tokens read from the disk after the restart, with the witness", " + ".join(f"{blocks * BLOCK_TOKENS:.0f}" for blocks in course.read_blocks[1:]))
    if course.site.has_disk:
        whole = WITNESS_BLOCKS * BLOCK_TOKENS
        result.check(f"{name}: all that was saved is taken from the disk after a restart", course.taken[1:] == course.wanted[1:], f"{course.taken[1:]} of {course.wanted[1:]} tokens")
        result.check(f"{name}: and read there", all(blocks * BLOCK_TOKENS >= wanted + whole for blocks, wanted in zip(course.read_blocks[1:], course.wanted[1:])),
                     f"{course.read_blocks[1:]} blocks of {BLOCK_TOKENS} tokens")
        result.check(f"{name}: tokens and logprobs from the disk equal those of a local hit", all(same and taken == whole for taken, _, same in course.witnesses),
                     f"{[(int(taken), same) for taken, _, same in course.witnesses]}, {whole} tokens each")


def disk(options):
    result, after = Result(), {}
    cases = [case for name in options.variants for case in ([name, "ours without a disk"] if name == "ours" else [name])]
    for name in cases:
        try:
            with Site(name) as site:
                site.wait()
                course = Course(site, 2 if options.quick else 3)
                report(result, name, course)
        except RuntimeError as error:
            result.check(f"{name}: runs to its end", False, str(error)[-600:])
            continue
        after[name] = [one for seconds in course.first_seconds[1:] for one in seconds]
        result.data[name] = {"first_seconds": course.first_seconds, "taken": course.taken, "wanted": course.wanted, "read_blocks": course.read_blocks}
    for name, seconds in after.items():
        result.row(f"{name}: mean TTFT after a restart, s", f"{statistics.mean(seconds):.3f}")
    for other in ("none", "ours without a disk"):
        if "ours" in after and other in after:
            result.check(f"ours: first token sooner after a restart than with {other}", statistics.mean(after["ours"]) < statistics.mean(after[other]),
                         f"{statistics.mean(after['ours']):.3f} s against {statistics.mean(after[other]):.3f} s")
    return result
