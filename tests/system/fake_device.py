"""Memory of a device that is not there: the stand-in of the CUDA driver (tests/unit/fake_cuda.c) that MC_CUDA_LIBRARY names."""
import ctypes
import os

PENDING, COPIES, ASKED, PINNED, DEPTH, MISTAKES = range(6)
_loaded = None


def library():
    """Loads it; from then on the process has a driver."""
    global _loaded
    if _loaded is None:
        _loaded = ctypes.CDLL(os.environ["MC_CUDA_LIBRARY"])
        _loaded.fake_cuda_allocate.restype = _loaded.fake_cuda_number.restype = ctypes.c_uint64
        _loaded.fake_cuda_allocate.argtypes = ctypes.c_size_t, ctypes.c_int, ctypes.c_int
        _loaded.fake_cuda_seen.restype = ctypes.c_void_p
        _loaded.fake_cuda_seen.argtypes = _loaded.fake_cuda_free.argtypes = (ctypes.c_uint64,)
    return _loaded


def allocate(size, device=1):
    """(the address that the device knows, a view of the same bytes for the test)."""
    address = library().fake_cuda_allocate(size, device, 0)
    assert address != 0
    return address, memoryview((ctypes.c_char * size).from_address(library().fake_cuda_seen(address))).cast("B")


def number(which):
    return library().fake_cuda_number(which)
