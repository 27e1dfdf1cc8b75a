"""Instances that say nothing, or not in time, and a proxy that lacks something itself: who is taken for dead, and what its requests come to."""
import http.client
import json
import signal
import socket
import threading
import time

import pytest

from cluster import SANITIZED, wait_until
from proxy_engines import PROXY, EngineProcess, Proxy
from test_proxy import STREAM, engines  # noqa: F401

SILENCE_MAX_S = 10


def state_of(proxy, engine):
    return next(one["state"] for one in proxy.status()["instances"] if one["instance"] == engine.address)


def all_up(proxy):
    wait_until(lambda: all(one["usable"] and one["state"] == "up" for one in proxy.status()["instances"]), what="all instances")


def p99(values):
    return sorted(values)[int(len(values) * 0.99)]


class Traffic:
    """Clients that ask for streams, one after the other, from whichever instance takes them: (began, ended, engine or None, whole) of each."""

    def __init__(self, proxy, clients):
        self.proxy, self.done, self.ends = proxy, [], False
        self.threads = [threading.Thread(target=self.run) for _ in range(clients)]
        for one in self.threads:
            one.start()

    def run(self):
        while not self.ends:
            began, name, whole = time.monotonic(), None, False
            try:
                connection, reply = self.proxy.stream(STREAM, timeout_s=60)
                while line := reply.readline():
                    if line.startswith(b"data: {"):
                        name = json.loads(line[6:])["engine"]
                    whole = whole or line.startswith(b"data: [DONE]")
            except (OSError, http.client.HTTPException):
                pass
            connection.close()
            self.done.append((began, time.monotonic(), name, whole))

    def stop(self):
        self.ends = True
        for one in self.threads:
            one.join()


def test_a_stopped_decode_instance_ends_its_requests_and_no_others(engines):  # noqa: F811
    """With the flags' defaults, but for the interval of the checks, which a test may only make worse."""
    with EngineProcess("a", tokens=20, delay_s=0.02) as first, EngineProcess("b", tokens=20, delay_s=0.02) as second, \
            Proxy("--decode", first.address, second.address, "--health_interval=5s") as proxy:
        all_up(proxy)
        traffic = Traffic(proxy, 12)
        time.sleep(4)
        first.process.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        time.sleep(SILENCE_MAX_S + 4)
        traffic.stop()
        before = [end - begin for begin, end, name, whole in traffic.done if name == "b" and end < stopped]
        after = [end - begin for begin, end, name, whole in traffic.done if name == "b" and begin >= stopped]
        assert all(whole for begin, end, name, whole in traffic.done if name == "b")
        harmed = [(begin - stopped, end - stopped) for begin, end, name, whole in traffic.done if not whole]
        assert harmed and max(end for _, end in harmed) < SILENCE_MAX_S, harmed
        assert max(begin for begin, _ in harmed) < 4, f"others are preferred to one that is late: {harmed}"
        assert len(before) > 20 and len(after) > 20
        print(f"p99 {p99(before):.3f} s before, {p99(after):.3f} s after; {len(harmed)} requests ended after at most {max(end for _, end in harmed):.1f} s")
        assert SANITIZED or p99(after) < 2 * p99(before) + 0.1
        first.process.send_signal(signal.SIGCONT)
        wait_until(lambda: state_of(proxy, first) == "up", 30, "the return of the one that was stopped")


def remove(proxy, engine):
    status, _, body = proxy.post("/instances/remove", {"type": "decode", "instance": engine.address}, {"X-API-Key": "secret"})
    assert status == 200, body


@pytest.mark.parametrize("under_check", [False, True])
def test_removing_a_stopped_instance_ends_its_requests(under_check):
    """A controller removes what does not answer; its kernel still does."""
    with EngineProcess("a", tokens=400, delay_s=0.05) as engine, \
            Proxy("--decode", engine.address, "--health_interval=5s", environment={"ADMIN_API_KEY": "secret"}) as proxy:
        all_up(proxy)
        connection, reply = proxy.stream(STREAM, timeout_s=15)
        assert reply.readline().startswith(b"data: {")
        engine.process.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        time.sleep(5 if under_check else 0)
        remove(proxy, engine)
        with pytest.raises(ConnectionResetError):
            reply.read()
        assert time.monotonic() - stopped < SILENCE_MAX_S
        connection.close()
        wait_until(lambda: proxy.metrics()["mooncake_proxy_requests_running"] == 0)
        assert not proxy.status()["instances"]


