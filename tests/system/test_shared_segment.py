"""Memory that ranks share: each sees what the owner writes, nobody can shorten it, and nothing of it is left. With torch, its tensors: they run in
the Python that MC_TORCH_PYTHON names, as torch_tensors.py does."""
import ctypes
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from cluster import wait_until

sys.path.insert(0, os.environ["MC_PYTHONPATH"])
from mooncake.engine import SharedSegment  # noqa: E402

SIZE = (1 << 20) + 5
RANK = """
import ctypes, sys
from mooncake.engine import SharedSegment
world, rank, owner, size = map(int, sys.argv[1:5])
segment, blob = SharedSegment.create(sys.argv[5], size, world, rank, owner)
print(blob.hex(), flush=True)
try:
    segment.complete([bytes.fromhex(one) for one in sys.stdin.readline().split()])
except RuntimeError as error:
    print("refused:", error, flush=True)
    sys.exit()
print("ready", segment.ready(), flush=True)
for line in sys.stdin:
    word, at, *value = line.split()
    if word == "write":
        ctypes.memset(segment.base_addr() + int(at), int(value[0]), 1)
    print(ctypes.string_at(segment.base_addr() + int(at), 1)[0], flush=True)
"""


class Rank:
    def __init__(self, world, rank, owner=0, size=SIZE, name="test"):
        self.process = subprocess.Popen([sys.executable, "-B", "-c", RANK, *map(str, (world, rank, owner, size, name))], text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.environ["MC_PYTHONPATH"]})
        self.blob = self.line()

    def line(self):
        return self.process.stdout.readline().strip()

    def say(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def ask(self, *words):
        self.say(*words)
        return self.line()

    def end(self, number=None):
        if number is not None:
            self.process.send_signal(number)
        self.process.stdin.close()
        self.process.wait(timeout=20)
        self.process.stdout.close()


def is_left():
    """Of the segment "left", a descriptor or a mapping."""
    links = [os.path.realpath(fd) for fd in pathlib.Path("/proc/self/fd").iterdir()]
    return any("memfd:left" in text for text in [*links, pathlib.Path("/proc/self/maps").read_text()])


@pytest.mark.parametrize("owner", [0, 2])
def test_ranks_see_one_memory(owner):
    ranks = [Rank(3, rank, owner) for rank in range(3)]
    blobs = [rank.blob for rank in ranks]
    assert [rank.ask(*blobs) for rank in ranks] == ["ready True"] * 3
    for writer in range(3):
        at = (0, 4097, SIZE - 1)[writer]
        assert ranks[writer].ask("write", at, 7 + writer) == str(7 + writer)
        assert [rank.ask("read", at) for rank in ranks] == [str(7 + writer)] * 3
    ranks[owner].end(signal.SIGKILL)
    others = [rank for rank in ranks if rank is not ranks[owner]]
    assert [rank.ask("read", 4097) for rank in others] == ["8", "8"], "it stays for those who have it"
    for rank in others:
        rank.end()


@pytest.mark.parametrize("other", [{"size": SIZE + 1}, {"name": "other"}, {"owner": 1}])
def test_other_declarations_are_refused(other):
    ranks = [Rank(2, 0), Rank(2, 1, **other)]
    blobs = [rank.blob for rank in ranks]
    for rank in ranks:
        said = rank.ask(*blobs)
        assert said.startswith("refused: rank") and "another segment" in said
        rank.end()


def test_an_owner_that_is_gone():
    owner, peer = Rank(2, 0), Rank(2, 1)
    owner.end(signal.SIGKILL)
    assert "cannot be opened" in peer.ask(owner.blob, peer.blob)
    peer.end()


def test_a_blob_that_names_other_memory():
    """Of a process that has another file under that number by now."""
    owner, peer = Rank(2, 0), Rank(2, 1)
    forged = bytearray(bytes.fromhex(owner.blob))
    forged[-8] ^= 1
    assert "is not the memory" in peer.ask(forged.hex(), peer.blob)
    owner.end()
    peer.end()


def test_it_cannot_be_shortened_and_leaves_nothing():
    segment, blob = SharedSegment.create("left", SIZE, 1, 0)
    assert not segment.ready() and segment.size() == SIZE and segment.device_addr() == 0
    segment.complete([blob])
    segment.complete([blob])
    assert segment.ready() and is_left()
    with pytest.raises(OSError):
        os.truncate(f"/proc/self/fd/{segment._fd}", 100)
    assert ctypes.string_at(segment.base_addr(), SIZE) == bytes(SIZE)
    del segment
    assert wait_until(lambda: not is_left(), 5)


@pytest.mark.parametrize("bad", [(0, 1, 0), (1 << 50, 1, 0), (8192, 0, 0), (8192, 1, 1), (8192, 2, 0, 5), (8192, 2, -1), (8192, 1, 0, 0, 0, False),
                                 (8192, 1, 0, 0, 0, True, True)])
def test_bad_numbers(bad):
    with pytest.raises(RuntimeError):
        SharedSegment.create("bad", *bad)


@pytest.mark.parametrize("blobs", [[], [b""], [b"x" * 56], [b"", b""]])
def test_bad_blobs(blobs):
    segment, _ = SharedSegment.create("bad", 8192, 1, 0)
    with pytest.raises(RuntimeError, match="blob"):
        segment.complete(blobs)
    assert not segment.ready()


def test_what_is_supported():
    assert SharedSegment.supported() is True and SharedSegment.supported(False) is False and SharedSegment.supported(True, host_register=True) is False
    with pytest.raises(TypeError):
        SharedSegment()


@pytest.mark.skipif("MC_TORCH_PYTHON" not in os.environ, reason="no Python with torch")
@pytest.mark.parametrize("case", ["alone", "group", "refused"])
def test_tensors(case):
    script = pathlib.Path(__file__).with_name("torch_segment.py")
    done = subprocess.run([os.environ["MC_TORCH_PYTHON"], "-B", script, case], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": os.environ["MC_PYTHONPATH"]})
    assert done.returncode == 0 and done.stdout.endswith("all as it must be\n"), done.stdout + done.stderr
