#!/usr/bin/env python3
"""What README.md tells a newcomer, as scripts for a bare system: no command but those that stand there.

newcomer.py README checkout|engine FOLDER    checkout: the commands from a clean checkout; engine: those with a wheel and an engine's pip

FOLDER/install.sh has the commands up to the first that goes to the background, FOLDER/use.sh that one and the rest: the latter needs no network, and can
have one of its own, where nobody else has the master's port. More than five commands are an error. The last one is a Python, which reads the lines of README's program.
"""
import re
import shlex
import sys

MOST = 5
SECTION = "## A put and a get"


def blocks(text):
    """(the blocks of commands of that section, its Python program)"""
    part = re.search(rf"^{re.escape(SECTION)}.*?(?=^## )", text, re.M | re.S)
    if part is None:
        sys.exit(f"newcomer.py: there is no section '{SECTION}'")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", part[0], re.M | re.S)
    programs = [body for language, body in found if language == "python"]
    commands = [re.findall(r"^([^#\n]*[^#\s])", body, re.M) for language, body in found if not language]
    if len(programs) != 1 or len(commands) != 2:
        sys.exit(f"newcomer.py: one program and two blocks of commands are expected, not {len(programs)} and {len(commands)}")
    return commands, programs[0]


def scripts(commands, program):
    """[install.sh, use.sh]. Each command is shown, and ends its script when it fails. What goes to the background is waited for, as who types does."""
    if len(commands) > MOST:
        sys.exit(f"newcomer.py: {len(commands)} commands, more than {MOST}: {commands}")
    install, use = ["set -eu"], ["set -eu"]
    lines = install
    for number, command in enumerate(commands, 1):
        said = f"echo {shlex.quote(f'newcomer: command {number} of {len(commands)}: {command}')}"
        if command.endswith("&"):
            lines = use
            lines += [said, f"{command} master=$!", "trap 'kill $master 2>/dev/null || true' EXIT", "end=$((SECONDS + 60))",
                      "until (: </dev/tcp/localhost/50051) 2>/dev/null; do [ $SECONDS -lt $end ]; kill -0 $master; sleep 0.1; done"]
        elif number < len(commands):
            lines += [said, command]
        elif lines is install or not command.endswith(("python", "python3")):
            sys.exit(f"newcomer.py: nothing was started, or the last command is no Python: {commands}")
        else:
            lines += [said, f"{command} >/said <<'PROGRAM'", program + "PROGRAM", "cat /said", "grep -qF \"b'hello, cluster'\" /said", "kill $master",
                      "wait $master", f"echo 'newcomer: a put and a get within {len(commands)} commands'"]
    return ["\n".join(lines) + "\n" for lines in (install, use)]


def main(readme, kind, folder):
    with open(readme, encoding="utf-8") as file:
        (checkout, engine), program = blocks(file.read())
    for name, text in zip(("install.sh", "use.sh"), scripts({"checkout": checkout, "engine": engine}[kind], program)):
        with open(f"{folder}/{name}", "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
