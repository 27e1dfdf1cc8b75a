"""Plans of mooncake.reshard: carried out on bytes, they make exactly the target's fragments, whatever the topologies. No server is needed."""
import dataclasses
import itertools
import os
import pathlib
import pickle
import sys

import pytest

import weights

sys.path.insert(0, os.environ["MC_PYTHONPATH"])

from mooncake.reshard import geometry, weight  # noqa: E402
from mooncake.reshard.weight import (  # noqa: E402
    ParallelRank, PlanningLimits, plan_placement_transfer,
    plan_placement_transfer_to_local_target, plan_stored_transfer_to_target_placement)

CASES = 100
# What a placement may be and a plan not: the tensors of a data-parallel rank are spread over owners that lack others.
NO_PLAN = ("target tensor is not fully covered", "source manifests have no complete DP replica", "DP-owned source tensor has ambiguous declared owners")


def cases(count, first=0):
    """(seed, source, target, stored), of those seeds whose placements are complete."""
    for seed in range(first, first + count):
        case = weights.Case(seed)
        said = case.placement("source"), case.placement("target")
        stored = weights.build_manifest(weight, case.manifest())
        try:
            source, target = (weights.build_placement(weight, one) for one in said)
        except ValueError as error:
            # The axes of a case may contradict its ranks: owners among coupled ranks, mostly.
            assert "parallel semantics" in str(error) or "axis participant" in str(error) or "undeclared" in str(error), (seed, error)
            continue
        yield seed, source, target, stored


def wanted(plan, parts):
    tensors = {tensor.tensor_id: tensor for tensor in plan.target_tensors}
    return {one.fragment_id: weights.cut(tensors[one.tensor_id], one) for part in parts for one in part.fragments}


def test_plans_make_exactly_the_target():
    planned, refused, shapes = 0, 0, set()
    for seed, source, target, stored in cases(CASES):
        plan = plan_stored_transfer_to_target_placement(stored, target) if all_ranks_whole(target) else None
        plans = [(plan, target.parts)] if plan else []
        try:
            plans.append((plan_placement_transfer(source, target), target.parts))
        except ValueError as error:
            assert str(error).startswith(NO_PLAN), (seed, error)
            refused += 1
        else:
            plans += [(plan_placement_transfer_to_local_target(source, target, part.participant_id), [part]) for part in target.parts if part.fragments]
        for plan, parts in plans:
            assert weights.carry_out(plan) == wanted(plan, parts), seed
            assert plan.total_bytes == sum(one.nbytes for part in parts for one in part.fragments)
            shapes.update(len(region.outer_loop_counts) for region in plan.operations)
        planned += len(plans)
    assert planned > 200 and shapes >= {0, 1, 2} and refused < CASES / 4


def all_ranks_whole(target):
    try:
        plan_placement_transfer(target, target)
    except ValueError as error:
        return not str(error).startswith(NO_PLAN[0])
    return True


def test_views_of_a_plan():
    for seed, source, target, _ in cases(40, 1000):
        try:
            plan = plan_placement_transfer(source, target)
        except ValueError:
            continue
        assert plan.source_placement_id == source.placement_id and plan.target_placement_id == target.placement_id
        for side, executors in (("source", plan.source_executors), ("target", plan.target_executors)):
            indices = [plan.operation_indices_for_executor(executor, side) for executor in executors]
            assert all(indices) and sorted(itertools.chain(*indices)) == list(range(len(plan.operations)))
            for executor, ours in zip(executors, indices):
                assert {getattr(plan.operations[index], side).rank for index in ours} == {executor.rank}
        assert sorted(itertools.chain(*(route.operation_indices for route in plan.pipeline_routes))) == list(range(len(plan.operations)))
        for route in plan.pipeline_routes:
            ends = {(plan.operations[index].source.rank.pp, plan.operations[index].target.rank.pp) for index in route.operation_indices}
            assert ends == {(route.source_pp, route.target_pp)}
        again = pickle.loads(pickle.dumps(plan))
        assert again == plan and again.pipeline_routes == plan.pipeline_routes


