"""Keys of the proxy: who may ask it, what it shows to instances, and what no instance learns."""
import json
import socket

import pytest

import keyed
from keyed import Key
from proxy_engines import Engine, Proxy, post_bytes

RIGHTS = ("read", "write", "admin")
UNSET = {"MC_AUTH_FILE": "", "MC_AUTH_TOKEN": ""}


def bearer(key):
    return {"Authorization": f"Bearer {key.token}"}


@pytest.fixture
def scene(tmp_path):
    keys = {right: Key(f"{right}er", right) for right in RIGHTS}
    engine = Engine("d")
    with Proxy("--decode", engine.address, f"--auth_file={keyed.write(tmp_path, 'keys', *keys.values())}", environment=UNSET) as proxy:
        yield proxy, engine, keys
    engine.kill()


def test_each_path_wants_its_right(scene):
    proxy, engine, keys = scene
    assert proxy.get("/health")[0] == proxy.get("/healthcheck")[0] == 200
    add = json.dumps({"type": "decode", "instance": "nowhere"})
    ask = json.dumps({"model": "m", "prompt": "x"})
    for method, path, right, body in (("GET", "/status", "read", None), ("GET", "/metrics", "read", None), ("POST", "/v1/completions", "write", ask),
                                      ("POST", "/v1/chat/completions", "write", ask), ("GET", "/v1/models", "write", None), ("POST", "/instances/add", "admin", add),
                                      ("POST", "/instances/remove", "admin", add), ("GET", "/nothing/here", "write", None)):
        for headers in (None, bearer(Key("stranger", right)), bearer(Key(keys[right].name, right)), {"Authorization": "Bearer"}, {"X-API-Key": keys[right].token}):
            status, answered, said = proxy.request(method, path, body, headers)
            assert status == 401 and "Bearer" in answered["WWW-Authenticate"] and keys[right].secret.hex().encode() not in said, (path, headers)
        for other in RIGHTS:
            before = len(engine.requests)
            status = proxy.request(method, path, body, bearer(keys[other]))[0]
            assert (status not in (401, 403)) == (other == right), (path, other, status)
            if other != right:
                assert len(engine.requests) == before
    assert all(key.secret.hex() not in proxy.log() for key in keys.values())


def test_no_instance_learns_a_key(scene):
    proxy, engine, keys = scene
    assert proxy.post("/v1/completions", {"model": "m", "prompt": "x"}, bearer(keys["write"]))[0] == 200
    assert "Authorization" not in engine.requests[-1]["headers"]
    assert keys["write"].secret.hex() not in str(engine.requests)


def test_a_refused_body_is_not_read(scene):
    """Nor asked for with 100 Continue; and the connection ends."""
    proxy, _engine, _keys = scene
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=20) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\nExpect: 100-continue\r\n\r\n")
        answer = keyed.read_all(connection)
    assert answer.startswith(b"HTTP/1.1 401 ") and b"100 Continue" not in answer
    assert proxy.raw(post_bytes("/v1/completions", b"{}")).startswith(b"HTTP/1.1 401 ")


def test_it_shows_its_own_key_where_it_is_told_to(tmp_path):
    """A proxy before a proxy: the outer one's own key, not the client's; and the inner one's clients have theirs."""
    outer_key, client_key, inner_key = Key("outer"), Key("client", "write"), Key("inner", "write")
    file = keyed.write(tmp_path, "outer", outer_key, client_key)
    engine = Engine("d")
    inner_file = keyed.write(tmp_path, "inner", inner_key, outer_key)
    with Proxy("--decode", engine.address, f"--auth_file={inner_file}", environment={**UNSET, "OPENAI_API_KEY": "engines"}) as inner:
        address = f"127.0.0.1:{inner.port}"
        with Proxy("--decode", address, f"--auth_file={file}", environment=UNSET) as silent:
            assert silent.post("/v1/completions", {"prompt": "x"}, bearer(client_key))[0] == 401  # the inner one's word
        with Proxy("--decode", address, "--send_key", f"--auth_file={file}", environment=UNSET) as outer:
            assert outer.post("/v1/completions", {"prompt": "x"}, bearer(client_key))[0] == 200
            assert engine.requests[-1]["headers"]["Authorization"] == "Bearer engines"
            assert outer.post("/v1/completions", {"prompt": "x"}, bearer(inner_key))[0] == 401
    engine.kill()


@pytest.mark.parametrize("arguments,says", [(("--auth_file=/no/such/file",), "/no/such/file"), (("--send_key",), "there is no key")])
def test_what_cannot_be_is_said_at_the_start(arguments, says):
    proxy = Proxy("--decode", "127.0.0.1:1", *arguments, environment=UNSET)
    with pytest.raises(AssertionError, match="has ended"):
        proxy.start()
    assert says in proxy.log() and proxy.process.wait(20) == 1


def test_instances_may_come_later_by_a_key(tmp_path):
    admin, writer = Key("a", "admin"), Key("w", "write")
    engine = Engine("d")
    proxy = Proxy(f"--auth_file={keyed.write(tmp_path, 'keys', admin, writer)}", environment=UNSET).start()
    try:
        assert proxy.post("/instances/add", {"type": "decode", "instance": engine.address}, bearer(admin))[0] == 200
        assert proxy.post("/v1/completions", {"prompt": "x"}, bearer(writer))[0] == 200
        assert proxy.post("/instances/remove", {"type": "decode", "instance": engine.address}, {**bearer(admin), "Origin": "http://elsewhere"})[0] == 403
    finally:
        assert proxy.stop() == 0
        engine.kill()
