"""hardening.py, on programs that were built without one protection each."""
import pathlib
import platform
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import hardening  # noqa: E402

# Enough code to be judged: each function writes to a page-sized array and formats, so it has all that is protected.
FUNCTION = "int f%d(const char *s, int n) { char b[20000]; sprintf(b + n, \"%%s %d\", s); return b[n] + %d; }"
SOURCE = "#include <stdio.h>\n" + "\n".join(FUNCTION % (i, i, i) for i in range(1800)) + "\nint main(int c, char **v) { return f1(v[0], c); }\n"
ALL = ("-O2", "-fPIE", "-pie", "-fstack-protector-strong", "-fstack-clash-protection", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-w",
       "-Wl,-z,relro,-z,now,-z,noexecstack", *(("-fcf-protection=full",) if platform.machine() == "x86_64" else ()))
ON_X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="how that looks is known of x86-64 alone")


@pytest.fixture(scope="module", name="source")
def write_source(tmp_path_factory):
    path = tmp_path_factory.mktemp("hardening") / "program.c"
    path.write_text(SOURCE, encoding="ascii")
    return path


def said(capsys, source, *options):
    program = source.with_suffix("")
    subprocess.run(["gcc", *ALL, *options, "-o", program, source], check=True)
    code = hardening.main([str(program)])
    return code, capsys.readouterr().out


def test_a_program_with_all_passes(source, capsys):
    code, text = said(capsys, source)
    assert code == 0 and "1 ELF files, all protected" in text


@pytest.mark.parametrize("option, word", [
    (("-fno-stack-protector",), "has no stack protector"),
    (("-U_FORTIFY_SOURCE",), "has no FORTIFY_SOURCE"),
    (("-Wl,-z,norelro",), "no full RELRO"),
    (("-Wl,-z,lazy",), "no full RELRO"),
    (("-Wl,-z,execstack",), "stack may be executed"),
    (("-fno-pie", "-no-pie"), "fixed address"),
    pytest.param(("-fcf-protection=none",), "indirect branches", marks=ON_X86),
    pytest.param(("-fno-stack-clash-protection",), "touches no pages", marks=ON_X86),
])
def test_what_is_missing_is_named(source, capsys, option, word):
    code, text = said(capsys, source, *option)
    assert code == 1 and word in text
    assert len(text.splitlines()) == 1


def test_what_is_no_elf_file_does_not_pass(source, capsys):
    assert hardening.main([str(source)]) == 1
    assert "holds no ELF file" in capsys.readouterr().out
