# SPDX-License-Identifier: Apache-2.0
"""What the fields of manifests may be. Each check returns the value, or raises a ValueError that names the field.

Types are compared, not asked by isinstance(): True is no 1, and the scalar of a framework is no int.
"""

import re
from collections.abc import Sequence
from typing import Any, Tuple, Type, TypeVar

T = TypeVar("T")
U64_MAX = (1 << 64) - 1


def text(value: object, name: str) -> str:
    if type(value) is not str or not value:
        raise ValueError(f"{name} must be a non-empty string")
    return value


def texts(thing: object, *names: str) -> None:
    for name in names:
        text(getattr(thing, name), name)


def integer(value: object, name: str, minimum: int = 0) -> int:
    if type(value) is not int:
        raise ValueError(f"{name} must be an integer")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}")
    return value


def u64(value: object, name: str, minimum: int = 0) -> int:
    if integer(value, name, minimum) > U64_MAX:
        raise ValueError(f"{name} must fit in an unsigned 64-bit integer")
    return value  # type: ignore[return-value]


def is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def sequence(value: object, name: str) -> Sequence:
    if not is_sequence(value):
        raise ValueError(f"{name} must be a sequence")
    return value  # type: ignore[return-value]


def integers(value: object, name: str, minimum: int = 0) -> Tuple[int, ...]:
    if not is_sequence(value):
        raise ValueError(f"{name} must contain integers")
    return tuple(integer(one, name, minimum) for one in value)  # type: ignore[attr-defined]


def items(value: object, name: str, kind: Type[T]) -> Tuple[T, ...]:
    found = tuple(sequence(value, name))
    if not all(isinstance(one, kind) for one in found):
        raise ValueError(f"{name} must contain {kind.__name__}")
    return found


def is_sha256(value: str) -> bool:
    return re.fullmatch("[0-9a-f]{64}", value) is not None


def settle(thing: object, **fields: Any) -> None:
    """Gives a frozen dataclass, which is being made, the canonical form of its fields."""
    for name, value in fields.items():
        object.__setattr__(thing, name, value)
