# SPDX-License-Identifier: Apache-2.0
"""Canonical JSON: of equal manifests equal bytes, of which digests are made. Of what is read, every name must be known, and none twice."""

import hashlib
import json
from typing import AbstractSet, Any, Dict, List, Mapping, Tuple, Union


def _fields(thing: Any) -> Dict[str, Any]:
    """A dataclass as an object of JSON: its fields, unless it has a form of its own."""
    return thing._wire() if hasattr(thing, "_wire") else vars(thing)


def canonical(value: object, ensure_ascii: bool = True) -> str:
    return json.dumps(value, default=_fields, sort_keys=True, separators=(",", ":"), ensure_ascii=ensure_ascii)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def identity(schema: str, **content: object) -> str:
    """The name of what has this content, and of nothing else."""
    return "sha256:" + sha256(canonical({"schema": schema, **content}))


def load(text: Union[str, bytes, bytearray], label: str) -> Mapping[str, Any]:
    def refuse(constant: str) -> None:
        raise ValueError(f"non-finite JSON number is unsupported: {constant}")

    def unique(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
        found: Dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise ValueError(f"duplicate JSON field: {name}")
            found[name] = value
        return found

    try:
        read = json.loads(text, parse_constant=refuse, object_pairs_hook=unique)
    except (TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{label} is not valid JSON") from error
    return mapping(read, label)


def mapping(value: object, label: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or any(type(name) is not str for name in value):
        raise ValueError(f"{label} must be a JSON object")
    return value


def exactly(value: object, names: AbstractSet[str], label: str) -> Mapping[str, Any]:
    found = mapping(value, label)
    if set(found) != set(names):
        raise ValueError(f"{label} schema fields do not match contract")
    return found
