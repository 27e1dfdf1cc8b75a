"""Without keys: what callers from beyond this machine and private networks may not do, and what a listener that they reach says of itself."""
import pytest

from far_callers import inside


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_who_is_far_changes_no_document_of_another_address(host):
    told = inside("metadata", host, "")
    statuses = [status for status, _text in told["answers"]]
    assert statuses == [200, 200, 403, 403, 200, 200, 200, 200, 403, 403, 200, 404, 200, 200, 403, 200]
    assert told["answers"][4][1] == "2"  # what its writer has said
    assert "MC_PROTECTED_MODE=no" in told["answers"][2][1] and "--auth_file" in told["answers"][3][1]
    assert "203.0.113.9:" in told["log"] and "may not change a document that another address has written" in told["log"]
    assert told["warned"] == [told["port"]]


def test_what_another_one_writes_while_the_old_address_is_looked_at_stays():
    assert inside("metadata_meanwhile") == {"is_meanwhile": True, "told": [200, 200, 200, 403]}


def test_who_is_far_changes_documents_where_everybody_may():
    told = inside("metadata", "0.0.0.0", "no")
    assert [status for status, _text in told["answers"]] == [200, 200, 200, 200, 404, 200, 200, 200, 200, 200, 404, 404, 200, 200, 200, 200]
    assert told["warned"] == []


def test_who_is_far_removes_single_values_alone():
    told = inside("store_service", "")
    assert [status for status, _text in told["answers"]] == [200, 200, 403, 200, 200]
    assert "MC_PROTECTED_MODE=no" in told["answers"][2][1] and "success removed 1 keys" in told["answers"][3][1]
    assert told["warned"] == [17001, told["port"], 17002] and told["quiet"] == []


def test_who_is_far_removes_all_where_everybody_may():
    told = inside("store_service", "no")
    assert [status for status, _text in told["answers"]] == [200, 200, 200, 200, 200] and "success removed 1 keys" in told["answers"][2][1]
    assert told["warned"] == []


def test_each_listener_that_others_reach_says_so_once():
    told = inside("listeners", "0.0.0.0")
    assert len(told["master"]) == 4 and told["master warned"] == told["master"]
    assert told["proxy warned"] == [told["proxy"]]
    assert told["engines"] == "[0, 0]\n"
    assert len(told["engines warned"]) == 2  # a line for handshakes and one for data, whatever the number of engines
    assert "memory is, and leave it notes" in told["engines warned"][0] and "read and write all memory" in told["engines warned"][1]


def test_listeners_of_this_machine_alone_say_nothing():
    told = inside("listeners", "127.0.0.1")
    assert len(told["master"]) == 4 and told["engines"] == "[0, 0]\n"
    assert told["master warned"] == told["proxy warned"] == told["engines warned"] == []
