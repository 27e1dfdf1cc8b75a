"""python -m mooncake.http_metadata_server --port N [--host H]: the native command mooncake_http_metadata_server."""
import sys

from mooncake._native import become


def main():
    become("mooncake_http_metadata_server", sys.argv[1:])


if __name__ == "__main__":
    main()
