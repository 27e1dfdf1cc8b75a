#!/usr/bin/env python3
"""Counts test cases for the last line of `./dev test`.

count.py meson  testlog.json EXIT NAME     cmocka cases in the output of every executable that `meson test` ran
count.py pytest junit.xml    EXIT NAME     cases of a pytest run, or of several whose reports lie in a folder

Prints "passed failed NAME". A run that ended badly, or left no report, counts at least one failure: no way to fail may look like success.
"""
import json
import os
import re
import sys
import xml.etree.ElementTree


def count_meson(path):
    passed = failed = 0
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            test = json.loads(line)
            output = test.get("stdout", "") + test.get("stderr", "")
            good = sum(int(n) for n in re.findall(r"\[  PASSED  \] (\d+) test", output))
            bad = sum(int(n) for n in re.findall(r"\[  FAILED  \] (\d+) test", output))
            if test["result"] in ("SKIP", "EXPECTEDFAIL"):
                continue
            if test["result"] != "OK":
                bad = max(bad, 1)
            elif good + bad == 0:
                good = 1  # not cmocka: the executable is the case
            passed += good
            failed += bad
    return passed, failed


def count_pytest(path):
    """Of a report, or of all in a folder; a file's log without a report is a failure."""
    passed = failed = 0
    reports = [path]
    if os.path.isdir(path):
        reports = [os.path.join(path, name) for name in os.listdir(path) if name.endswith(".xml")]
        failed = sum(not os.path.exists(os.path.join(path, name[:-len("log")] + "xml")) for name in os.listdir(path) if name.endswith(".log"))
    for suite in (suite for report in reports for suite in xml.etree.ElementTree.parse(report).getroot().iter("testsuite")):
        total, bad, skipped = int(suite.get("tests")), int(suite.get("failures")) + int(suite.get("errors")), int(suite.get("skipped"))
        passed += total - bad - skipped
        failed += bad
    return passed, failed


def main():
    kind, path, code, name = sys.argv[1:]
    try:
        passed, failed = {"meson": count_meson, "pytest": count_pytest}[kind](path)
    except (OSError, ValueError, KeyError, TypeError, xml.etree.ElementTree.ParseError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        passed, failed = 0, 1
    if int(code) != 0 or passed + failed == 0:
        failed = max(failed, 1)
    print(passed, failed, name)


if __name__ == "__main__":
    main()