def holes(said, pick):
    """The same placement with one fragment gone, shorter, or over another's place."""
    fragments = [dict(one) for one in said["fragments"]]
    one = pick.choice(fragments)
    kind = pick.choice(("gone", "shorter", "moved"))
    dim = pick.randrange(len(one["local_shape"]))
    if kind == "gone" or one["local_shape"][dim] == 1:
        fragments.remove(one)
    elif kind == "shorter":
        itemsize = one["nbytes"] // weights.math.prod(one["local_shape"])
        one["local_shape"] = tuple(size - (place == dim) for place, size in enumerate(one["local_shape"]))
        one["nbytes"] = weights.math.prod(one["local_shape"]) * itemsize
    else:
        one["global_offset"] = tuple(max(0, begin - 1) if place == dim else begin for place, begin in enumerate(one["global_offset"]))
    return {**said, "fragments": fragments}, fragments == said["fragments"]


def test_gaps_and_overlaps_are_found():
    """Of a complete placement, with one fragment changed, only as much is still one as an owner that is gone altogether."""
    found = passed = 0
    for seed in range(CASES):
        case = weights.Case(seed)
        said = case.placement("set")
        try:
            weights.build_placement(weight, said)
        except ValueError:
            continue
        for _ in range(4):
            broken, is_same = holes(said, case.random)
            if is_same or not broken["fragments"]:
                continue
            left = {one["tensor_id"] for one in broken["fragments"]}
            broken["tensors"] = [one for one in broken["tensors"] if one["tensor_id"] in left]
            try:
                other = weights.build_placement(weight, broken)
            except ValueError:
                found += 1
                continue
            passed += 1
            assert len(other.fragments) == len(said["fragments"]) - 1, seed
            gone = next(one for one in said["fragments"] if one not in broken["fragments"])
            whole = next(one for one in said["tensors"] if one["tensor_id"] == gone["tensor_id"])
            assert gone["local_shape"] == whole["global_shape"], seed
    assert found > 80 and passed > 3


def test_the_example_of_the_documents():
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs/python.md").read_text()
    block = page.partition("## Weights on other ranks\n")[2].partition("```python\n")[2].partition("```")[0]
    names = {name: getattr(weight, name) for name in weight.__all__}
    exec(compile(block, "docs/python.md", "exec"), names)  # noqa: S102
    plan = names["plan"]
    assert len(plan.operations) == 4 and plan.total_bytes == 64
    assert weights.carry_out(plan) == wanted(plan, plan.target_placement.parts)


# ---- who serves whom ----


def spread(name, axes, sizes, held, shape=(4, 6), **more):
    """A placement of one tensor of 4 x 6 whose fragments are said as (rank, offset, shape), with a name if it matters."""
    ranks = [dict(zip(weights.KINDS, rank)) for rank in itertools.product(*(range(sizes.get(kind, 1)) for kind in weights.KINDS))]
    said = {"placement_set_id": name, "sizes": {kind: sizes.get(kind, 1) for kind in weights.KINDS}, "ranks": ranks,
            "tensors": [{**weights.described("w", shape, 2, axes), **more}],
            "fragments": [weights.fragment("w", 2, offset, extent, rank={**dict.fromkeys(weights.KINDS, 0), **rank}, placement_fragment_id=(*named, None)[0])
                          for rank, offset, extent, *named in held]}
    return weights.build_placement(weight, said)


WHOLE = ((0, 0), (4, 6))


def replicas(name, count):
    return spread(name, [["dp", "replicated", None]], {"dp": count}, [({"dp": dp}, *WHOLE) for dp in range(count)])


def test_replicas_serve_in_turn():
    plan = plan_placement_transfer(replicas("source", 2), replicas("target", 5))
    assert {region.target.rank.dp: region.source.rank.dp for region in plan.operations} == {0: 0, 1: 1, 2: 0, 3: 1, 4: 0}
    local = plan_placement_transfer_to_local_target(replicas("source", 2), replicas("target", 5), "worker-3")
    assert [executor.rank.dp for executor in local.source_executors] == [1] and [executor.participant_id for executor in local.target_executors] == ["worker-3"]


