"""What the command lines of the laboratory say: sizes, parts, times and rates with their units."""
import argparse
import re

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
RATES = {"kbit": 125, "mbit": 125_000, "gbit": 125_000_000, "": 1}


def number_with(text, units, what):
    found = re.fullmatch(r"([0-9.]+)\s*([a-z%]*)", text.strip().lower())
    if not found or found.group(2) not in units:
        raise argparse.ArgumentTypeError(f"not {what}: {text}")
    return float(found.group(1)) * units[found.group(2)]


def part(text):
    return number_with(text, {"%": 0.01, "": 1}, "a part such as 1% or 0.01")


def milliseconds(text):
    return number_with(text, {"us": 0.001, "ms": 1, "s": 1000}, "a time such as 1ms")


def rate(text):
    return number_with(text, RATES, "a rate such as 1gbit")


def sizes(text):
    return [int(number_with(word.removesuffix("iB").removesuffix("ib"), UNITS, "a size such as 4K")) for word in text.split(",")]


def add_network_options(parser, loss=0.0, delay_ms=0.0, rate_option="--rate"):
    network = parser.add_argument_group("network, between any two hosts and each way")
    network.add_argument("--loss", type=part, default=loss, help=f"default {loss:.1%}".replace("%", "%%"))
    network.add_argument("--delay", type=milliseconds, default=delay_ms, help=f"default {delay_ms:g}ms")
    network.add_argument("--reorder", type=part, default=0.0, help="packets that come 3 ms late")
    network.add_argument(rate_option, dest="line_rate", type=rate, default=0, help="of each host's port, for example 1gbit; default: what this machine can do")
    network.add_argument("--mtu", type=int, default=1500)
