"""newcomer.py: README.md's commands are counted, and nothing is added to them."""
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import newcomer  # noqa: E402

README = HERE.parent.parent / "README.md"


def test_readme_has_both_ways_within_five_commands():
    (checkout, engine), program = newcomer.blocks(README.read_text(encoding="utf-8"))
    assert len(checkout) <= newcomer.MOST and len(engine) <= newcomer.MOST
    compile(program, "README.md", "exec")
    for commands in (checkout, engine):
        for text in newcomer.scripts(commands, program):
            subprocess.run(["bash", "-n", "-c", text], check=True)
            assert [line for line in text.splitlines() if line.startswith("./dev") and line not in commands] == []


@pytest.mark.parametrize("commands, word", [
    (["a", "b", "c", "d &", "e", "python3"], "6 commands, more than 5"),
    (["a", "d &", "e"], "the last command is no Python"),
    (["a", "python3"], "nothing was started"),
])
def test_a_way_that_is_longer_or_ends_elsewhere_is_refused(commands, word):
    with pytest.raises(SystemExit, match=word):
        newcomer.scripts(commands, "")


def run(tmp_path, program):
    """use.sh, with a listener as the master, on a port of its own in the place of README's."""
    master = "python3 -c 'import signal, socket, sys; s = socket.create_server((\"localhost\", 0)); print(s.getsockname()[1], file=open(\"port\", \"w\"), flush=True); "
    master += "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); signal.pause()' &"
    _, text = newcomer.scripts([master, "python3"], program)
    text = text.replace("/dev/tcp/localhost/50051", "/dev/tcp/localhost/$(cat port)").replace("/said", "said")
    return subprocess.run(["bash", "-euc", text], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)


def test_what_the_program_prints_decides(tmp_path):
    right = run(tmp_path, "print(b'hello, cluster')\n")
    assert right.returncode == 0 and right.stdout.endswith("a put and a get within 2 commands\n"), right
    for program in ("print(b'')\n", "print(b'hello, cluster')\nassert False\n"):
        assert run(tmp_path, program).returncode != 0
