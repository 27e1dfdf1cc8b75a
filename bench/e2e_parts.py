"""What one request, or a few, must show: the same prompt on the other instance, prefill and decode apart, LMCache, a server that is killed.

Each part returns {"checks": [(text, passed, facts)], "bars": [(text, reached, facts)], "rows": [(title, value)], "data": {}}.
"""

import http.client
import json
import re
import statistics
import threading
import time

import e2e_client
import figures
from e2e_servers import BLOCK_TOKENS, MIB, Engine, Master, Pair, Proxy, Redis, Variant, connector, free_port, lmcache_path, say

PROMPT_BLOCKS = 16
PROMPT_TOKENS = PROMPT_BLOCKS * BLOCK_TOKENS + 64  # the last block is not full and must be computed
ANSWER_TOKENS = 16


class Result:
    def __init__(self):
        self.checks, self.bars, self.rows, self.data = [], [], [], {}

    def check(self, text, passed, facts=""):
        """What the original does is told, not judged."""
        if text.startswith("original"):
            self.row(text, f"{'yes' if passed else 'NO'}; {facts}")
            return
        self.checks.append((text, bool(passed), str(facts)))
        say(f"{'ok  ' if passed else 'FAIL'} {text}: {facts}")

    def bar(self, text, reached, facts):
        """A figure that was aimed at. One that is missed is reported, and the run may be quoted all the same."""
        self.bars.append((text, bool(reached), str(facts)))
        say(f"{'ok  ' if reached else 'MISS'} {text}: {facts}")

    def better(self, text, ratios, least=1.0):
        """By ratios of the rounds, each as many times as good: surely more than `least`, so the spread is smaller than the difference."""
        sure = figures.surely(ratios)
        if sure is None:
            self.row(f"{text} (too few rounds to say it)", spread(ratios, 2))
            return
        self.bar(text, sure[0] > least, f"x{spread(ratios, 2)} of {len(ratios)} rounds; its median surely between {sure[0]:.3f} and {sure[1]:.3f}")

    def row(self, title, value):
        self.rows.append((title, str(value)))
        say(f"     {title}: {value}")

    def as_json(self):
        return {"checks": self.checks, "bars": self.bars, "rows": self.rows, "data": self.data}


def spread(values, digits=3):
    return f"{min(values):.{digits}f} / {statistics.median(values):.{digits}f} / {max(values):.{digits}f}"


def ask_both(first, second, master, seed, keys):
    """Cold on one instance, again there (a local hit), then on the other one. Returns the three answers and how many tokens came from the store."""
    tokens = e2e_client.prompt(seed, PROMPT_TOKENS)
    cold = e2e_client.complete(first.port, tokens, ANSWER_TOKENS)
    master.wait_for_keys(keys)
    local = e2e_client.complete(first.port, tokens, ANSWER_TOKENS)
    return cold, local, *e2e_client.counted(second.port, tokens, ANSWER_TOKENS)


def same_answer(left, right):
    return left.tokens == right.tokens and left.logprobs == right.logprobs


def same_prompt(options):
    """The same prompt on both instances; then with wrong bits in what was loaded."""
    result = Result()
    for name in options.stores:
        with Pair(name, label=f"same-{name}") as pair:
            pair.wait()
            colds, hits, keys = [], [], pair.master.keys()
            for number in range(options.rounds):
                keys += PROMPT_BLOCKS
                cold, local, other, taken = ask_both(*pair.engines, pair.master, f"same {name} {number}", keys)
                colds.append(cold.first_seconds)
                hits.append(other.first_seconds)
                result.check(f"{name}: every full block comes from the store", taken == PROMPT_BLOCKS * BLOCK_TOKENS,
                             f"{taken:.0f} of {PROMPT_BLOCKS * BLOCK_TOKENS} tokens by vLLM's counter")
                result.check(f"{name}: first token in less than half the cold time", other.first_seconds < cold.first_seconds / 2,
                             f"cold {cold.first_seconds:.3f} s, other instance {other.first_seconds:.3f} s, local hit {local.first_seconds:.3f} s")
                result.check(f"{name}: tokens and logprobs equal those of a local hit", same_answer(local, other), f"{ANSWER_TOKENS} tokens")
            result.row(f"{name}: cold, min/median/max s", spread(colds))
            result.row(f"{name}: other instance, min/median/max s", spread(hits))
            if name == "ours":
                flipped(result, pair)
    return result