def test_a_removed_instance_that_takes_nothing_new_ends_what_it_has(engines):  # noqa: F811
    """As an engine that is told to end: it says 503, and what it computes says nothing until it is done."""
    decode = engines("d", tokens=100, delay_s=0.05)
    with Proxy("--decode", decode.address, "--dead_timeout=500ms", environment={"ADMIN_API_KEY": "secret"}) as proxy:
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(proxy.post("/v1/completions", STREAM)))]
        threads[0].start()
        wait_until(lambda: decode.running == 1)
        decode.hold = threading.Event()
        threads.append(threading.Thread(target=lambda: answers.append(proxy.complete())))
        threads[1].start()
        wait_until(lambda: decode.running == 2)
        remove(proxy, decode)
        decode.health = 503
        threads[0].join()
        assert threads[1].is_alive() and " is down: /health answers 503" in proxy.log(), "it is looked after all the time"
        decode.hold.set()
        threads[1].join()
        assert [status for status, _, _ in answers] == [200, 200] and answers[0][2].endswith(b"data: [DONE]\n\n")


def test_a_proxy_that_stood_still_blames_nobody(engines):  # noqa: F811
    """Answers lie in its own sockets when it goes on."""
    decode = engines("d", tokens=100, delay_s=0.03)
    decode.health_delay_s = 0.3  # so that a question is under way nearly always
    with Proxy("--decode", decode.address, "--dead_timeout=1s") as proxy:
        all_up(proxy)
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(proxy.post("/v1/completions", STREAM))) for _ in range(4)]
        for one in threads:
            one.start()
        wait_until(lambda: decode.running == 4)
        for _ in range(3):
            proxy.process.send_signal(signal.SIGSTOP)
            time.sleep(1.5)
            proxy.process.send_signal(signal.SIGCONT)
            time.sleep(0.3)
        for one in threads:
            one.join()
        assert [(status, body[-14:]) for status, _, body in answers] == [(200, b"data: [DONE]\n\n")] * 4
        assert " is down" not in proxy.log()


def test_an_instance_that_sends_tokens_lives_though_health_hangs(engines):  # noqa: F811
    decode = engines("d", tokens=60, delay_s=0.05)
    with Proxy("--decode", decode.address, "--dead_timeout=800ms") as proxy:
        decode.hangs["/health"] = threading.Event()
        status, _, body = proxy.post("/v1/completions", STREAM)
        assert status == 200 and body.endswith(b"data: [DONE]\n\n") and decode.hung >= 2
        decode.hangs.pop("/health").set()


def test_a_long_prompt_is_waited_for_while_health_answers(engines):  # noqa: F811
    prefill, decode = engines("p"), engines("d")
    prefill.behave = lambda handler, seen: (time.sleep(3), handler.answer(200, {}))
    with Proxy("--prefill", prefill.address, "--decode", decode.address, "--dead_timeout=800ms") as proxy:
        assert proxy.complete()[0] == 200


@pytest.mark.parametrize("waits", [True, False])
def test_requests_of_an_instance_that_is_down(engines, waits):  # noqa: F811
    """/health says 503: streams go on to their ends; what is silent ends, unless that is switched off."""
    decode = engines("d", tokens=60, delay_s=0.05)
    with Proxy("--decode", decode.address, "--dead_timeout=" + ("0" if waits else "500ms")) as proxy:
        answers = []
        stream = threading.Thread(target=lambda: answers.append(proxy.post("/v1/completions", STREAM)))
        stream.start()
        wait_until(lambda: decode.requests)
        decode.hold = threading.Event()
        silent = threading.Thread(target=lambda: answers.append(proxy.complete()))
        silent.start()
        wait_until(lambda: decode.running == 2)
        decode.health = 503
        stream.join()
        assert answers[-1][0] == 200 and answers[-1][2].endswith(b"data: [DONE]\n\n")
        if waits:
            assert silent.is_alive() and len(answers) == 1
            decode.hold.set()
        silent.join()
        status, _, body = next(one for one in answers if not one[2].endswith(b"data: [DONE]\n\n"))
        assert status == (200 if waits else 504) and (waits or "503" in json.loads(body)["error"]["message"])


