# SPDX-License-Identifier: Apache-2.0
"""The log lines of the native code in Python's ``logging``, for programs that keep all their lines there.

    from mooncake import logs
    logs.to_logging()            # the logger "mooncake" has them from now on, with level, file and line

Without it they go to stderr. ``MC_LOG_LEVEL`` says which lines are made at all; the logger's own level, and its handlers, what becomes of them.
"""
import atexit
import importlib
import logging
import os
import re
import threading

__all__ = ["to_logging", "Capture"]

_LEVELS = {"D": logging.DEBUG, "I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR}
_LINE = re.compile(r"([DIWE])\d{4} [\d:.]+ +(\d+) ([^:]+):(\d+)\] (.*)", re.S)
_END = b"\0"  # no line is so
_STDERR = 2

_lock = threading.Lock()
_pipe = None  # (read, write); made once and never closed: a thread of the library may be about to write there
_current = None


def _modules():
    for name in ("mooncake._store", "mooncake.engine"):
        try:
            yield importlib.import_module(name)
        except ImportError:  # one that cannot be imported says nothing either
            continue


def _send(descriptor):
    for module in _modules():
        module._log_to(descriptor)


class Capture:
    """What ``to_logging`` has begun. ``close()``, or the end of a ``with`` block: the lines go to stderr again; all that were written before have been
    handed to the logger when it returns."""

    def __init__(self, logger):
        self.logger = logger
        self._thread = threading.Thread(target=self._run, name="mooncake-logs", daemon=True)

    def _run(self):
        read, rest, is_over = _pipe[0], b"", False
        while not is_over:
            *lines, rest = (rest + os.read(read, 1 << 16)).split(b"\n")
            for line in lines:
                if line == _END:
                    is_over = True
                else:
                    self._hand_over(line.decode(errors="replace"))

    def _hand_over(self, line):
        found = _LINE.fullmatch(line)
        level, thread, file, number, text = found.groups() if found else ("W", "0", "?", "0", line)
        if not self.logger.isEnabledFor(_LEVELS[level]):
            return
        record = self.logger.makeRecord(self.logger.name, _LEVELS[level], file, int(number), text, (), None)
        record.thread, record.threadName = int(thread), f"native-{thread}"
        try:
            self.logger.handle(record)
        except Exception:  # a handler that raises must not end what reads: nobody would say anything any more
            logging.lastResort.handleError(record)

    def close(self):
        global _current
        with _lock:
            if _current is not self:
                return
            _current = None
            _send(_STDERR)
            os.write(_pipe[1], _END + b"\n")
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()


def to_logging(logger="mooncake"):
    """From now on what the native code says goes to this logger (a name, or a ``logging.Logger``) instead of stderr. A thread reads it there, so no call
    of the library waits for a handler; lines that come faster than handlers take them, beyond 64 KiB, are counted and dropped. A second call
    replaces the first. A forked child begins with stderr again. Returns a ``Capture``."""
    global _pipe, _current
    if isinstance(logger, str):
        logger = logging.getLogger(logger)
    before = _current
    if before is not None:
        before.close()
    with _lock:
        if _pipe is None:
            _pipe = os.pipe()
        _current = Capture(logger)
        _current._thread.start()
        _send(_pipe[1])
        return _current


@atexit.register
def _at_exit():
    if _current is not None:
        _current.close()


def _in_child():
    global _pipe, _current, _lock
    _lock = threading.Lock()
    if _pipe is not None:
        _send(_STDERR)
        for descriptor in _pipe:  # the parent's: nobody of this process can be writing there
            os.close(descriptor)
    _pipe = _current = None


os.register_at_fork(after_in_child=_in_child)