@pytest.mark.parametrize("names", ["abc", "cba", "bca"])
def test_the_first_owner_serves(names):
    """And of its replicas the first; whatever the fragments are called."""
    owned = [["pp", "ownership", None], ["ep", "replicated", None]]
    source = spread("source", owned, {"pp": 4, "ep": 2}, [({"pp": pp, "ep": ep}, *WHOLE, f"{name}{1 - ep}") for pp, name in zip((1, 2, 3), names)
                                                          for ep in range(2)])
    target = spread("target", owned[:1], {"pp": 2}, [({"pp": pp}, *WHOLE) for pp in range(2)])
    plan = plan_placement_transfer(source, target)
    assert [(route.source_pp, route.target_pp, len(route.operation_indices)) for route in plan.pipeline_routes] == [(1, 0, 1), (1, 1, 1)]
    assert {region.source.rank.ep for region in plan.operations} == {0}


def test_regions_are_in_the_order_of_the_target():
    """Whatever the order of their sources."""
    rows = spread("rows", [["tp", "split", 0]], {"tp": 4}, [({"tp": tp}, (tp, 0), (1, 6), f"s{9 - tp}") for tp in range(4)])
    halves = spread("halves", [["tp", "split", 0]], {"tp": 2}, [({"tp": tp}, (2 * tp, 0), (2, 6), f"t{9 - tp}") for tp in range(2)])
    plan = plan_placement_transfer(rows, halves)
    assert [(one.target.fragment_id, one.target_offset, one.source.fragment_id) for one in plan.operations] == [
        ("t8", 0, "s7"), ("t8", 12, "s6"), ("t9", 0, "s9"), ("t9", 12, "s8")]
    assert [executor.rank.tp for executor in plan.source_executors] == [0, 1, 2, 3]


def test_regions_have_the_fewest_loops():
    rows = spread("rows", [["tp", "split", 0]], {"tp": 2}, [({"tp": tp}, (2 * tp, 0), (2, 6)) for tp in range(2)])
    columns = spread("columns", [["tp", "split", 1]], {"tp": 3}, [({"tp": tp}, (0, 2 * tp), (4, 2)) for tp in range(3)])
    plan = plan_placement_transfer(rows, columns)
    assert len(plan.operations) == 6
    one = next(region for region in plan.operations if region.source.rank.tp == 1 and region.target.rank.tp == 2)
    assert (one.overlap_offset, one.overlap_shape, one.outer_loop_counts, one.inner_bytes) == ((2, 4), (2, 2), (2,), 4)
    assert (one.source_offset, one.target_offset, one.nbytes, one.repeat, one.source_stride, one.target_stride) == (8, 8, 4, 2, 12, 4)
    assert list(one.iter_segments(max_segments=2)) == [(8, 8, 4), (20, 12, 4)]
    whole = plan_placement_transfer(rows, spread("whole", [], {}, [({}, *WHOLE)]))
    assert [(region.outer_loop_counts, region.inner_bytes, region.source_stride) for region in whole.operations] == [((), 24, 0)] * 2


OTHER = {"layout_fingerprint": "other"}
ONE = [({}, *WHOLE)]