def test_one_slow_bootstrap_server_is_no_death(engines):  # noqa: F811
    prefill, decode = engines("p"), engines("d")
    with Proxy("--prefill", prefill.url, prefill.port, "--decode", decode.url) as proxy:
        all_up(proxy)
        prefill.hangs["/query"] = hang = threading.Event()
        wait_until(lambda: prefill.hung == 1)
        asked = time.monotonic()  # a question that hangs is given up after 5 s, and asked again a second later
        while prefill.hung < 2:
            assert proxy.complete()[0] == 200 and time.monotonic() - asked < 20
            time.sleep(0.1)
        assert time.monotonic() - asked > 4.5
        assert prefill.hung == 2 and proxy.complete()[0] == 200
        hang.set()  # broken off without an answer: the third in a row
        wait_until(lambda: proxy.complete()[0] == 503, what="the end of one whose bootstrap server never answers")
        prefill.hangs.clear()
        wait_until(lambda: proxy.complete()[0] == 200, what="its return")


def test_a_proxy_without_descriptors_takes_nobody_out(engines):  # noqa: F811
    decode = engines("d")

    def hang_up(handler, _seen):
        handler.close_connection = True
        handler.answer(200, {"engine": "d"}, [("Connection", "close")])
    decode.behave = hang_up  # so each request needs a descriptor for the way to the instance
    decode.hold = threading.Event()
    held = b'{"prompt": "x"}'
    held = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(held), held)
    limited = ("bash", "-c", 'ulimit -n 40; exec "$0" "$@"', str(PROXY))
    with Proxy("--decode", decode.address, program=limited) as proxy:
        all_up(proxy)
        busy = []  # whoever waits for an answer does not leave for others
        end = time.monotonic() + 3
        while time.monotonic() < end:
            if len(busy) < 60:
                busy.append(socket.create_connection(("127.0.0.1", proxy.port), timeout=5))
                busy[-1].sendall(held)
            time.sleep(0.02)
        assert "open files" in proxy.log(), "the proxy had descriptors left"
        assert "is down" not in proxy.log(), proxy.log()
        decode.hold.set()
        for one in busy:
            one.close()
        wait_until(lambda: proxy.complete()[0] == 200)
        instance = json.loads(proxy.get("/status")[1])["instances"][0]
        assert instance["state"] == "up" and instance["failed"] == 0, instance


LONG = b'{"pad":"' + b"x" * (17 << 20) + b'"}'


@pytest.mark.parametrize("mode,code,wanted,limit", [
    ("store", 200, 200, 1 << 20), ("concurrent", 200, 200, 1 << 20), ("sequential", 200, 502, 16 << 20), ("store", 400, 502, 16 << 20),
    ("sequential", 200, 200, 64 << 20), ("store", 400, 400, 64 << 20)])
def test_a_long_answer_of_prefill_is_whole_or_refused(engines, mode, code, wanted, limit):  # noqa: F811
    prefill, decode = engines("p"), engines("d")
    prefill.behave = lambda handler, seen: handler.answer(code, LONG)
    flags = ("--prefill", prefill.url, prefill.port) if mode == "concurrent" else ("--mode", mode, "--prefill", prefill.address)
    with Proxy(*flags, "--decode", decode.address, f"--max_body_bytes={limit}") as proxy:
        all_up(proxy)
        status, _, body = proxy.complete()
        assert status == wanted
        assert wanted != 502 or "max_body_bytes" in json.loads(body)["error"]["message"]
        assert wanted != 400 or body == LONG
        prefill.behave = lambda handler, seen: handler.answer(400, LONG[:1 << 20])
        if mode != "concurrent":
            assert proxy.complete()[2] == LONG[:1 << 20], "what is not too long is passed whole"


def test_connections_to_instances_are_kept_alive(engines):  # noqa: F811
    decode = engines("d")
    decode.hold = threading.Event()
    with Proxy("--decode", decode.address) as proxy:
        thread = threading.Thread(target=proxy.complete)
        thread.start()
        wait_until(lambda: decode.running == 1)
        remote = f":{decode.port:04X}"

        def timers():
            with open("/proc/net/tcp") as table:
                rows = [line.split() for line in table.readlines()[1:]]
            return {row[5].split(":")[0] for row in rows if row[2].endswith(remote) and row[3] == "01"}
        wait_until(lambda: "02" in timers(), what="a keepalive timer on a connection to the instance")
        decode.hold.set()
        thread.join()
