"""The transfer engine on a network that fails."""
import pytest

from test_nixl_plugin import Pair, all_failed, all_succeeded


@pytest.mark.parametrize("loss", [0, 0.01])
@pytest.mark.parametrize("operation", ["read", "write"])
def test_what_nixl_sees_of_a_target_that_is_cut_off(make_lab, tmp_path, operation, loss):
    """tests/system/test_nixl_plugin.py has the other faults. When the cut is healed, nothing of what had failed is written."""
    lab = make_lab(seed=3, loss=loss, delay_ms=1)
    far, near = lab.host("far"), lab.host("near")
    with Pair(tmp_path, operation, (far.address, near.address), (far.popen, near.popen)) as pair:
        pair.moving()
        far.partition()
        all_failed(pair.fault())
        far.heal()
        pair.moving()
        all_succeeded(pair.fault())