@pytest.mark.parametrize("make, message", {
    "source type": (lambda: plan_placement_transfer(None, replicas("t", 1)), "source placement manifests must be WeightPlacementManifest"),
    "target type": (lambda: plan_placement_transfer(replicas("s", 1), None), "target placement manifests must be WeightPlacementManifest"),
    "manifest type": (lambda: plan_stored_transfer_to_target_placement(replicas("s", 1), replicas("t", 1)), "source manifest must be a WeightManifest"),
    "layout": (lambda: plan_placement_transfer(spread("s", [], {}, ONE), spread("t", [], {}, ONE, **OTHER)), "layout mismatch for tensor w"),
    "dtype": (lambda: plan_placement_transfer(spread("s", [], {}, ONE), spread("t", [], {}, ONE, dtype="f")), "tensor descriptor mismatch: w"),
    "layer": (lambda: plan_placement_transfer(spread("s", [], {}, ONE), spread("t", [], {}, ONE, layer_id=3)), "tensor descriptor mismatch: w"),
    "owners": (lambda: plan_placement_transfer(spread("s", [["dp", "ownership", None]], {"dp": 2}, [({"dp": dp}, *WHOLE) for dp in range(2)]),
                                               replicas("t", 1)), "DP-owned source tensor has ambiguous declared owners: w"),
    "which participant": (lambda: plan_placement_transfer_to_local_target(replicas("s", 1), replicas("t", 2)),
                          "target_participant_id is required for a multi-participant target"),
    "participant": (lambda: plan_placement_transfer_to_local_target(replicas("s", 1), replicas("t", 2), "x"), "unknown target participant: x"),
    "idle": (lambda: plan_placement_transfer_to_local_target(replicas("s", 1), spread("t", [["pp", "ownership", None]], {"pp": 2}, ONE), "worker-1"),
             "local target manifest has no fragments"),
    "regions": (lambda: plan_placement_transfer(replicas("s", 1), replicas("t", 3), planning_limits=PlanningLimits(max_transfer_regions=2)),
                "logical transfer plan exceeds max_transfer_regions: 2"),
    "limits": (lambda: PlanningLimits(max_transfer_regions=0), "planning limit max_transfer_regions must be a positive integer"),
}.values())
def test_what_cannot_be_planned(make, message):
    with pytest.raises(ValueError) as raised:
        make()
    assert str(raised.value) == message


@pytest.mark.parametrize("name, other", [("resource_id", "x"), ("revision", "x"), ("weight_generation", 9)])
def test_plans_are_of_one_generation(name, other, monkeypatch):
    target = replicas("t", 1)
    monkeypatch.setitem(weights.RESOURCE, name, other)
    with pytest.raises(ValueError, match=f"^source and target {name} differ$"):
        plan_placement_transfer(replicas("s", 1), target)


def test_plans_are_of_the_same_tensors():
    for count in range(2):
        case = weights.Case(3)
        case.shapes = {"a": ([4], 1), "b": ([4], 1)}
        both, few = weights.build_placement(weight, case.placement("s", dp=1, pp=1, ep=1, tp=1)), dict(case.shapes)
        case.shapes = {"a": few["a"]}
        one = weights.build_placement(weight, case.placement("t", dp=1, pp=1, ep=1, tp=1))
        with pytest.raises(ValueError) as raised:
            plan_placement_transfer(*((both, one), (one, both))[count])
        assert str(raised.value) == ("target manifests are missing tensors: b", "target manifests contain unknown tensors: b")[count]
    assert [region.tensor_id for region in plan_placement_transfer_to_local_target(both, one).operations] == ["a"], "a participant may have some only"
    with pytest.raises(ValueError, match="^target manifests contain unknown tensors: b$"):
        plan_placement_transfer_to_local_target(one, both)


def test_segments_have_limits():
    rows = spread("rows", [["tp", "split", 0]], {"tp": 1}, [({}, *WHOLE)])
    columns = spread("columns", [["tp", "split", 1]], {"tp": 2}, [({"tp": tp}, (0, 3 * tp), (4, 3)) for tp in range(2)])
    for limits, message in (({"max_segments_per_region": 3}, "logical transfer region exceeds max_segments_per_region: 4 > 3"),
                            ({"max_total_lowered_segments": 7}, "logical transfer plan exceeds max_total_lowered_segments: 8 > 7")):
        with pytest.raises(ValueError) as raised:
            plan_placement_transfer(rows, columns, planning_limits=PlanningLimits(**limits))
        assert str(raised.value) == message
    region = plan_placement_transfer(rows, columns, planning_limits=PlanningLimits(2, 4, 8)).operations[0]
    for most, message in ((3, "transfer region exceeds max_segments: 4 > 3"), (0, "max_segments must be a positive integer"),
                          (True, "max_segments must be a positive integer")):
        with pytest.raises(ValueError) as raised:
            list(region.iter_segments(max_segments=most))
        assert str(raised.value) == message


# ---- what is said of a plan must be true ----


