"""floor.py, on wheels that were made to break one promise each. The libraries are stand-ins with glibc's names, so that this machine's own
glibc, whichever it is, decides nothing."""
import pathlib
import platform
import subprocess
import sys
import zipfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import floor  # noqa: E402

MACHINE = platform.machine()
STAND_IN = """GLIBC_2.17 { global: old; }; GLIBC_2.28 { global: middle; }; GLIBC_2.99 { global: recent; }; GLIBC_PRIVATE { global: inner; };"""


def link(folder, name, source, *options):
    (folder / "source.c").write_text(source, encoding="ascii")
    subprocess.run(["gcc", "-shared", "-fPIC", "-nostdlib", "-Wl,--unresolved-symbols=ignore-all", "-o", folder / name, folder / "source.c", *options],
                   check=True)
    return folder / name


@pytest.fixture(name="make")
def make_wheel(tmp_path):
    """make(source, *options, tag, beside): a wheel with one library of that source, linked against the stand-in for libc, and with files beside it."""
    (tmp_path / "map").write_text(STAND_IN, encoding="ascii")
    libc = link(tmp_path, "libc.so.6", "void old(void){} void middle(void){} void recent(void){} void inner(void){}", "-Wl,-soname,libc.so.6",
                f"-Wl,--version-script={tmp_path / 'map'}")

    def make(source, *options, tag=f"manylinux_2_28_{MACHINE}", beside=()):
        wheel = tmp_path / f"thing-1-cp311-abi3-{tag}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("thing/__init__.py", "")
            if source:
                archive.write(link(tmp_path, "thing.so", source, libc, *options), "thing/thing.so")
            for path, name in beside:
                archive.write(path, name)
        return str(wheel)

    return make


def said(capsys, wheel):
    code = floor.main([wheel])
    return code, capsys.readouterr().out


def test_what_the_floor_has_passes(make, capsys):
    code, text = said(capsys, make("void old(void); void middle(void); int PyLong_Check(void); void f(void) { old(); middle(); PyLong_Check(); }"))
    assert code == 0, text
    assert "1 ELF files, none needs more than glibc 2.28" in text


@pytest.mark.parametrize("source, options, word", [
    ("void recent(void); void f(void) { recent(); }", (), "thing/thing.so needs recent, GLIBC_2.99"),
    ("void inner(void); void f(void) { inner(); }", (), "needs inner, GLIBC_PRIVATE"),
    ("void nowhere(void); void f(void) { nowhere(); }", (), "needs nowhere, of no library's version"),
    ("void old(void); void f(void) { old(); }", ("-Wl,-rpath,/opt/lib",), "looks for libraries in /opt/lib"),
])
def test_one_symbol_is_enough(make, capsys, source, options, word):
    code, text = said(capsys, make(source, *options))
    assert code == 1
    assert word in text and len(text.splitlines()) == 1, text


@pytest.mark.parametrize("tags, name, fits", [
    ("cp39-abi3", "a/_store.abi3.so", True), ("cp39-abi3", "a/_store.cpython-39-x86_64-linux-gnu.so", False), ("cp39-cp39", "a/_store.abi3.so", False),
    ("cp313-cp313t", "a/_store.cpython-313t-x86_64-linux-gnu.so", True), ("cp313-cp313t", "a/_store.cpython-311-x86_64-linux-gnu.so", False),
    ("cp313-cp313t", "a/_store.abi3.so", False), ("cp313-cp313", "a/_store.cpython-313t-x86_64-linux-gnu.so", False), ("cp313-cp313t", "a/libmooncake.so", True),
])
def test_a_module_s_name_is_of_the_tag_s_python(tags, name, fits):
    """A wheel for 3.13t once held modules of 3.11, which nothing but an import would have shown."""
    assert floor.names_unfit(f"thing-1-{tags}-manylinux_2_17_x86_64.whl", [name]) == ([] if fits else [name])


def test_the_same_file_is_right_or_wrong_by_its_tag(make, capsys):
    source = "void middle(void); void f(void) { middle(); }"
    assert said(capsys, make(source, tag=f"manylinux_2_28_{MACHINE}"))[0] == 0
    code, text = said(capsys, make(source, tag=f"manylinux_2_17_{MACHINE}"))
    assert code == 1 and "needs middle, GLIBC_2.28" in text, text


def test_a_library_from_elsewhere(make, tmp_path, capsys):
    other = link(tmp_path, "libother.so.1", "void other(void){}", "-Wl,-soname,libother.so.1")
    code, text = said(capsys, make("void old(void); void f(void) { old(); }", "-Wl,--no-as-needed", other))
    assert code == 1 and "needs libother.so.1" in text, text


def test_a_library_of_the_wheel_s_own(make, tmp_path, capsys):
    """It must lie in the same folder, be looked for there, and have the symbol."""
    other = link(tmp_path, "libother.so.1", "void other(void){}", "-Wl,-soname,libother.so.1")
    options = ("-Wl,--no-as-needed", str(other), "-Wl,-rpath,$ORIGIN")
    source = "void other(void); void f(void) { other(); }"
    code, text = said(capsys, make(source, *options, beside=[(other, "thing/libother.so.1")]))
    assert code == 0 and "2 ELF files" in text, text
    for bad, options_of_it, place in ((source, options, "elsewhere/libother.so.1"), (source, options[:2], "thing/libother.so.1"),
                                      ("void nowhere(void); void f(void) { nowhere(); }", options, "thing/libother.so.1")):
        code, text = said(capsys, make(bad, *options_of_it, beside=[(other, place)]))
        assert code == 1 and ("needs libother.so.1" in text or "needs nowhere" in text), text


def test_tags_that_promise_nothing_or_another_processor(make, capsys):
    source = "void old(void); void f(void) { old(); }"
    code, text = said(capsys, make(source, tag=f"linux_{MACHINE}"))
    assert code == 1 and "promises nothing" in text, text
    other = "aarch64" if MACHINE == "x86_64" else "x86_64"
    code, text = said(capsys, make(source, tag=f"manylinux_2_28_{other}"))
    assert code == 1 and f"not {other}" in text, text


def test_nothing_to_judge_is_not_right(make, capsys):
    code, text = said(capsys, make(""))
    assert code == 1 and "holds no ELF file" in text, text
    assert floor.main([]) == 1


def test_a_version_that_no_symbol_has(make):
    """As -z pack-relative-relocs leaves it, for the loader alone."""
    text = floor.readelf(str(pathlib.Path(make("void old(void); void f(void) { old(); }")).parent / "thing.so"))
    assert list(floor.problems_of(text, (2, 28), MACHINE, {})) == []
    asked = text.replace("Name: GLIBC_2.17 ", "Name: GLIBC_ABI_DT_RELR ")
    assert asked != text
    assert list(floor.problems_of(asked, (2, 28), MACHINE, {})) == ["needs the version GLIBC_ABI_DT_RELR"]
