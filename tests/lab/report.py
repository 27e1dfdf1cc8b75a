"""What the clients of a laboratory counted, put together: tables, and the verdict."""
from load import WRONG_BYTES, histogram_seconds


def size_text(size):
    return f"{size >> 20} MiB" if size % (1 << 20) == 0 else f"{size >> 10} KiB"


def time_text(seconds):
    return "-" if seconds is None else f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


class Series:
    """Calls of one kind in one phase."""

    def __init__(self):
        self.counts, self.codes, self.bytes = {}, {}, 0

    @property
    def calls(self):
        return sum(self.counts.values())

    @property
    def failed(self):
        return sum(self.codes.values())

    @property
    def wrong(self):
        return self.codes.get(WRONG_BYTES, 0)

    def quantile(self, part):
        """In seconds; 1.0 is the slowest. None without calls."""
        if not self.counts:
            return None
        wanted, seen = part * self.calls, 0
        for index in sorted(self.counts):
            seen += self.counts[index]
            if seen >= wanted:
                return histogram_seconds(index)
        return histogram_seconds(max(self.counts))


class Report:
    """Of the answers to {"report": true} of all clients: series[phase, what, size]."""

    def __init__(self, answers):
        self.series, self.events = {}, []
        for answer in answers:
            for key, counts in answer["series"].items():
                series = self._series(key)
                for index, count in counts.items():
                    series.counts[int(index)] = series.counts.get(int(index), 0) + count
            for key, codes in answer["codes"].items():
                series = self._series(key)
                for code, count in codes.items():
                    series.codes[int(code)] = series.codes.get(int(code), 0) + count
            for key, count in answer["bytes"].items():
                self._series(key).bytes += count
            self.events += [tuple(event) for event in answer["events"]]
        self.events.sort()

    def _series(self, key):
        phase, what, size = key.rsplit(" ", 2)
        return self.series.setdefault((phase, what, int(size)), Series())

    def of(self, phase=None, what=None, size=None):
        """One series of all that fit."""
        total = Series()
        for (its_phase, its_what, its_size), series in self.series.items():
            if phase in (None, its_phase) and what in (None, its_what) and size in (None, its_size):
                for index, count in series.counts.items():
                    total.counts[index] = total.counts.get(index, 0) + count
                for code, count in series.codes.items():
                    total.codes[code] = total.codes.get(code, 0) + count
                total.bytes += series.bytes
        return total

    def lines(self, order=()):
        """The table. Phases in this order, then the others."""
        phases = [*order, *sorted({key[0] for key in self.series} - set(order))]
        rows = [("phase", "call", "size", "calls", "failed", "p50", "p99", "p99.9", "max", "codes")]
        for phase in phases:
            for key in sorted(key for key in self.series if key[0] == phase):
                series = self.series[key]
                codes = " ".join(f"{'wrong bytes' if code == WRONG_BYTES else code}:{count}" for code, count in sorted(series.codes.items()))
                rows.append((phase, key[1], size_text(key[2]), str(series.calls), str(series.failed),
                             *(time_text(series.quantile(part)) for part in (0.5, 0.99, 0.999, 1.0)), codes))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return ["  " + "  ".join(cell.ljust(width) if i < 3 else cell.rjust(width) if i < 9 else cell
                                 for i, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows]