@pytest.fixture(scope="module")
def plan():
    """From two replicas of two slices to three slices along another dimension; each region has one loop."""
    axes = [["dp", "replicated", None], ["tp", "split", 0]]
    source = spread("source", axes, {"dp": 2, "tp": 2}, [({"dp": dp, "tp": tp}, (2 * tp, 0), (2, 6)) for dp in range(2) for tp in range(2)])
    target = spread("target", [["tp", "split", 1]], {"tp": 3}, [({"tp": tp}, (0, 2 * tp), (4, 2)) for tp in range(3)])
    return plan_placement_transfer(source, target)


@pytest.mark.parametrize("change, message", {
    "offsets": ({"overlap_offset": "ab"}, "overlap_offset must contain integers"), "number": ({"overlap_shape": 5}, "overlap_shape must contain integers"),
    "float": ({"source_strides": (1.0,)}, "source_strides must contain integers"), "no tensor": ({"tensor_id": ""}, "tensor_id must not be empty"),
    "tensor": ({"tensor_id": "x"}, "tensor mismatch"), "dimensions": ({"overlap_offset": (0,)}, "logical rank mismatch"),
    "negative": ({"overlap_offset": (-1, 0)}, "logical box is invalid"), "no extent": ({"overlap_shape": (0, 1)}, "logical box is invalid"),
    "source": ({"overlap_shape": (3, 2)}, "exceeds source logical fragment"), "target": ({"overlap_shape": (2, 3)}, "exceeds target logical fragment"),
    "bool": ({"inner_bytes": True}, "inner_bytes must be an integer"), "base": ({"target_base_offset": -1}, "base offsets must be non-negative"),
    "no bytes": ({"inner_bytes": 0}, "inner_bytes must be positive"), "loops": ({"outer_loop_counts": (2, 1)}, "outer loop rank mismatch"),
    "counts": ({"outer_loop_counts": (0,)}, "outer loop counts must be positive"), "stride": ({"target_strides": (-4,)}, "strides must be non-negative"),
    "volume": ({"inner_bytes": 2}, "loop geometry does not match overlap"), "source base": ({"source_base_offset": 2}, "source base offset is inconsistent"),
    "target base": ({"target_base_offset": 2}, "target base offset is inconsistent"), "canonical": ({"source_strides": (14,)}, "loop geometry is not canonical"),
}.values())
def test_regions_that_are_refused(plan, change, message):
    with pytest.raises(ValueError) as raised:
        dataclasses.replace(plan.operations[0], **change)
    assert str(raised.value) == f"transfer region {message}"


def test_regions_of_odd_bytes(plan):
    region = plan.operations[0]
    for nbytes, message in ((25, "transfer region fragment byte size is invalid"), (48, "transfer region source and target itemsize differ")):
        with pytest.raises(ValueError) as raised:
            dataclasses.replace(region, source=dataclasses.replace(region.source, nbytes=nbytes))
        assert str(raised.value) == message
    forged = pickle.loads(pickle.dumps(region))
    object.__setattr__(forged, "source_base_offset", 1 << 20)
    with pytest.raises(ValueError, match="^transfer region exceeds source fragment$"):
        forged.validate_bounds()
    with pytest.raises(ValueError, match="^transfer region exceeds source fragment$"):
        dataclasses.replace(plan, operations=(forged, *plan.operations[1:]))


