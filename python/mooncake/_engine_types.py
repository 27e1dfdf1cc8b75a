# SPDX-License-Identifier: Apache-2.0
"""The small types of mooncake.engine: the extension takes those in __all__ over, makes and reads them."""

import operator

from mooncake._record import Constant, Final, Record, absent, field, made
from mooncake._shared_segment import SharedSegment  # noqa: F401

__all__ = """CoroRPCInterface InnerTransferEngine Read ReceivedData ReceivedTensor RpcInterface SUPPORT_CUDA SUPPORT_EFA SUPPORT_HIP
SUPPORT_INTRA_NVLINK SUPPORT_MNNVL SUPPORT_MUSA SharedSegment TransferNotify TransferOpcode Write""".split()
_MODULE = "mooncake.engine"
TransferOpcode = Constant("TransferOpcode", {"Read": 0, "Write": 1, "READ": 0, "WRITE": 1}, module=_MODULE)
Read, Write = TransferOpcode.Read, TransferOpcode.Write
SUPPORT_CUDA = SUPPORT_EFA = SUPPORT_HIP = SUPPORT_INTRA_NVLINK = SUPPORT_MNNVL = SUPPORT_MUSA = False


def _text(slot, name, doc):
    def assign(self, value):
        try:
            if not issubclass(type(value), str) or 0 in str.encode(value):
                raise ValueError
        except ValueError:  # also what is no UTF-8
            raise TypeError(f"{name} must be a str without zeros, not {value!r}") from None
        setattr(self, slot, value)

    def delete(self):
        raise TypeError("it cannot be deleted")

    return property(operator.attrgetter(slot), assign, delete, doc)


class TransferNotify(Final):
    """A short note to a peer, sent after a transfer."""

    __slots__ = ("_name", "_msg")
    __module__ = _MODULE
    name = _text("_name", "name", "what it is about")
    msg = _text("_msg", "msg", "its text")

    def __new__(cls, name="", msg=""):
        for at, text in enumerate((name, msg)):
            if not issubclass(type(text), str):
                raise TypeError(f"argument {at + 1} must be str, not {text if text is None else type(text).__name__}")
        self = object.__new__(cls)
        self._name, self._msg = name, msg
        return self

    def __repr__(self):
        return f"TransferNotify({self.name!r}, {self.msg!r})"


def _note(name, message):
    # A peer may send any bytes: what is no UTF-8 comes as Python's own names of files do, and loses no note.
    return TransferNotify(name.decode("utf-8", "surrogateescape"), message.decode("utf-8", "surrogateescape"))


class InnerTransferEngine(Record):
    """What TransferEngine.get_engine() returns and MooncakeDistributedStore.setup(engine=...) takes."""

    __slots__ = ()
    __module__ = _MODULE
    _engine = field(0, "the TransferEngine")

    def __new__(cls, *args, **keywords):
        raise TypeError("cannot create 'mooncake.engine.InnerTransferEngine' instances")


def _inner(engine):
    return made(InnerTransferEngine, engine)


def _absent(name, **members):
    return absent(_MODULE, name, f"<class '{_MODULE}.{name}'> is not in this build", Final, **members)


CoroRPCInterface, ReceivedData, ReceivedTensor, RpcInterface = map(_absent, ("CoroRPCInterface", "ReceivedData", "ReceivedTensor", "RpcInterface"))


def _no_stream(name):
    def refuse(*args, **keywords):
        """Raises NotImplementedError."""
        raise NotImplementedError(f"{name}: there are no transfers on a stream; the other transfers take addresses of GPU memory, too")

    refuse.__name__, refuse.__qualname__ = name, f"TransferEngine.{name}"
    return refuse


def _complete(engine_module):
    for name in __all__:
        setattr(engine_module, name, globals()[name])
    engine_module.TransferEngine.TransferOpcode = TransferOpcode
    for name in ("transfer_write_on_cuda", "transfer_read_on_cuda", "batch_transfer_write_on_cuda", "batch_transfer_read_on_cuda"):
        setattr(engine_module.TransferEngine, name, _no_stream(name))
