"""Engines of ours and of the original exchange bytes, both ways, over P2PHANDSHAKE, HTTP metadata servers and etcd: tests of tests/system that skip
where the original is not installed. Here it is, so they must run."""
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "system"))

import test_engine  # noqa: E402
from test_engine import metadata, test_original_and_ours_on_one_metadata_server, test_the_original_calls_us, test_we_call_the_original  # noqa: E402,F401
from test_engine_metadata import (servers, test_at_the_server_of_the_original, test_original_and_ours, test_original_and_ours_at_a_master,  # noqa: E402,F401
                                  test_the_original_comes_back_at_our_server)


def test_the_original_is_here():
    assert test_engine.ORIGINAL is not None, os.environ.get("MC_CLIENTS")