def tampered(plan):
    """{what was changed: (the changed fields, what is said)}"""
    first, *others = plan.target_executors
    tensors = tuple(dataclasses.replace(one, dtype="x") for one in plan.target_tensors)
    region = plan.operations[0]
    strange = dataclasses.replace(region, target=dataclasses.replace(region.target, placement_fragment_id="x"))
    logical = "logical transfer plan "
    return {
        "name": ({"resource_id": ""}, logical + "identifiers must not be empty"), "target": ({"target_placement": None}, logical + "target placement is invalid"),
        "source": ({"source_placement": 5}, logical + "source placement is invalid"), "manifest": ({"source_manifest": 5}, logical + "source manifest is invalid"),
        "limits": ({"planning_limits": None}, logical + "planning_limits is invalid"),
        "few": ({"planning_limits": PlanningLimits(5)}, logical + "exceeds max_transfer_regions"),
        "short": ({"planning_limits": PlanningLimits(9, 1)}, logical + "exceeds max_segments_per_region"),
        "total": ({"planning_limits": PlanningLimits(9, 9, 11)}, logical + "exceeds max_total_lowered_segments"),
        "no source": ({"source_placement": None}, logical + "requires exactly one source provenance"),
        "other": ({"revision": "x"}, logical + "source placement identity differs"),
        "foreign": ({"operations": (5,)}, logical + "requires a canonical transfer operation"),
        "executors": ({"source_executors": (5,)}, logical + "has invalid canonical executor metadata"),
        "executor twice": ({"target_executors": (first, first, *others)}, "transfer plan has duplicate executor projection key"),
        "strange": ({"operations": (strange,)}, "logical plan and target placement fragment snapshots differ"),
        "nobody": ({"target_executors": ()}, "logical plan has no target executor metadata"),
        "placement": ({"target_executors": (dataclasses.replace(first, placement_id="x"), *others)}, "logical target executor placement differs from target"),
        "participant": ({"target_executors": (dataclasses.replace(first, participant_id="x"), *others)},
                        "logical target executor differs from target placement"),
        "fragments": ({"target_executors": (dataclasses.replace(first, placement_fragment_ids=("x",)), *others)},
                      "logical target executor fragments differ from target placement"),
        "participant twice": ({"target_executors": (first, dataclasses.replace(first, placement_fragment_ids=("x",)))},
                              "logical plan has duplicate target executor participant"),
        "one less": ({"target_executors": others}, "logical target executors differ from planned operations"),
        "catalog": ({"target_tensors": tensors}, "logical target tensor catalog differs from placement"),
        "source catalog": ({"source_tensors": tensors}, "logical plan source tensor catalog differs from placement"),
        "gap": ({"operations": plan.operations[1:]}, f"logical target fragment is not fully covered: {region.target.fragment_id}"),
        "twice": ({"operations": (region, *plan.operations)}, f"logical target fragment is not fully covered: {region.target.fragment_id}"),
        "no sender": ({"source_executors": ()}, "logical plan has no source executor metadata"),
    }


def test_plans_that_are_refused(plan):
    for name, (change, message) in tampered(plan).items():
        with pytest.raises(ValueError) as raised:
            dataclasses.replace(plan, **change)
        assert str(raised.value) == message, name
    with pytest.raises(ValueError, match="^invalid executor side: both$"):
        plan.operation_indices_for_executor(plan.target_executors[0], "both")
    with pytest.raises(ValueError, match="^source executor is not part of this logical plan$"):
        plan.operation_indices_for_executor(plan.target_executors[0], "source")


def test_a_stored_source_is_a_snapshot():
    case = weights.Case(5)
    lying = weights.build_manifest(weight, case.manifest())
    target = weights.build_placement(weight, case.placement("t", dp=1, pp=1, ep=1, tp=2))
    plan = plan_stored_transfer_to_target_placement(lying, target)
    assert plan.source_manifest_identity == lying.manifest_identity and plan.source_placement is None is plan.source_placement_id
    assert all(route.source_pp is None is route.source_pipeline_stage_id for route in plan.pipeline_routes) and plan.source_executors == ()
    assert pickle.loads(pickle.dumps(plan)) == plan and plan.validate_source_manifest_snapshot() is None
    for change, message in (({"manifest_key": "x"}, "manifest_key does not belong"), ({"tensors": ()}, "unknown tensor_id"),
                            ({"created_at": "later"}, "logical plan source manifest identity differs")):
        forged = pickle.loads(pickle.dumps(plan))
        for name, value in change.items():
            object.__setattr__(forged.source_manifest, name, value)
        with pytest.raises(ValueError, match=message):
            forged.validate_source_manifest_snapshot()
    other = weights.build_manifest(weight, {**(said := weights.Case(5).manifest()), "fragments": [
        {**one, "object_key": one["object_key"] + "x"} for one in said["fragments"]]})
    with pytest.raises(ValueError, match="^logical plan and source manifest fragment snapshots differ$"):
        dataclasses.replace(plan, source_manifest=other)


