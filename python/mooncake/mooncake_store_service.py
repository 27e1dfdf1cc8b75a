"""python -m mooncake.mooncake_store_service --config F --port N: the native command mc_store_rest_server."""
import sys

from mooncake._native import become


def sync_main():
    become("mc_store_rest_server", sys.argv[1:])


if __name__ == "__main__":
    sync_main()
