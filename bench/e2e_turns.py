"""KEP-74's experiment in small: several clients, each with a conversation of five turns of 512 new tokens, and every turn on the other instance.

Each round runs every variant (no store, ours, the original) once, in an order that rotates, with prompts that nobody has seen. It is done with
little local KV space, of which a conversation's last turn takes half, and with ample, so that only the change of the instance costs.
"""

import contextlib
import dataclasses
import http.client
import statistics
import threading
import time

import e2e_client
import figures as statistics_of
from e2e_parts import Result, spread
from e2e_servers import BLOCK_BYTES, CONTEXT_TOKENS, BLOCK_TOKENS, MIB, Pair, say

TURNS = 5
NEW_TOKENS = 512
ANSWER_TOKENS = 32
LIMITED_BYTES = (CONTEXT_TOKENS // BLOCK_TOKENS + 10) * BLOCK_BYTES
KV_BYTES = {"limited": LIMITED_BYTES, "ample": 512 * MIB}
SEGMENT_BYTES = 512 * MIB
SETTLE_SECONDS = 0.5
SLOWDOWN_MAX = 1.05  # of the first turn, by saving
PAIR_BYTES = 7 << 29  # what two engines take at most


@dataclasses.dataclass
class Sample:
    client: int
    turn: int
    answer: e2e_client.Answer


class Round:
    """All conversations of one variant, at the same time."""

    def __init__(self, pair, seed, clients):
        self.pair, self.seed = pair, seed
        self.samples, self.errors = [], []
        self.cpu_seconds = [self._cpu()]
        self.first_turn = threading.Barrier(clients, self._first_turn_done)
        start = time.perf_counter()
        threads = [threading.Thread(target=self._run, args=(client,)) for client in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.seconds = time.perf_counter() - start - SETTLE_SECONDS
        self.cpu_seconds.append(self._cpu())
        if len({sample.turn for sample in self.samples}) < TURNS:
            raise RuntimeError(f"{pair.name}: {self.errors[0]}")

    def _cpu(self):
        return sum(engine.cpu_seconds() for engine in self.pair.engines)

    def _first_turn_done(self):
        time.sleep(SETTLE_SECONDS)  # what is saved in the background belongs to it
        self.cpu_seconds.append(self._cpu())

    def _run(self, client):
        """A request that fails is counted, and the conversation goes on without that answer."""
        history = []
        for turn in range(TURNS):
            history += e2e_client.prompt(f"{self.seed} {client} {turn}", NEW_TOKENS)
            try:
                answer = e2e_client.complete(self.pair.engines[(client + turn) % 2].port, history, ANSWER_TOKENS)
            except (OSError, RuntimeError, ValueError, http.client.HTTPException) as error:
                say(f"{self.pair.name}: client {client}, turn {turn + 1} failed: {error}")
                self.errors.append(error)
            else:
                history += answer.tokens
                self.samples.append(Sample(client, turn, answer))
            if turn == 0:
                self.first_turn.wait(2 * e2e_client.REQUEST_SECONDS_MAX)

    def figures(self):
        answers = [sample.answer for sample in self.samples]
        first = [answer.first_seconds for answer in answers]
        given = sum(answer.prompt_tokens for answer in answers)
        between = [gap for answer in answers for gap in answer.token_seconds]
        turn_means = [statistics.mean(s.answer.first_seconds for s in self.samples if s.turn == turn) for turn in range(TURNS)]
        return {
            "ttft_mean_s": statistics.mean(first),
            "ttft_p90_s": statistics.quantiles(first, n=10, method="inclusive")[-1],
            "between_tokens_s": statistics.mean(between),
            "input_tokens_per_s": given / self.seconds,
            "tokens_per_s": (given + sum(len(answer.logprobs) for answer in answers)) / self.seconds,
            "cached_share": sum(answer.cached_tokens for answer in answers) / given,
            "first_turn_ttft_s": turn_means[0],
            "first_turn_s": statistics.mean(s.answer.seconds for s in self.samples if s.turn == 0),
            "ttft_by_turn_s": turn_means,
            "first_turn_cpu_s": self.cpu_seconds[1] - self.cpu_seconds[0],
            "cpu_s": self.cpu_seconds[2] - self.cpu_seconds[0],
            "failed_requests": len(self.errors),
        }


TITLES = {
    "ttft_mean_s": ("TTFT mean, s", 3),
    "ttft_p90_s": ("TTFT P90, s", 3),
    "between_tokens_s": ("between tokens, mean, s", 4),
    "input_tokens_per_s": ("input tokens/s", 0),
    "tokens_per_s": ("all tokens/s", 0),
    "cached_share": ("share of cached tokens", 3),
    "first_turn_ttft_s": ("first turn, TTFT mean, s", 3),
    "first_turn_s": ("first turn, whole answer, s", 3),
    "first_turn_cpu_s": ("first turn, CPU of the engines, s", 3),
    "cpu_s": ("all turns, CPU of the engines, s", 2),
    "failed_requests": ("failed requests", 0),
}


def available_bytes():
    with open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


@contextlib.contextmanager
def pairs_for(options, kv):
    """A function that gives the running pair of a variant. All stay up if the memory allows it; else each is started for its turn."""
    running = {}
    keep = available_bytes() > PAIR_BYTES * len(options.variants) + (2 << 30)

    def get(name):
        if not keep:
            for other in list(running):
                running.pop(other).stop()
        if name not in running:
            running[name] = Pair(name, label=f"turns-{kv}-{name}", kv_bytes=KV_BYTES[kv], segment_bytes=SEGMENT_BYTES)
            running[name].wait()
        return running[name]

    try:
        if keep:
            for name in options.variants:
                get(name)
        yield get
    finally:
        for pair in running.values():
            pair.stop()


def measure(options, kv):
    """Figures of each round by variant."""
    rounds = {name: [] for name in options.variants}
    with pairs_for(options, kv) as get:
        for number in range(options.rounds):
            turn = number % len(options.variants)
            for name in options.variants[turn:] + options.variants[:turn]:
                done = Round(get(name), f"turns {kv} {number} {time.time_ns()}", options.clients)
                rounds[name].append(done.figures())
                figures = rounds[name][-1]
                say(f"round {number + 1}/{options.rounds}, {kv} KV, {name}: {done.seconds:.0f} s, TTFT {figures['ttft_mean_s']:.2f} s, "
                    f"cached {figures['cached_share']:.0%}, first turn {figures['first_turn_ttft_s']:.2f} s")
    return rounds


def ratios(rounds, name, base, key):
    return [mine[key] / other[key] for mine, other in zip(rounds[name], rounds[base])]


def report(result, kv, rounds):
    for key, (title, digits) in TITLES.items():
        for name, figures in rounds.items():
            result.row(f"{kv} KV, {title}, {name}", spread([one[key] for one in figures], digits))
    for name in rounds:
        if name != "none" and "none" in rounds:
            result.row(f"{kv} KV, {name} against no store: mean TTFT x less", spread([1 / value for value in ratios(rounds, name, "none", "ttft_mean_s")], 2))
            result.row(f"{kv} KV, {name} against no store: input throughput x", spread(ratios(rounds, name, "none", "input_tokens_per_s"), 2))
            result.row(f"{kv} KV, {name} against no store: first turn's TTFT x", spread(ratios(rounds, name, "none", "first_turn_ttft_s"), 3))
            result.row(f"{kv} KV, {name} against no store: first turn's CPU x", spread(ratios(rounds, name, "none", "first_turn_cpu_s"), 3))
    if "ours" in rounds and "none" in rounds:
        slower = statistics.median(ratios(rounds, "ours", "none", "first_turn_ttft_s"))
        result.bar(f"{kv} KV: saving slows the first turn by at most 5 %", slower <= SLOWDOWN_MAX, f"x{slower:.3f}, median of {len(rounds['ours'])}")
        failed = sum(one["failed_requests"] for one in rounds["ours"])
        result.check(f"{kv} KV: no request fails", failed == 0, f"{failed} failed")
        share = statistics.median(one["cached_share"] for one in rounds["ours"])
        plain = statistics.median(one["cached_share"] for one in rounds["none"])
        for other in ("none", "original"):
            for key, title, lower in (("ttft_mean_s", "mean TTFT", True), ("input_tokens_per_s", "throughput", False)):
                if other in rounds:
                    values = [[one[key] for one in rounds[name]] for name in ("ours", other)]
                    result.better(f"{kv} KV: ours better than {'no store' if other == 'none' else 'the original'} in {title}", statistics_of.times_as_good(lower, *values))
        result.check(f"{kv} KV: the store gives cached tokens that no instance has", share > plain, f"{share:.1%} against {plain:.1%}")


COLOURS = {"none": "#888888", "ours": "#1464c8", "original": "#d2641e"}


def plot(path, kv, rounds):
    """Mean TTFT by turn: a line through the medians, a bar from the least to the most of the rounds."""
    width, height, left, bottom = 640, 400, 60, 50
    top = max(max(one["ttft_by_turn_s"]) for figures in rounds.values() for one in figures) * 1.1

    def x_of(turn):
        return left + (turn + 0.5) * (width - left - 20) / TURNS

    def y_of(value):
        return height - bottom - value / top * (height - bottom - 40)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/><text x="{left}" y="20">mean time to the first token by turn, s; {kv} local KV</text>',
             f'<path d="M{left} 40V{height - bottom}H{width - 20}" fill="none" stroke="black"/>']
    for step in range(5):
        value = top * step / 4
        parts.append(f'<text x="{left - 6}" y="{y_of(value) + 4:.0f}" text-anchor="end">{value:.1f}</text>')
    parts += [f'<text x="{x_of(turn):.0f}" y="{height - bottom + 18}" text-anchor="middle">turn {turn + 1}</text>' for turn in range(TURNS)]
    for number, (name, figures) in enumerate(rounds.items()):
        colour = COLOURS[name]
        columns = [[one["ttft_by_turn_s"][turn] for one in figures] for turn in range(TURNS)]
        points = " ".join(f"{x_of(turn):.1f},{y_of(statistics.median(values)):.1f}" for turn, values in enumerate(columns))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<path d="M{x_of(turn) + number * 3 - 3:.1f} {y_of(min(values)):.1f}V{y_of(max(values)):.1f}" stroke="{colour}"/>'
                  for turn, values in enumerate(columns)]
        parts.append(f'<text x="{left + 10 + 110 * number}" y="{height - 12}" fill="{colour}">{name}</text>')
    path.write_text("\n".join([*parts, "</svg>", ""]))


def by_turn(result, kv, rounds):
    for name, figures in rounds.items():
        medians = [statistics.median(one["ttft_by_turn_s"][turn] for one in figures) for turn in range(TURNS)]
        result.row(f"{kv} KV, TTFT by turn, {name}", "  ".join(f"{value:.2f}" for value in medians))


def turns(options):
    result = Result()
    for kv in options.kv:
        rounds = measure(options, kv)
        report(result, kv, rounds)
        by_turn(result, kv, rounds)
        path = options.folder / f"turns-{kv}.svg"
        plot(path, kv, rounds)
        result.row(f"{kv} KV, plot", path)
        result.data[kv] = rounds
    return result
