# SPDX-License-Identifier: Apache-2.0
"""Who takes part in a placement, and with which coordinates."""

from __future__ import annotations

from dataclasses import dataclass

from mooncake.reshard import _check, _json
from mooncake.reshard.contracts import ParticipantId, TopologyId
from mooncake.reshard.weight.types import ParallelRank

__all__ = ["ParallelTopology", "TopologyParticipant"]


@dataclass(frozen=True)
class TopologyParticipant:
    """One process, or worker, and its coordinates."""

    participant_id: ParticipantId
    rank: ParallelRank

    def __post_init__(self) -> None:
        _check.text(self.participant_id, "participant_id")
        if not isinstance(self.rank, ParallelRank):
            raise ValueError("topology participant rank must be a ParallelRank")


@dataclass(frozen=True)
class ParallelTopology:
    """The sizes of the axes, and who takes part: not every combination of coordinates must."""

    tp_size: int
    pp_size: int
    ep_size: int
    dp_size: int
    participants: tuple[TopologyParticipant, ...]
    topology_id: TopologyId = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        sizes = {kind: _check.integer(getattr(self, f"{kind}_size"), f"{kind}_size", 1) for kind in ("tp", "pp", "ep", "dp")}
        participants = _check.items(self.participants, "ParallelTopology participants", TopologyParticipant)
        if not participants:
            raise ValueError("parallel topology participants must not be empty")
        participants = tuple(sorted(participants, key=lambda one: one.participant_id))
        if len({one.participant_id for one in participants}) != len(participants):
            raise ValueError("duplicate topology participant_id")
        if len({one.rank for one in participants}) != len(participants):
            raise ValueError("duplicate topology parallel rank")
        for one in participants:
            for kind, size in sizes.items():
                if getattr(one.rank, kind) >= size:
                    raise ValueError(f"{kind} rank is out of range for participant {one.participant_id}")
        _check.settle(self, participants=participants)
        content = {name: value for name, value in vars(self).items() if name != "topology_id"}
        canonical_id = _json.identity("weight-parallel-topology", **content)
        if self.topology_id not in (None, canonical_id):
            raise ValueError("topology_id does not match canonical topology")
        _check.settle(self, topology_id=canonical_id)

    @property
    def world_size(self) -> int:
        """How many take part. Axes may lie on the same ranks, so that it is no product of their sizes."""
        return len(self.participants)

    def participant(self, participant_id: ParticipantId) -> TopologyParticipant:
        for one in self.participants:
            if one.participant_id == participant_id:
                return one
        raise ValueError(f"unknown topology participant: {participant_id}")
