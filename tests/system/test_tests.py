"""Tests that cannot fail, as far as that can be seen: an assertion about a constant, or of a value with itself; one in a thread, whose end fails no test; one whose failure is caught."""
import ast
import os
import pathlib
import subprocess

import cluster
import proxy_engines
import pytest
import service_process

TESTS = pathlib.Path(os.environ["MC_SOURCE"]) / "tests"


def asserts(node):
    return [one for one in ast.walk(node) if isinstance(one, ast.Assert)]


def calls(node):
    return [one for one in ast.walk(node) if isinstance(one, ast.Call)]


def name_of(node):
    return getattr(node, "id", getattr(node, "attr", None))


def is_constant(test):
    return isinstance(test, ast.Constant) and bool(test.value) or isinstance(test, ast.Tuple) and bool(test.elts)


def is_of_itself(test):
    """What calls something may give another value the second time."""
    if not isinstance(test, ast.Compare) or calls(test):
        return False
    sides = [ast.dump(side) for side in (test.left, *test.comparators)]
    return len(set(sides)) < len(sides)


def catches_assertions(handler):
    names = [name_of(one) for one in (handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type])]
    return {None, "Exception", "BaseException", "AssertionError"} & set(names) != set() and all(isinstance(line, (ast.Pass, ast.Continue)) for line in handler.body)


def weaknesses(source):
    tree = ast.parse(source)
    functions = {one.name: one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and (is_constant(node.test) or is_of_itself(node.test)):
            found.append((node.lineno, "it is always true"))
        if isinstance(node, ast.Try) and any(map(asserts, node.body)):
            found += [(handler.lineno, "it catches what is asserted") for handler in node.handlers if catches_assertions(handler)]
        if isinstance(node, ast.Call) and name_of(node.func) == "Thread":
            target = next((name_of(word.value) for word in node.keywords if word.arg == "target"), None)
            function = functions.get(target)
            kept = [one for one in ast.walk(function) if isinstance(one, ast.Try) and any(handler.type is not None and name_of(handler.type) in ("BaseException", "AssertionError") for handler in one.handlers)] if function else []
            if function is not None and asserts(function) and not kept:
                found.append((node.lineno, f"what {target} asserts in a thread fails nothing"))
    return found


def test_what_does_not_start_does_not_stay(tmp_path, monkeypatch, capsys):
    """No __exit__ would end it; and what it said is all that tells why."""
    mute = tmp_path / "mute"
    mute.write_text("#!/bin/sh\necho what it says >&2\nexec sleep 60\n")
    mute.chmod(0o700)
    for module, child in ((cluster, cluster.Master(program=mute)), (proxy_engines, proxy_engines.Proxy(program=(str(mute),))),
                          (service_process, service_process.Service(command=(str(mute),)))):
        with monkeypatch.context() as patch:
            patch.setattr(module, "START_S", 3)
            if module is service_process:
                patch.setattr(service_process.Service.wait, "__defaults__", (service_process.Service.wait.__defaults__[0], 3))
            started, Popen = [], subprocess.Popen
            patch.setattr(subprocess, "Popen", lambda *words, started=started, Popen=Popen, **more: started.append(Popen(*words, **more)) or started[0])
            try:
                with pytest.raises(AssertionError, match="did not come"):
                    child.start()
                assert [one.poll() is not None for one in started] == [True]
            finally:
                for one in started:
                    one.kill()
                    one.wait()
        assert "what it says" in capsys.readouterr().out


def test_every_assertion_can_fail():
    files = list(TESTS.rglob("test_*.py"))
    assert len(files) > 60
    found = [f"{path.relative_to(TESTS)}:{line}: {what}" for path in files for line, what in weaknesses(path.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("source", [
    "assert True", "assert (a, 'text')", "assert a.b == a.b", "assert 1 < x <= x",
    "try:\n    assert f()\nexcept Exception:\n    pass", "try:\n    assert f()\nexcept:\n    pass",
    "def work():\n    assert f()\nthreading.Thread(target=work).start()"])
def test_what_is_found(source):
    assert len(weaknesses(source)) == 1


@pytest.mark.parametrize("source", [
    "assert f(a) == f(a)", "assert a == b", "assert False, 'not reached'", "try:\n    assert f()\nexcept ConnectionError:\n    pass", "try:\n    assert f()\nexcept Exception:\n    raise",
    "def work():\n    try:\n        assert f()\n    except BaseException as error:\n        failures.append(error)\nthreading.Thread(target=work).start()"])
def test_what_is_none(source):
    assert weaknesses(source) == []
