"""emulated.py, on what cmocka prints."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import emulated  # noqa: E402

GOOD = "[==========] tests: Running 2 test(s).\n[ RUN      ] test_a\n[       OK ] test_a\n[ RUN      ] test_b\n[  SKIPPED ] test_b\n[  PASSED  ] 1 test(s).\n"
BAD = ("[ RUN      ] test_a\n[  ERROR   ] --- 1 != 2\n[  FAILED  ] test_a\n[ RUN      ] test_b\n[       OK ] test_b\n"
       "[  FAILED  ] tests: 1 test(s), listed below:\n[  FAILED  ] test_a\n\n 1 FAILED TEST(S)\n")


@pytest.mark.parametrize("code, output, excused, wrong", [
    (0, GOOD, {}, []),
    (1, BAD, {"test_a": "why"}, []),
    (1, BAD, {}, ["test_a failed"]),
    (1, BAD, {"test_a": "", "test_b": ""}, ["test_b passed, and the list says that it cannot"]),
    (0, GOOD, {"test_b": "why"}, []),
    (0, GOOD, {"test_c": ""}, ["test_c is in the list, and there is no such case"]),
    (-11, "[ RUN      ] test_a\n", {}, ["test_a failed"]),
    (-11, "[ RUN      ] test_a\n", {"test_a": "why"}, []),
    (-9, GOOD, {}, ["it ended with -9, and 0 cases failed"]),
    (0, "", {}, ["no case ended"]),
    (-11, "", {}, ["no case ended", "it ended with -11, and 0 cases failed"]),
    (2, "[  ERROR   ] test_a\n[       OK ] test_a\n[  FAILED  ] test_b\n", {"test_b": ""}, ["test_a failed"]),
    (0, BAD, {"test_a": "why"}, ["it ended with 0, and 1 cases failed"]),
])
def test_what_is_not_as_the_list_says_is_wrong(code, output, excused, wrong):
    assert emulated.judge(code, output, excused) == wrong


def test_the_list_names_cases_and_says_why(tmp_path):
    (tmp_path / "list").write_text("test_x test_y: for a reason\n", encoding="ascii")
    assert emulated.listed(tmp_path / "list") == {"test_x": {"test_y": "for a reason"}}
    (tmp_path / "list").write_text("test_x: for a reason\n", encoding="ascii")
    with pytest.raises(SystemExit, match="not 'program case: why'"):
        emulated.listed(tmp_path / "list")


@pytest.mark.parametrize("good_at, wanted", [(1, True), (3, True), (4, False)])
def test_a_program_is_run_again_when_it_was_wrong(monkeypatch, capsys, good_at, wanted):
    said = iter([(1, BAD)] * (good_at - 1) + [(0, GOOD)])
    monkeypatch.setattr(emulated, "run", lambda _: next(said))
    assert emulated.attempt({"name": "test_x"}, {}) == wanted
    assert capsys.readouterr().out.count("WRONG: test_a failed") == (not wanted)
