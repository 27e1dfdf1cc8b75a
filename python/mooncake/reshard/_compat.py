# SPDX-License-Identifier: Apache-2.0
"""What Python 3.9 has not got."""

from typing import Any, Iterable, Iterator, Tuple


def _strict_zip(*iterables: Iterable[Any]) -> Iterator[Tuple[Any, ...]]:
    """zip(strict=True), which notices at once."""
    sequences = [tuple(one) for one in iterables]
    if len(set(map(len, sequences))) > 1:
        raise ValueError("zip() arguments have different lengths")
    return zip(*sequences)
