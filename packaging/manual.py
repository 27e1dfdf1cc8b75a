#!/usr/bin/env python3
"""Manual pages and bash completion out of what --help of each command says: manual.py BUILD writes packaging/manual anew.

They are kept in the tree, because a package for another processor cannot ask its commands. A test compares them with what BUILD's commands say now.
"""
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
TARGET = HERE / "manual"
COMMANDS = ("mooncake", "mooncake_master", "mooncake_client", "mc_store_rest_server", "mooncake_http_metadata_server", "mooncake_proxy", "mooncake_doctor", "mooncake_disk",
            "mooncake_key", "transfer_engine_topology_dump", "transfer_engine_bench", "mooncake_bench")
OF_BENCH = ("replay", "node", "work", "engine", "disk", "policy", "raw")
NOTHING = " [accepted, no effect here]"
ABSENT = re.compile(r" \[not here: (.*)\]$")


class Option:
    def __init__(self, name, words, more):
        alias = re.match(r"the same as --(\w+)$", words)
        absent = ABSENT.search(words)
        self.name, self.alias = name, alias and alias[1]
        self.has_effect = not (words.endswith(NOTHING) or absent)
        self.words = ABSENT.sub("", words).replace(NOTHING, "")
        allowed, _, rest = more.strip().partition("; default ")
        default, _, self.file_name = rest.partition("; in a config file also ")
        self.allowed, self.default = allowed, default
        self.is_switch = allowed == "true or false"
        self.choices = allowed.removeprefix("one of ").strip("|").split("|") if allowed.startswith("one of ") else []


def ask(build, words):
    return subprocess.run([str(build / words[0]), *words[1:], "--help"], capture_output=True, text=True, check=True, timeout=30).stdout


def everything(build, words):
    """What --help says, with the flags that have no effect where a command tells them apart."""
    text = ask(build, words)
    return subprocess.run([str(build / words[0]), *words[1:], "--helpfull"], capture_output=True, text=True, check=True, timeout=30).stdout if "  --helpfull  " in text else text


def parsed(text):
    """(lines before the flags, [(section, [options])])"""
    head, sections = [], []
    lines = text.splitlines()
    for i, line in enumerate(lines):
        flag = re.match(r"  --(\w+)  (.*)$", line)
        if flag:
            if not sections:
                sections.append(("", []))
            more = lines[i + 1] if i + 1 < len(lines) and lines[i + 1].startswith(" " * 8) else ""
            sections[-1][1].append(Option(flag[1], flag[2], more))
        elif line and not line.startswith(" ") and any(re.match("  --", one) for one in lines[i + 1:i + 2]) and (sections or not lines[i - 1]):
            sections.append((line, []))
        elif not sections:
            head.append(line)
    return head, sections


# ---- manual pages ----

