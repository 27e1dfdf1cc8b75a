"""python -m mooncake.vllm_v1_proxy_server --prefiller-hosts H... --prefiller-ports P... --decoder-hosts ...: mooncake_proxy with the original's defaults."""
import sys

from mooncake._native import become

_DEFAULTS = (  # names of a flag, and what it is when it is not given
    (("--host",), "127.0.0.1"),
    (("--prefiller-hosts", "--prefiller-host"), "localhost"),
    (("--prefiller-ports", "--prefiller-port"), "8100"),
    (("--decoder-hosts", "--decoder-host"), "localhost"),
    (("--decoder-ports", "--decoder-port"), "8200"),
)


def main():
    words = sys.argv[1:]
    given = {word.split("=", 1)[0].replace("_", "-") for word in words}
    for names, value in _DEFAULTS:
        if given.isdisjoint(names):
            words += [names[0], value]
    become("mooncake_proxy", words)


if __name__ == "__main__":
    main()
