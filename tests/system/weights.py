"""Random placements of weights, as plain data, and the copies that a plan of them asks for.

A case is made from a seed alone, so that two implementations can be given the same; build_*() makes it with the one that is given.
"""
import functools
import itertools
import math
import random

KINDS = ("dp", "pp", "ep", "tp")
RESOURCE = {"resource_id": "model", "revision": "step-1", "weight_generation": 3}
GROUP = "weights/default/model/step-1"


class Case:
    """Tensors, and ways to spread them over ranks."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.shapes = {}
        for index in range(self.random.randint(1, 3)):
            dimensions = self.random.choice((1, 2, 2, 3, 4))
            self.shapes[f"layer.{index}"] = ([self.random.randint(2, 7 if dimensions < 4 else 4) for _ in range(dimensions)], self.random.choice((1, 2, 4)))

    def placement(self, name, **sizes):
        """As build_placement() takes it. Without `sizes`, axes of one to three ranks."""
        pick = self.random
        sizes = {kind: sizes.get(kind, pick.choice((1, 1, 2, 3))) for kind in KINDS}
        ranks = [dict(zip(KINDS, rank)) for rank in itertools.product(*(range(sizes[kind]) for kind in KINDS))]
        coupled = pick.random() < 0.2 and sizes["ep"] == sizes["tp"] > 1
        if coupled:  # experts lie on the ranks of tensor parallelism
            ranks = [rank for rank in ranks if rank["ep"] == rank["tp"]]
        pick.shuffle(ranks)
        tensors, fragments = [], []
        for tensor_id, (shape, itemsize) in self.shapes.items():
            axes = self.axes(shape, sizes, pick.choice(("ep", "tp")) if coupled else None)
            tensors.append(described(tensor_id, shape, itemsize, axes))
            fragments += self.held(tensor_id, shape, itemsize, axes, sizes, ranks)
        pick.shuffle(tensors)
        pick.shuffle(fragments)
        return {"placement_set_id": name, "sizes": sizes, "ranks": ranks, "tensors": tensors, "fragments": fragments}

    def axes(self, shape, sizes, left_out):
        """[kind, semantics, dimension or None] of each axis; some of those that have one rank are not named."""
        axes, taken = [], set()
        for kind in KINDS:
            free = [dim for dim, extent in enumerate(shape) if extent >= sizes[kind] and dim not in taken and (kind == "tp" or dim == 0)]
            semantics = self.random.choice(("replicated", "ownership") + (("split",) * 3 if kind in ("ep", "tp") and free else ()))
            if kind == left_out or (sizes[kind] == 1 and self.random.random() < 0.5):
                continue
            dim = self.random.choice(free) if semantics == "split" else None
            taken.add(dim)
            axes.append([kind, semantics, dim])
        return axes

    def held(self, tensor_id, shape, itemsize, axes, sizes, ranks):
        """Every rank's fragments: its slice along the split axes, now and then in pieces, if it is one of the owners."""
        pick = self.random
        owners = {kind: set(pick.sample(range(sizes[kind]), pick.choice((1, 1, sizes[kind])))) for kind, semantics, _ in axes if semantics == "ownership"}
        cuts = {kind: [0, *sorted(pick.sample(range(1, shape[dim]), sizes[kind] - 1)), shape[dim]] for kind, semantics, dim in axes if semantics == "split"}
        pieces = {}
        found = []
        for rank in ranks:
            if any(rank[kind] not in chosen for kind, chosen in owners.items()):
                continue
            offset, extent = [0] * len(shape), list(shape)
            for kind, semantics, dim in axes:
                if semantics == "split":
                    offset[dim] = cuts[kind][rank[kind]]
                    extent[dim] = cuts[kind][rank[kind] + 1] - offset[dim]
            key = (tuple(offset), tuple(extent))
            if key not in pieces:  # replicas are cut alike
                pieces[key] = self.pieces(*key) if pick.random() < 0.3 else [key]
            found += [fragment(tensor_id, itemsize, *piece, rank=rank) for piece in pieces[key]]
        return found

    def pieces(self, offset, extent, depth=2):
        """A tiling of the box."""
        dims = [dim for dim, size in enumerate(extent) if size > 1]
        if not dims or depth == 0:
            return [(tuple(offset), tuple(extent))]
        dim = self.random.choice(dims)
        cut = self.random.randint(1, extent[dim] - 1)
        left, right = list(extent), list(extent)
        left[dim], right[dim] = cut, extent[dim] - cut
        further = list(offset)
        further[dim] += cut
        return self.pieces(offset, left, depth - 1) + self.pieces(further, right, depth - 1)

    def manifest(self):
        """As build_manifest() takes it: all in the store, some objects with several fragments."""
        tensors = [described(tensor_id, shape, itemsize, [["tp", "split", 0]]) for tensor_id, (shape, itemsize) in self.shapes.items()]
        fragments, ends = [], {}
        for tensor_id, (shape, itemsize) in self.shapes.items():
            for offset, extent in self.pieces([0] * len(shape), shape, 3):
                key = f"{GROUP}/payload/{self.random.randint(0, 3)}"
                one = fragment(tensor_id, itemsize, offset, extent)
                one.update(fragment_id=f"stored-{len(fragments)}", object_key=key, object_offset=ends.get(key, 0))
                ends[key] = one["object_offset"] + one["nbytes"] + self.random.choice((0, 5))
                fragments.append(one)
        self.random.shuffle(fragments)
        return {"tensors": tensors, "fragments": fragments}


