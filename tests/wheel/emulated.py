#!/usr/bin/env python3
"""Runs the unit tests of a build for another processor, which the kernel gives to an emulator (emulate.sh), and compares their cases with a list of
those that the emulator cannot pass: emulated.py BUILD LIST [PATTERN]

LIST has lines "program case: why". Such a case must fail (or be skipped), and no other; one that passes must leave the list. Many cases give what
they wait for some seconds, which an emulator on a busy machine may miss: a program that is not as the list says is run again, and must be so at one of
TRIES. Its output is shown each time. The last line: "emulated: N programs passed, N failed".
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

SLOWER = 20  # than the processor itself, and the machine is busy: the time limit grows so
TRIES = 3


def listed(path):
    """{program: {case: why}}"""
    found = {}
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        words = re.fullmatch(r"(\w+) (\w+): (\S.*)", line)
        if words is None:
            sys.exit(f"emulated.py: not 'program case: why': {line}")
        found.setdefault(words[1], {})[words[2]] = words[3]
    return found


def cases(output):
    """(those that passed, were skipped, failed or did not end), in the words of cmocka."""
    ended = {kind: set(re.findall(rf"^\[ +{kind} +\] (\w+)$", output, re.M)) for kind in ("RUN", "OK", "SKIPPED", "FAILED", "ERROR")}
    failed = ended["FAILED"] | ended["ERROR"]  # a name may be that of several, with other settings: then one is enough
    failed |= ended["RUN"] - ended["OK"] - ended["SKIPPED"]
    return ended["OK"] - failed, ended["SKIPPED"] - failed, failed


def run(test):
    """(exit status, output); a program that does not end is killed with all that it started."""
    with subprocess.Popen(test["cmd"], env={**os.environ, **test["env"]}, cwd=test["workdir"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True) as process:
        try:
            output, _ = process.communicate(timeout=test["timeout"] * SLOWER)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output = process.communicate()[0] + f"\nemulated.py: still running after {test['timeout'] * SLOWER} s\n"
        return process.returncode, output


def judge(code, output, excused):
    """What is not as it must be; nothing when all is well."""
    passed, skipped, failed = cases(output)
    wrong = [f"{case} failed" for case in sorted(failed - excused.keys())]
    wrong += [f"{case} passed, and the list says that it cannot" for case in sorted(passed & excused.keys())]
    wrong += [f"{case} is in the list, and there is no such case" for case in sorted(excused.keys() - passed - skipped - failed)]
    if not passed | skipped | failed:
        wrong.append("no case ended")
    if (code == 0) != (not failed):
        wrong.append(f"it ended with {code}, and {len(failed)} cases failed")
    return wrong


def attempt(test, excused):
    """Was it as the list says, at one of so many tries?"""
    for number in range(1, TRIES + 1):
        start = time.monotonic()
        code, output = run(test)
        wrong = judge(code, output, excused)
        passed, skipped, failed = cases(output)
        said = f": {'WRONG' if number == TRIES else 'to be run again'}: {'; '.join(wrong)}" if wrong else ""
        print(f"{test['name']}: {len(passed)} cases passed, {len(skipped)} skipped, {len(failed)} failed, {time.monotonic() - start:.0f} s{said}", flush=True)
        if not wrong:
            return True
        print(output[-8000:], flush=True)
    return False


def main(build, excuses, pattern=""):
    known = listed(excuses)
    tests = json.loads(subprocess.run(["meson", "introspect", "--tests", build], check=True, capture_output=True, text=True).stdout)
    units = {test["name"]: test for test in tests if any(suite.endswith("unit") for suite in test["suite"])}
    chosen = sorted(name for name in units if re.search(pattern, name))
    if not chosen:
        sys.exit(f"emulated.py: no such program: {pattern}")
    results = {True: 0, False: 0}
    for name in known.keys() - units.keys():
        print(f"{name}: WRONG: it is in the list, and there is no such program")
        results[False] += 1
    for name in chosen:
        results[attempt(units[name], known.get(name, {}))] += 1
    print(f"emulated: {results[True]} programs passed, {results[False]} failed")
    return 1 if results[False] else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
