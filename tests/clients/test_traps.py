"""What real clients lean on without saying so, each a test by name. All run once for each side, in one process; the tests look at its steps."""
import pytest


@pytest.fixture(scope="module")
def steps(compare):
    """Of mooncake.store."""
    return compare("traps of the store", lambda cluster: cluster.run("traps.py", None), {
        "01 dict setup": "the original's dict knows only its own names, and a second segment of one process has no local descriptor",
        "02 keyword names": "sometimes: of several stores in one process the original's later ones have no segment descriptor, and code -600",
        "03 eighth argument": "sometimes: as above",
        "08 interpreter goes on": "sometimes: on a busy machine the original's calls have not begun to wait",
        "11 rdma by tcp": "sometimes: as above",
        "12 never closed": "sometimes: in the original's time",
        "13 lost master": "sometimes: on a busy machine the original has answered that the keys are not there",
        "13 never set up": "the original ends by SIGSEGV in batch_get_into of a store that was never set up",
        "14 keys": "sometimes: names that the original refuses",
    }, node_bytes=64 << 20)


@pytest.fixture(scope="module")
def engine_steps(compare):
    sometimes = "sometimes: the original looks at the batch's first entry only"
    return compare("traps of the engine", lambda cluster: cluster.run("traps_engine.py", None),
                   {"07 status of the whole batch": sometimes, "one bad entry fails the batch": sometimes}, node_bytes=0)


def test_lmcache_sets_up_by_a_dict_of_strings_with_both_spellings(steps):
    assert steps["01 dict setup"] == [[0, 0]] * 3


def test_fastdeploy_sets_up_by_keywords(steps):
    size = 1 << 16
    assert steps["02 keyword names"] == [0, 0, 0, 0, 0, [0], [0], [size], [size], [None], 0, -704]


def test_sglang_gives_an_eighth_argument_and_reads_type_errors(steps):
    assert steps["03 eighth argument"] == [0, [True], 0]


def test_results_are_lists_of_ints(steps):
    size = 1 << 16
    assert steps["04 result types"] == [[True, True, codes] for codes in ([0, 0], [size, -704], [1, 0], [0], [30, -704], [], [], [])]


def test_an_object_of_no_bytes_is_never_there(steps):
    put, exist, got = steps["04 zero length"]
    assert put == [-600, 0, 0, 0, -600, -600, -600] and exist == [0, 0, 0] and got == [-704] * 3


def test_put_of_an_existing_key_and_other_codes(steps):
    assert steps["05 codes"] == {
        "put": 0, "put again": 0, "old value stays": True, "empty value": -600, "remove while leased": -706, "remove by force": 0,
        "remove nothing": -704, "missing": [-704], "register": 0, "register twice": -600, "unregister": 0, "unregister twice": -600,
        "too little": [-600], "more than there is": [-200]}


def test_get_of_nothing_is_empty_bytes(steps):
    assert steps["06 get of nothing"] == ["b''", "b''"]


def test_status_covers_the_whole_batch(engine_steps):
    assert engine_steps["07 status of the whole batch"] == [[True, 1, True]]
    assert engine_steps["one bad entry fails the batch"] is True


def test_one_store_is_used_by_many_threads(steps):
    assert steps["08 threads"] == []


def test_every_blocking_call_releases_the_gil(steps):
    everyone_waits, interpreter_goes_on, left = steps["08 interpreter goes on"]
    assert everyone_waits and interpreter_goes_on and left == 0


def test_hasattr_of_replicate_config(steps):
    assert steps["09 features"] == {"class group_ids": True, "object group_ids": True, "session_ids": False}


def test_imports_fail_only_with_import_error(steps):
    assert steps["10 broken store"] == steps["10 broken engine"] == "ImportError"


def test_four_gigabytes_are_committed_lazily(steps):
    assert steps["11 lazy memory"] == [0, True, True]


def test_protocol_rdma_without_a_device(steps, engine_steps):
    assert steps["11 rdma by tcp"] == [0, 0, True]
    assert engine_steps["11 rdma by tcp"] == 0


def test_a_store_that_is_never_closed(steps):
    assert steps["12 never closed"] == [0, ["0 b'1'"], True]


def test_a_store_that_was_never_set_up_has_misses(steps):
    found = steps["13 never set up"]
    assert found["exists"] != 1 and found["batch exists"] == [True] and found["get"] == "b''" and found["buffers"] == [None]
    assert found["get into"] == [True] and found["put"] is True and found["close"] == [0, 0]


def test_a_failed_existence_check_is_negative_and_thereby_true(steps):
    """LMCache takes the code as a truth value: only a failure may be negative, a miss is 0."""
    assert steps["13 lost master"] == ["ready 0", ["[True, True, True]"]]


def test_keys_with_signs(steps):
    put, same, exist, prefix = steps["14 keys"]
    assert put == [0] * len(put) and all(same) and exist == [1] * len(put) and prefix == 0


def test_buffers_outlive_their_handle(steps):
    missing, bytewise, itemsize, dimensions, length, whole, head = steps["15 buffers"]
    assert missing is None and bytewise and itemsize == dimensions == 1 and length == 5000 and whole and head
