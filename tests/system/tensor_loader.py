"""A DataLoader whose workers read tensors, each with a store of its own; run by torch_tensors.py.

    tensor_loader.py MASTER fork|spawn
"""
import os
import sys

import torch

sys.path.insert(0, os.environ["MC_PYTHONPATH"])

from mooncake.store import MooncakeDistributedStore  # noqa: E402

COUNT = 12
parents = None


def joined(master):
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", master) == 0
    return store


class Samples(torch.utils.data.Dataset):
    def __init__(self, master):
        self.master, self.store = master, None

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        if self.store is None:
            self.store = joined(self.master)
        # The parent's: none where the worker was spawned, an error at once where it was forked.
        assert parents is None or (parents.get_tensor(f"sample {index}") is None and parents.put("never", b"v") == -1010)
        return self.store.get_tensor(f"sample {index}")


def main(master, method):
    global parents
    parents = joined(master)
    for index in range(COUNT):
        assert parents.put_tensor(f"sample {index}", torch.full((100, 100), float(index))) == 0
    loader = torch.utils.data.DataLoader(Samples(master), batch_size=3, num_workers=2, multiprocessing_context=method, persistent_workers=True)
    for _ in range(2):
        batches = list(loader)
        assert [int(each) for batch in batches for each in batch[:, 0, 0]] == list(range(COUNT))
        assert all(bool((batch == batch[:, :1, :1]).all()) for batch in batches)
    assert parents.get_tensor("sample 5")[0, 0] == 5 and parents.is_exist("never") == 0
    print("fine")  # and ends with workers, loader and store as they are


if __name__ == "__main__":
    main(*sys.argv[1:])