def flipped(result, pair):
    """The negative control: instance 1 is started again with a shim that flips a bit in each loaded block."""
    say("negative control: instance 1 again, with a bit flipped in each loaded block")
    pair.engines[1].stop()
    flipping = Engine(1, pair.variant, pair.master, connector("MooncakeStoreConnector", "kv_both"), patch="e2e_flip", label="flip")
    pair.engines[1] = flipping
    flipping.wait()
    _, local, other, taken = ask_both(*pair.engines, pair.master, "flipped", pair.master.keys() + PROMPT_BLOCKS)
    worst = max(abs(left - right) for left, right in zip(local.logprobs, other.logprobs))
    result.check("control: a flipped bit per block makes the comparison fail", taken > 0 and not same_answer(local, other),
                 f"{taken:.0f} tokens loaded; largest difference of a logprob {worst:.4f}")


# ---- prefill and decode apart ----

PD_PROMPT_TOKENS = 8 * BLOCK_TOKENS + 64
PD_ANSWER_TOKENS = 208  # two more blocks become full while decode writes


def prefill_decode(options):
    result = Result()
    for name in options.stores:
        pd_store(result, name, options.rounds)
    for name in options.stores:
        pd_direct(result, name)
    return result


def pd_store(result, name, rounds):
    """kv_producer and kv_consumer behind the proxy, meeting in the store; and the next turn of a conversation."""
    transfers = [connector("MooncakeStoreConnector", "kv_producer"), connector("MooncakeStoreConnector", "kv_consumer", save_decode_cache=True)]
    with Pair(name, transfers, label=f"pd-{name}") as pair:
        pair.wait()
        prefill, decode = pair.engines
        proxy = Proxy("--mode", "store", "--prefill", f"127.0.0.1:{prefill.port}", "--decode", f"127.0.0.1:{decode.port}")
        try:
            for number in range(rounds):
                pd_conversation(result, f"{name}, round {number + 1}", pair, proxy)
        finally:
            proxy.stop()