def described(tensor_id, shape, itemsize, axes):
    return {"tensor_id": tensor_id, "global_shape": tuple(shape), "dtype": f"int{8 * itemsize}", "itemsize": itemsize, "layout_fingerprint": "row-major",
            "shard_dims": tuple(sorted(dim for _, semantics, dim in axes if semantics == "split")), "parallel_axes": axes}


def fragment(tensor_id, itemsize, offset, extent, **more):
    return {"tensor_id": tensor_id, "global_offset": tuple(offset), "local_shape": tuple(extent), "nbytes": math.prod(extent) * itemsize, **more}


def build_tensor(weight, said):
    classes = {"split": weight.SplitAxis, "replicated": weight.ReplicatedAxis, "ownership": weight.OwnershipAxis}
    axes = tuple(classes[semantics](kind, *(() if dim is None else (dim,))) for kind, semantics, dim in said["parallel_axes"])
    return weight.TensorDescriptor(**{**said, "parallel_axes": axes})


def build_placement(weight, said):
    participants = tuple(weight.TopologyParticipant(f"worker-{index}", weight.ParallelRank(**rank)) for index, rank in enumerate(said["ranks"]))
    topology = weight.ParallelTopology(participants=participants, **{f"{kind}_size": size for kind, size in said["sizes"].items()})
    return weight.WeightPlacementManifest.from_fragments(
        **RESOURCE, placement_set_id=said["placement_set_id"], topology=topology, tensors=[build_tensor(weight, one) for one in said["tensors"]],
        fragments=[weight.PlacementFragment(**{**one, "rank": weight.ParallelRank(**one["rank"])}) for one in said["fragments"]])


def build_manifest(weight, said):
    return weight.WeightManifest(namespace="default", **RESOURCE, group_id=GROUP, manifest_key=f"{GROUP}/manifest", created_at="2026-01-01T00:00:00Z",
                                 tensors=tuple(build_tensor(weight, one) for one in said["tensors"]),
                                 fragments=tuple(weight.StoredFragment(**one) for one in said["fragments"]))


@functools.lru_cache(1000)
def cut_out(name, shape, itemsize, offset, extent):
    """The bytes of a box of a tensor, element by element: nothing here is clever. A tensor's bytes are made of its name."""
    data = random.Random(name).randbytes(math.prod(shape) * itemsize)
    out = bytearray()
    for index in itertools.product(*(range(begin, begin + size) for begin, size in zip(offset, extent))):
        place = 0
        for here, size in zip(index, shape):
            place = place * size + here
        out += data[place * itemsize:(place + 1) * itemsize]
    return bytes(out)


def cut(tensor, one):
    return cut_out(tensor.tensor_id, tensor.global_shape, tensor.itemsize, one.global_offset, one.local_shape)


def carry_out(plan):
    """{target fragment id: its bytes} after the plan's copies; each byte must be written once."""
    tensors = {tensor.tensor_id: tensor for tensor in plan.target_tensors}
    memory, written = {}, {}
    for region in plan.operations:
        target = region.target
        source = cut(tensors[region.tensor_id], region.source)
        data = memory.setdefault(target.fragment_id, bytearray(target.nbytes))
        times = written.setdefault(target.fragment_id, bytearray(target.nbytes))
        for source_offset, target_offset, nbytes in region.iter_segments(max_segments=1 << 20):
            assert source_offset + nbytes <= len(source) and target_offset + nbytes <= len(data)
            data[target_offset:target_offset + nbytes] = source[source_offset:source_offset + nbytes]
            for place in range(target_offset, target_offset + nbytes):
                times[place] += 1
    assert all(set(times) == {1} for times in written.values()), "bytes were left out, or written twice"
    return {name: bytes(data) for name, data in memory.items()}
