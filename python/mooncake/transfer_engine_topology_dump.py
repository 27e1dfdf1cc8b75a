"""python -m mooncake.transfer_engine_topology_dump: the native command transfer_engine_topology_dump."""
import sys

from mooncake._native import become


def main():
    become("transfer_engine_topology_dump", sys.argv[1:])


if __name__ == "__main__":
    main()