@pytest.mark.parametrize("name", ["source_pp", "target_pp", "source_pipeline_stage_id", "target_pipeline_stage_id"])
def test_routes(name):
    route = weight.PipelineRouteGroup(None, None, 0, None, [0, 1])
    assert route.operation_indices == (0, 1)
    with pytest.raises(ValueError, match=f"^pipeline route {name} must be non-negative$"):
        dataclasses.replace(route, **{name: -1})
    with pytest.raises(ValueError, match="^pipeline route has duplicate operation indices$"):
        dataclasses.replace(route, operation_indices=(1, 1))
    with pytest.raises(ValueError, match="^pipeline route indices must be non-negative integers$"):
        dataclasses.replace(route, operation_indices=(True,))
    for bad, message in ((("",), "identifiers must not be empty"), (("p", "q", ParallelRank(), ("a", "a")), "has duplicate fragment IDs")):
        with pytest.raises(ValueError, match=f"^placement executor {message}$"):
            weight.PlacementExecutorPlan(*bad) if len(bad) > 1 else weight.PlacementExecutorPlan("", "q", ParallelRank(), ("a",))


# ---- boxes ----


def overlap_slowly(boxes):
    return any(all(one < other + size and other < one + extent for one, extent, other, size in zip(*left, *right))
               for left, right in itertools.combinations(boxes, 2))


def test_boxes():
    answers = set()
    for seed in range(400):
        pick = weights.random.Random(seed)
        dimensions = seed % 4 + 1
        boxes = [(tuple(pick.randint(0, 5) for _ in range(dimensions)), tuple(pick.randint(1, 3) for _ in range(dimensions)))
                 for _ in range(pick.randint(0, 5))]
        assert geometry.boxes_overlap(boxes) is overlap_slowly(boxes), boxes
        answers.add((dimensions, overlap_slowly(boxes)))
        tiles = weights.Case(seed).pieces([2] * dimensions, [5] * dimensions, 4)
        container = (2,) * dimensions, (5,) * dimensions
        assert geometry.boxes_exactly_cover(*container, tiles)
        assert not geometry.boxes_exactly_cover(*container, tiles[1:]) and not geometry.boxes_exactly_cover(*container, tiles + tiles[:1])
        assert not geometry.boxes_exactly_cover((3,) * dimensions, container[1], tiles)
    assert len(answers) == 8
    assert geometry.box_contains((0, 0), (2, 2), (1, 0), (1, 2)) and not geometry.box_contains((0, 0), (2, 2), (1, 1), (1, 2))
    with pytest.raises(ValueError, match="different lengths"):
        geometry.box_contains((0, 0), (2, 2), (0,), (1,))


def test_boxes_that_lie_side_by_side_have_a_limit(monkeypatch):
    boxes = [((0, 0, place), (5, 5, 1)) for place in range(4)]
    assert not geometry.boxes_overlap(boxes), "nothing is compared that one dimension tells apart"
    tall = [((place % 2, place // 2, 0), (1, 1, 1)) for place in range(4)]
    assert not geometry.boxes_overlap(tall)
    monkeypatch.setattr(geometry, "_MAX_HIGH_DIMENSIONAL_PAIRWISE_COMPARISONS", 1)
    assert not geometry.boxes_overlap(boxes)
    with pytest.raises(ValueError, match="^high-dimensional overlap budget exceeded before validation$"):
        geometry.boxes_overlap(tall)


def test_a_target_looks_at_the_sources_near_it(monkeypatch):
    """256 experts here and there: each looks at its own, not at all."""
    from mooncake.reshard.weight._planner import geometry as planner

    count, seen = 256, []
    held = [({"ep": expert}, (expert, 0), (1, 6)) for expert in range(count)]
    source, target = (spread(name, [["ep", "split", 0]], {"ep": count}, held, (count, 6)) for name in ("s", "t"))
    look = planner._overlap_box
    monkeypatch.setattr(planner, "_overlap_box", lambda *pair: seen.append(pair) or look(*pair))
    assert len(plan_placement_transfer(source, target).operations) == len(seen) == count