def roff(text):
    """A line's text: what roff would take for its own is escaped."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return "\\&" + text if text[:1] in (".", "'") else text


def entry(option):
    value = "" if option.is_switch else "=" + ("|".join(option.choices) or {"text": "TEXT", "a duration": "TIME"}.get(re.match(r"text|a duration|", option.allowed)[0], "NUMBER"))
    tail = "" if option.is_switch and option.default == "false" else f" ({option.allowed}; default {option.default})" if option.choices == [] else f" (default {option.default})"
    tail = tail.replace("text of up to 4095 bytes; ", "").replace(' (default "")', "")
    return f".TP\n.B {roff('--' + option.name + value)}\n{roff(option.words + tail)}\n"


def usage(head):
    """The lines of the usage, and what stands around them."""
    used, rest, within = [], [], False
    for line in head:
        found = re.match(r"[Uu]sage: (.*)$", line)
        within = bool(found) or (within and line.startswith("       "))
        (used if within else rest).append(found[1] if found else line.strip() if within else line)
    return used, rest


def page(words, text, short=None):
    """short: one line about it, where its own help begins with the usage."""
    name = "-".join(words)
    head, sections = parsed(text)
    used, rest = usage(head)
    rest = [line for line in rest if line.strip()]
    said, exits = [line for line in rest if not line.startswith("Exit code:")], [line for line in rest if line.startswith("Exit code:")]
    if short:
        said.insert(0, short + ".")
    said[0] = said[0].removeprefix(words[0] + ": ")
    short = short or said[0].rstrip(".").split(". ")[0].split(": ")[0]
    parts = [f".TH {name.upper().replace('-', chr(92) + '-')} 1 \"\" \"Mooncake in C\"\n.nh\n.ad l\n.SH NAME\n{roff(name)} \\- {roff(short)}\n"]
    parts.append(".SH SYNOPSIS\n.nf\n" + "".join(f"{roff(line)}\n" for line in used) + ".fi\n")
    parts.append(".SH DESCRIPTION\n.nf\n" + "".join(f"{roff(line)}\n" for line in said) + ".fi\n")
    others = []
    if sections:
        parts.append(".SH OPTIONS\n")
    for section, options in sections:
        shown = [option for option in options if option.has_effect and not option.alias]
        others += [option.name for option in options if not option.has_effect]
        parts += [f".SS {roff(section)}\n"] * bool(section and shown) + [entry(option) for option in shown]
        for option in (one for one in options if one.alias):
            parts.append(f".TP\n.B {roff('--' + option.name)}\nthe same as {roff('--' + option.alias)}\n")
    if others:
        parts.append(".SS Accepted without effect\n" + roff(", ".join(f"--{one}" for one in others)) + "\n")
    if exits:
        parts.append(".SH EXIT STATUS\n" + "".join(f"{roff(line.removeprefix('Exit code: '))}\n" for line in exits))
    also = [one for one in (*COMMANDS, *("mooncake_bench-" + one for one in OF_BENCH)) if one != name and (one.startswith("mooncake_bench") == name.startswith("mooncake_bench"))]
    parts.append(".SH SEE ALSO\n" + ",\n".join(f".BR {roff(one)} (1)" for one in also).replace(",\n", " ,\n") + "\n")
    return "".join(parts)


# ---- completion ----

COMPLETION = r"""# bash completion of {name}; made by packaging/manual.py of what --help says.
_{name}() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]:-}} flag=
    if [ "$word" = = ]; then
        flag=$before word=
    elif [ "$before" = = ]; then
        flag=${{COMP_WORDS[COMP_CWORD - 2]:-}}
    elif [ $COMP_CWORD -gt 1 ]; then
        case $before in -*) flag=$before ;; esac
    fi
    case ${{COMP_WORDS[1]:-}}:$flag in
{cases}    esac
    case $word:$COMP_CWORD in
{words}    esac
    COMPREPLY=()
}}
complete -o default -F _{name} {name}
"""


def flag_words(sections):
    """What may be typed, and by flag what it takes; a switch takes nothing."""
    options = [option for _, options in sections for option in options if option.has_effect and not option.alias]
    return " ".join("--" + option.name for option in options), {f"--{option.name}": " ".join(option.choices) for option in options if not option.is_switch}


def first_words(name, text):
    """What its usage has behind its name: `new` of "mooncake_key new FILE", the three of "mooncake_disk check|list|stat PATH"."""
    return [word for words in re.findall(rf"^(?:Usage:|      ) {name} ([a-z|]+)\b", text, re.M) for word in words.split("|")]


def completion(name, texts):
    """texts: {() or (command of the bench,): what --help says}"""
    cases, words = [], []
    for command, text in texts.items():
        flags, values = flag_words(parsed(text)[1])
        first = command[0] if command else "*"
        for flag, choices in values.items():
            if choices:
                cases.append(f'    {first}:{flag}) COMPREPLY=($(compgen -W "{choices}" -- "$word")) && return ;;\n')
        files = "|".join(f"{first}:{flag}" for flag, choices in values.items() if not choices)
        cases += [f"    {files}) COMPREPLY=() && return ;;\n"] * bool(files)
        if flags:
            condition = f'[ "${{COMP_WORDS[1]:-}}" = {command[0]} ] && ' if command else ""
            words.append(f'    -*) {condition}COMPREPLY=($(compgen -W "{flags}" -- "$word")) && return ;;&\n')
    firsts = [command[0] for command in texts if command] or first_words(name, texts[()])
    if firsts:
        words.insert(0, f'    *:1) COMPREPLY=($(compgen -W "{" ".join(firsts)}" -- "$word")) && return ;;&\n')
    return COMPLETION.format(name=name, cases="".join(cases), words="".join(words) or "    *) ;;\n")


def made(build):
    """{path below packaging/manual: text}"""
    found = {}
    for name in COMMANDS:
        texts = {(): everything(build, [name])}
        shorts = dict(re.findall(r"^  (\w+) +(\S.*)$", texts[()], re.M)) | {"": "measures the store, the transfer engine and the machine"} if name == "mooncake_bench" else {}
        texts.update({(one,): everything(build, [name, one]) for one in OF_BENCH if name == "mooncake_bench"})
        for command, text in texts.items():
            words = [name, *command]
            found[f"man1/{'-'.join(words)}.1"] = page(words, text, shorts.get("".join(command)))
        found[f"completion/{name}"] = completion(name, texts)
    found["meson.build"] = installed(found)
    return found


def installed(found):
    """Meson wants each file's name."""
    names = {folder: "".join(f"  '{path}',\n" for path in sorted(found) if path.startswith(folder)) for folder in ("man1", "completion")}
    return (f"# Made by packaging/manual.py.\ninstall_data(\n{names['man1']}  install_dir: get_option('datadir') / 'man' / 'man1')\n"
            f"install_data(\n{names['completion']}  install_dir: get_option('datadir') / 'bash-completion' / 'completions')\n")


def main(build):
    shutil.rmtree(TARGET, ignore_errors=True)
    for path, text in made(pathlib.Path(build).resolve()).items():
        (TARGET / path).parent.mkdir(parents=True, exist_ok=True)
        (TARGET / path).write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
