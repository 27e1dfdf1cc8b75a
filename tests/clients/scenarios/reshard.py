"""mooncake.reshard of one side, on random cases; no cluster. Says what it makes of them, and what it reads of what the other side made.

reshard.py FIRST COUNT              prints one JSON line for each seed
reshard.py read                     reads such lines, and prints for each what it finds in its manifests
"""
import base64
import json
import pathlib
import pickle
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "system"))
import weights  # noqa: E402

from mooncake.reshard import weight  # noqa: E402


def tell(make, *arguments, **more):
    """What was made, or what was raised, as text."""
    try:
        return make(*arguments, **more), None
    except ValueError as error:
        return None, f"{type(error).__name__}: {error}"


def of_plan(plan):
    return {"regions": [[one.tensor_id, one.source.fragment_id, one.target.fragment_id, one.overlap_offset, one.overlap_shape, one.source_base_offset,
                         one.target_base_offset, one.inner_bytes, one.outer_loop_counts, one.source_strides, one.target_strides] for one in plan.operations],
            "executors": [[side, one.placement_id, one.participant_id, repr(one.rank), one.placement_fragment_ids,
                           plan.operation_indices_for_executor(one, side)]
                          for side in ("source", "target") for one in getattr(plan, f"{side}_executors")],
            "routes": [repr(one) for one in plan.pipeline_routes], "source": repr(plan.source_manifest_identity), "bytes": plan.total_bytes}


def of_placement(placement):
    return {"json": weight.weight_placement_to_json(placement), "id": placement.placement_id, "digest": placement.digest,
            "topology": placement.topology.topology_id}


def of_manifest(manifest):
    return {"json": manifest.to_json(), "digest": manifest.manifest_digest, "identity": repr(manifest.manifest_identity)}


def damaged(said, pick):
    """One fragment or tensor is wrong, in one of several ways."""
    one = pick.choice(said["fragments"] if pick.random() < 0.7 else said["tensors"])
    name = pick.choice([name for name in one if name not in ("rank", "parallel_axes")])
    one[name] = pick.choice((None, -1, 0, True, 1.5, "", "other", (), (0, 0), 1 << 64, ["layer.0"]))


def play(seed):
    case = weights.Case(seed)
    said = [case.placement("source"), case.placement("target"), case.manifest()]
    if seed % 3 == 2:
        damaged(case.random.choice(said), case.random)
    (source, first), (target, second), (stored, third) = (tell(weights.build_manifest if "ranks" not in one else weights.build_placement, weight, one)
                                                          for one in said)
    told = {"seed": seed, "errors": [first, second, third]}
    if source:
        told["source"] = of_placement(source)
    if stored:
        told["stored"] = of_manifest(stored)
    plans = {}
    if source and target:
        plans["whole"] = tell(weight.plan_placement_transfer, source, target)
        for part in target.parts[:2]:
            plans[part.participant_id] = tell(weight.plan_placement_transfer_to_local_target, source, target, part.participant_id)
    if stored and target:
        plans["stored"] = tell(weight.plan_stored_transfer_to_target_placement, stored, target)
    told["plans"] = {name: error or of_plan(plan) for name, (plan, error) in plans.items()}
    told["pickles"] = [base64.b64encode(pickle.dumps(plan)).decode() for plan, _ in plans.values() if plan]
    return told


def read(told):
    found = {"seed": told["seed"], "plans": [of_plan(pickle.loads(base64.b64decode(one))) for one in told["pickles"]]}
    if "source" in told:
        found["source"] = of_placement(weight.weight_placement_from_json(told["source"]["json"]))
    if "stored" in told:
        found["stored"] = of_manifest(weight.WeightManifest.from_json(told["stored"]["json"]))
    return found


if __name__ == "__main__":
    if sys.argv[1] == "read":
        for line in sys.stdin:
            print(json.dumps(read(json.loads(line))))
    else:
        for number in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
            print(json.dumps(play(number)))