def pd_conversation(result, name, pair, proxy):
    prefill, decode = pair.engines
    history = e2e_client.prompt(f"pd {name}", PD_PROMPT_TOKENS)
    keys = pair.master.keys()
    answer, taken = e2e_client.counted(proxy.port, history, PD_ANSWER_TOKENS, decode.port)
    result.check(f"{name}: decode takes the prompt from the store", taken > 0,
                 f"{taken:.0f} of {PD_PROMPT_TOKENS // BLOCK_TOKENS * BLOCK_TOKENS} tokens; first token after {answer.first_seconds:.3f} s")
    saved = (PD_PROMPT_TOKENS + PD_ANSWER_TOKENS - 1) // BLOCK_TOKENS
    pair.master.wait_for_keys(keys + saved)
    history += answer.tokens + e2e_client.prompt(f"pd {name} 2", BLOCK_TOKENS)
    answer, taken = e2e_client.counted(proxy.port, history, ANSWER_TOKENS, prefill.port)
    wanted = (saved - PD_PROMPT_TOKENS // BLOCK_TOKENS) * BLOCK_TOKENS
    result.check(f"{name}: prefill reads what decode saved in the last turn", taken == wanted, f"{taken:.0f} of {wanted} tokens")


def pd_direct(result, name):
    """vLLM's MooncakeConnector: from one engine's memory into the other's."""
    variant = Variant(name)
    if not variant.has("engine"):
        result.row(f"{name}: MooncakeConnector", "not run: this build has no mooncake.engine")
        return
    bootstrap = free_port()
    env = {"VLLM_MOONCAKE_BOOTSTRAP_PORT": str(bootstrap)}
    engines = []
    try:
        for number, role in enumerate(("kv_producer", "kv_consumer")):
            transfer = connector("MooncakeConnector", role, mooncake_protocol="tcp")
            engines.append(Engine(number, variant, None, transfer, env=env, label=f"direct-{name}"))
        for engine in engines:
            engine.wait(warm=False)
        proxy = Proxy("--prefill", f"http://127.0.0.1:{engines[0].port}", bootstrap, "--decode", f"http://127.0.0.1:{engines[1].port}")
        try:
            answer = e2e_client.complete(proxy.port, e2e_client.prompt(f"direct {name}", PD_PROMPT_TOKENS), ANSWER_TOKENS)
            result.row(f"{name}: MooncakeConnector", f"first token after {answer.first_seconds:.3f} s")
        finally:
            proxy.stop()
    except RuntimeError as error:
        result.row(f"{name}: MooncakeConnector cannot run on CPU", last_error(engines) or error)
    finally:
        for engine in engines:
            engine.stop(5)


def last_error(engines):
    """The first exception that a log names: what comes later only passes it on."""
    for engine in engines:
        text = engine.log.read_text(errors="replace")
        match = re.search(r"\b((?:Runtime|Import|Attribute|Assertion|NotImplemented|Value|Type|Key|ModuleNotFound)Error: .*)", text)
        if match:
            return f"{match.group(1)[:300]} ({engine.log.name})"
    return ""


# ---- LMCache ----

LMCACHE_CHUNK = 256
LMCACHE_SETTLE_SECONDS = 2  # it stores in the background and does not say when it is done


def lmcache_config(folder, name, remote, extra):
    """The YAML of LMCache's guide for Mooncake, with our addresses and smaller memories."""
    lines = [f"chunk_size: {LMCACHE_CHUNK}", 'local_device: "cpu"', f'remote_url: "{remote}"', 'remote_serde: "naive"', "pipelined_backend: False",
             "local_cpu: False", "max_local_cpu_size: 1"]  # fmt: skip
    if extra:
        lines += ["", "extra_config:", *(f"  {key}: {json.dumps(value)}" for key, value in extra.items())]
    path = folder / f"lmcache-{name}.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


class LmcachePair:
    """Two engines with LMCache, and what it stores into: Redis, ours or the original."""

    def __init__(self, options, name):
        self.name, self.engines, self.samples = name, [], []
        metadata = free_port()
        # The original's Python package has no server of that kind without etcd but its master's own.
        self.server = Redis() if name == "redis" else Master(Variant(name), "--enable_http_metadata_server=true", f"--http_metadata_server_port={metadata}",
                                                             label=f"lmcache-{name}")  # fmt: skip
        try:
            remote, extra = f"redis://127.0.0.1:{self.server.port}", {}
            if name != "redis":
                remote = f"mooncakestore://{self.server.address}/"
                extra = {"local_hostname": "localhost", "metadata_server": f"http://127.0.0.1:{metadata}/metadata", "protocol": "tcp",
                         "master_server_address": self.server.address, "global_segment_size": 512 * MIB, "local_buffer_size": 64 * MIB, "transfer_timeout": 1}  # fmt: skip
            if name == "original":  # this wheel's setup knows another name for it than the guide's, and asks 127.0.0.1:50051 without it
                extra["mooncake_master_server_addr"] = self.server.address
            env = {"LMCACHE_CONFIG_FILE": str(lmcache_config(options.folder, name, remote, extra)), "LMCACHE_USE_EXPERIMENTAL": "True"}
            variant = Variant("original" if name == "original" else "ours")
            for number in range(2):
                self.engines.append(Engine(number, variant, None, connector("LMCacheConnectorV1", "kv_both"), env=env,
                                           patch="e2e_lmcache", paths=[lmcache_path()], label=f"lmcache-{name}"))  # fmt: skip
        except BaseException:
            self.stop()
            raise

    def wait(self):
        for engine in self.engines:
            engine.wait()

    def ask(self, number):
        """One prompt that nobody has seen, on one engine and then on the other."""
        tokens = e2e_client.prompt(f"lmcache {self.name} {number}", PROMPT_TOKENS)
        cold = e2e_client.complete(self.engines[0].port, tokens, ANSWER_TOKENS)
        time.sleep(LMCACHE_SETTLE_SECONDS)
        answer, taken = e2e_client.counted(self.engines[1].port, tokens, ANSWER_TOKENS)
        self.samples.append({"cold_ttft_s": cold.first_seconds, "ttft_s": answer.first_seconds, "taken": taken,
                             "tokens_per_s": (answer.prompt_tokens + ANSWER_TOKENS) / answer.seconds})  # fmt: skip

    def stop(self):
        for server in (*self.engines, self.server):
            server.stop()


def lmcache(options):
    """The vLLM guide's experiment: each round asks every store once, in an order that rotates."""
    result, pairs = Result(), {}
    try:
        for name in ["redis", *options.stores]:
            try:
                pair = LmcachePair(options, name)
                pairs[name] = pair
                pair.wait()
            except RuntimeError as error:
                pairs.pop(name).stop() if name in pairs else None
                result.check(f"{name}: LMCache runs", False, str(error)[-600:])
        for number in range(max(3, options.rounds)):
            turn = number % len(pairs)
            for name in [*list(pairs)[turn:], *list(pairs)[:turn]]:
                pairs[name].ask(number)
    finally:
        for pair in pairs.values():
            pair.stop()
    lmcache_report(result, {name: pair.samples for name, pair in pairs.items()})
    return result


def lmcache_report(result, rounds):
    whole = PROMPT_TOKENS // LMCACHE_CHUNK * LMCACHE_CHUNK
    for name, samples in rounds.items():
        result.check(f"{name}: every whole chunk comes from the store by LMCache", min(one["taken"] for one in samples) == whole,
                     f"{min(one['taken'] for one in samples):.0f} of {whole} tokens")  # fmt: skip
        for key, title, digits in (("cold_ttft_s", "TTFT, cold, s", 3), ("ttft_s", "TTFT on the other instance, s", 3), ("tokens_per_s", "tokens/s there", 0)):
            result.row(f"LMCache on {name}: {title}", spread([one[key] for one in samples], digits))
    for other in ("original", "redis"):
        if "ours" in rounds and other in rounds:
            for key, title, lower in (("ttft_s", "TTFT", True), ("tokens_per_s", "throughput", False)):
                values = [[one[key] for one in rounds[name]] for name in ("ours", other)]
                result.better(f"LMCache: ours better than {other} in {title} on the other instance", figures.times_as_good(lower, *values))
    result.data = rounds


# ---- a server that is killed ----


class Traffic(threading.Thread):
    """One request after the other to one engine: half of them prompts that the other engine has too."""

    def __init__(self, engine, seed):
        super().__init__()
        self.port, self.seed = engine.port, seed
        self.done, self.errors, self.ending = [], [], threading.Event()

    def run(self):
        number = 0
        while not self.ending.is_set():
            seed = f"kill shared {number // 2}" if number % 2 else f"kill {self.seed} {number}"
            try:
                e2e_client.complete(self.port, e2e_client.prompt(seed, 4 * BLOCK_TOKENS + 32), 8, 120)
                self.done.append(time.monotonic())
            except (OSError, RuntimeError, http.client.HTTPException) as error:
                self.errors.append((time.monotonic(), repr(error)[:200]))
                self.ending.wait(0.5)
            number += 1


def kill(options):
    """Instance 0 is killed while both answer; instance 1 must not feel it, and 0 comes back on its port."""
    result = Result()
    with Pair("ours", label="kill") as pair:
        pair.wait()
        master_pid = pair.master.pid
        traffic = [Traffic(engine, engine.number) for engine in pair.engines]
        for thread in traffic:
            thread.start()
        try:
            time.sleep(20 if options.quick else 40)
            killed = time.monotonic()
            pair.engines[0].kill()
            say("instance 0 killed")
            port = pair.engines[0].port
            pair.engines[0] = Engine(0, pair.variant, pair.master, connector("MooncakeStoreConnector", "kv_both"), label="kill-again", port=port)
            pair.engines[0].wait(warm=False)
            back = time.monotonic()
            while not any(when > back for when in traffic[0].done) and time.monotonic() - back < 120:
                time.sleep(0.5)
        finally:
            for thread in traffic:
                thread.ending.set()
            for thread in traffic:
                thread.join()
        kill_report(result, pair, traffic, killed, master_pid)
    return result


def kill_report(result, pair, traffic, killed, master_pid):
    other = traffic[1]
    after = [when for when in other.done if when > killed]
    gaps = [right - left for left, right in zip([killed, *after], after)]
    result.check("kill: the other instance goes on", after and not other.errors,
                 f"{len(after)} answers after the kill, {len(other.errors)} errors {other.errors[:1]}, longest gap {max(gaps, default=0):.1f} s")
    result.check("kill: the first comes back under its name", any(when > killed for when in traffic[0].done), f"port {traffic[0].port}")
    result.check("kill: the master is not touched", pair.master.child.poll() is None and pair.master.pid == master_pid, f"pid {master_pid}")
    tokens = e2e_client.prompt("after the kill", PROMPT_TOKENS)
    keys = pair.master.keys() + PROMPT_BLOCKS
    e2e_client.complete(pair.engines[1].port, tokens, ANSWER_TOKENS)
    pair.master.wait_for_keys(keys)
    _, taken = e2e_client.counted(pair.engines[0].port, tokens, ANSWER_TOKENS)
    result.check("kill: the first takes blocks from the store again", taken == PROMPT_BLOCKS * BLOCK_TOKENS, f"{taken:.0f} tokens")
