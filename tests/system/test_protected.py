"""Without keys: what a listener that other machines reach says of itself."""
from far_callers import inside


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
