"""Programs, libraries and extensions have the protections of compiler and linker (meson.build), and our own code has, not only what is linked in."""
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(os.environ["MC_SOURCE"]) / "tests/wheel"))
import hardening  # noqa: E402

BUILD = pathlib.Path(os.environ["MC_BUILD"])
ROOMS = ("mcbase", "mccore", "mcdisk", "mcmaster", "mcproxy", "mcservice", "mcstore", "mctransfer")
OPTIONS = {option["name"]: option["value"] for option in json.loads((BUILD / "meson-info/intro-buildoptions.json").read_text(encoding="utf-8"))}
pytestmark = pytest.mark.skipif(OPTIONS["b_sanitize"] not in ("none", [], ""), reason="sanitizers look for themselves")


def said_of(room, *command):
    return subprocess.run([*command, BUILD / f"lib{room}.a"], capture_output=True, text=True, check=True).stdout


def test_what_is_installed_is_protected():
    places = json.loads((BUILD / "meson-info/intro-installed.json").read_text(encoding="utf-8"))
    files = [path for path in places if pathlib.Path(path).is_relative_to(BUILD) and pathlib.Path(path).read_bytes()[:4] == b"\x7fELF"]
    assert len(files) >= 12
    assert [problem for path in files for problem in hardening.check(path)[0]] == []


@pytest.mark.parametrize("room", ROOMS)
def test_our_own_code_is_protected(room):
    """Debian's static libraries have some of it too, so that a program alone proves nothing of ours."""
    wanted = set(re.findall(r"U (__\w+_chk(?:_fail)?)$", said_of(room, "nm", "-u"), re.M))
    assert "__stack_chk_fail" in wanted and len(wanted) > 1
    headers = said_of(room, "readelf", "-nW")
    if os.uname().machine == "x86_64":
        assert headers.count("x86 feature: IBT, SHSTK") == headers.count("File: ")


def test_large_frames_touch_their_pages():
    code = "".join(said_of(room, "objdump", "-d", "--no-show-raw-insn") for room in ROOMS)
    if os.uname().machine == "x86_64":
        assert re.search(r"(?:orq? +|movq +)\$0x0,\(%rsp\)", code)
