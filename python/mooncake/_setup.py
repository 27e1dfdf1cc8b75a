# SPDX-License-Identifier: Apache-2.0
"""MooncakeDistributedStore's calls that are made once: setup, positional, by keyword, or by one dict with either spelling of its keys."""

import functools
import os
import re
import threading

from mooncake._record import checked
from mooncake._store import _log_error, _log_info, _log_warning, _number

INVALID_PARAMS = -600
_LOCAL_BUFFER_MIN = 1024
_DICT_SIZE_DEFAULT = "16mb"
_INT64_MAX = (1 << 63) - 1
_HTTP_PORT = 9300
_YES, _NO = ("true", "1", "yes", "on", "enable"), ("false", "0", "no", "off", "disable", "")
_USUAL_PATH = "/data/file_storage"
_SIZES = ("global_segment_size", "local_buffer_size")
_OTHER_SPELLINGS = {"device_name": "rdma_devices", "master_server_address": "master_server_addr"}
# "3gb", "16 MB", "1.5g", "1024", "1e9". Units are powers of 1024.
_SIZE = re.compile(r" *([0-9]*)(?:\.([0-9]*))?(e[+-]?[0-9]{1,3})? *(?:b|([kmgt])(?:b|ib)?)? *", re.ASCII | re.IGNORECASE)


def _parse_size(text):
    """Bytes, or None."""
    match = _SIZE.fullmatch(text)
    whole, fraction, exponent, unit = match.groups("") if match else ("", "", "", "")
    if not whole + fraction or len(whole.lstrip("0")) > 19:
        return None
    scale = 1 << 10 * ("kmgt".index(unit.lower()) + 1) if unit else 1
    if exponent:
        size = float(f"{whole or 0}.{fraction or 0}{exponent}") * scale
        return int(size) if size < _INT64_MAX else None
    part, place = 0.0, 0.1
    for digit in fraction:
        part += place * int(digit)
        place /= 10
    size = int(whole or 0) * scale
    return size + int(part * scale) if size + int(part * scale) <= _INT64_MAX else None


def _size(values, name, from_dict):
    value = values.get(name, _DICT_SIZE_DEFAULT)
    if not from_dict and not issubclass(type(value), (int, str, float)) and not hasattr(type(value), "__index__"):
        raise TypeError(f"setup() argument '{name}' must be int or str, not {type(value)!r}")
    text = str(value)
    str.encode(text)  # what is no UTF-8 raises
    size, is_buffer = _parse_size(text), name == "local_buffer_size"
    if from_dict and is_buffer and size is not None and 0 < size < _LOCAL_BUFFER_MIN:
        size = None
    if size is None:
        more = " (0, or 1 kb and more)" if is_buffer else ""
        _log_error(f'setup: {name} "%s" is not a size; give bytes or a number with kb, mb, gb or tb{more}' % text.partition("\0")[0])
    return size


def _text(values, name):
    """None stands for "not given"."""
    text = values.get(name)
    if name not in values or (name == "data_dir" and text is None):
        return None
    if not issubclass(type(text), str):
        raise TypeError(f"setup() argument '{name}' must be str, not {type(text)!r}")
    if 0 in str.encode(text):
        raise ValueError(f"setup() argument '{name}' holds a NUL character")
    return text


def _is_on(values, name):
    """The words that the other ways to configure a node know, in any case."""
    value = values.get(name)
    if issubclass(type(value), str):
        word = str.lower(str.strip(value))
        if word not in _YES + _NO:
            _log_warning(f'setup: {name} "%s" means off: true or false is expected' % value.partition("\0")[0])
        return word in _YES
    try:
        return bool(value)
    except Exception:
        return False


def _warn_ignored(values):
    """Settings of the original that this build accepts without doing what they say: never in silence."""
    metadata = values.get("metadata_server", "P2PHANDSHAKE")
    if issubclass(type(metadata), str) and str.__ne__(metadata, "P2PHANDSHAKE"):
        _say_once(_log_info, "setup: metadata_server changes nothing here: the store asks nothing there")
    if values.get("engine") is not None:
        _say_once(_log_info, "setup: engine changes nothing here: the store has connections of its own")


def _say_once(log, text):
    """In a process, which may open many stores."""
    if text not in _SAID:
        _SAID.add(text)
        log(text)


_SAID = set()


def _warn_unknown(config):
    """Keys of a dict that are neither ours nor other clients'."""
    unknown = [key for key in dict.keys(config) if type(key) is str and key.isprintable() and key not in _NAMES and key not in _OTHER_SPELLINGS]
    if unknown:
        from mooncake.mooncake_config import _OF_OTHERS  # a store is mostly opened without any of it
        import difflib

        for key in unknown:
            if key in _OF_OTHERS:
                continue
            nearest = difflib.get_close_matches(key[:64], (*_NAMES, *_OTHER_SPELLINGS), 1)
            _say_once(_log_warning, f'setup: unknown key "{key[:64]}" changes nothing' + (f'; did you mean "{nearest[0]}"?' if nearest else ""))


def _is_there(path):
    """A thread asks that can be left alone: if its file system hangs it is there, and the store does without, and says so."""
    found = []
    asks = threading.Thread(target=lambda: found.append(os.path.exists(path)), name="mc-reach", daemon=True)
    asks.start()
    asks.join(2)
    return not found or found[0]


def _disk_paths(values):
    """Where objects are stored on disks; None: where the master says, if it does. What the call says goes before the environment, and that before
    where the original looks."""
    if not _is_on(values, "enable_ssd_offload"):
        return None
    path = _text(values, "ssd_offload_path") or os.environ.get("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", "")
    if not path and _is_there(_USUAL_PATH):
        path = _USUAL_PATH
    if not path:
        _log_warning("setup: enable_ssd_offload, but nobody says where (ssd_offload_path, MOONCAKE_OFFLOAD_FILE_STORAGE_PATH), and there is no "
                     f"{_USUAL_PATH}: objects stay in memory only")
    return path or None


def _http_port(values):
    """Of /health and /metrics; -1: they are not wanted; None: there is no such port."""
    if not _is_on(values, "enable_client_http_server"):
        return -1
    port = str(values.get("client_http_port", _HTTP_PORT))
    if not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65535:
        _log_error(f'setup: client_http_port "%s" is not a port: 0 to 65535 is expected' % port.partition("\0")[0])
        return None
    return int(port)


def _join(store, values, from_dict):
    texts = {name: _text(values, name) for name in ("local_hostname", "metadata_server", "protocol", "rdma_devices", "master_server_addr", "data_dir", "tenant_id", "stamp")}
    sizes = {}
    for name in _SIZES:
        sizes[name] = _size(values, name, from_dict)
        if sizes[name] is None:
            return INVALID_PARAMS
    port = _http_port(values)
    if port is None:
        return INVALID_PARAMS
    _warn_ignored(values)
    code = store._open(*texts.values(), _disk_paths(values), *sizes.values())
    if code == 0:
        store._local_buffer = sizes["local_buffer_size"]
    if code == 0 and port >= 0:
        try:
            store._serve_health(port)
        except OSError as error:  # a store is worth more than a look at it; of several in a process one has the port
            _log_warning(f"setup: there will be no /health and /metrics: {error}")
    return code


def _of_dict(config):
    """The values by their canonical names, which win over other spellings; or None. Unknown keys are a warning, None is absent, any other value
    counts as its str()."""
    other = {name: spelling for spelling, name in _OTHER_SPELLINGS.items()}
    values = {}
    _warn_unknown(config)
    for name in _NAMES:
        value = dict.get(config, name)
        if value is None and name in other:
            value = dict.get(config, other[name])
        if value is not None:
            values[name] = value if name == "engine" or name in _SIZES else str(value)
        elif name in ("local_hostname", "metadata_server"):
            _log_error(f'setup: the config has no "{name}"')
            return None
    return values


def setup(self, local_hostname, metadata_server, global_segment_size, local_buffer_size, protocol, rdma_devices, master_server_addr, engine=None,
          enable_ssd_offload=False, ssd_offload_path="", tenant_id="default", enable_client_http_server=False, client_http_port=9300, data_dir=None, stamp=""):
    """Joins a cluster; also setup(config) with one dict of the same names.

    local_hostname       "host" or "host:port" under which others reach this store; no port: a free one from 12300 to 14300
                         (environment MC_STORE_CLIENT_MIN_PORT, MC_STORE_CLIENT_MAX_PORT). An address is listened to alone,
                         and "localhost" on this machine alone; with another name it listens on all addresses.
    metadata_server      accepted ("P2PHANDSHAKE", "http://..."); nothing is asked there.
    global_segment_size  bytes lent to the cluster; 0: none, a pure client.
    local_buffer_size    bytes; 0: a pure server, whose puts and gets return -600.
    protocol             "tcp"; "rdma", and "efa", which is tcp here; "rpc_only": only asks what there is, whatever the sizes say.
    rdma_devices         to use, separated by commas; "" (all) by default. Other spelling: device_name.
    master_server_addr   "host:port" of mooncake_master. Other spelling: master_server_address.
    engine               accepted; the store has its own transport.
    enable_ssd_offload   objects in the segment are stored on disks too, when the master says so (--enable_offload).
    ssd_offload_path     directories on them, separated by commas; "": environment MOONCAKE_OFFLOAD_FILE_STORAGE_PATH,
                         or /data/file_storage if it is there. docs/disk.md has all that may be set.
    tenant_id            whose objects are put and found, of a master with tenants (--enable_multi_tenants, or keys that have one).
    enable_client_http_server, client_http_port
                         /health and /metrics over HTTP until close; port 0: a free one, which the log says. A port that is
                         taken costs a warning, not the store.
    data_dir             the segment lies in files there, best under /dev/shm, and outlives the process: the next store takes
                         it up with its objects. None: environment MC_DATA_DIR; "": none. It is not in the original.
    stamp                what the values are made with, and are good for: model, weights, format, in your words (1,024 bytes at
                         most). Values that were put with another stamp, or without one, are not there for this store, and the
                         master counts such misses as other_stamp. "": environment MC_STORE_STAMP, or none. It is not in the
                         original.

    Sizes are int or text such as "3gb", "16 MB" (powers of 1024). In the dict every value may be a str, local_hostname and
    metadata_server must be there, sizes are 16 MB and the master 127.0.0.1:50051 when not given, unknown keys are warned of.

    Returns 0; -600: a bad value (the log says which), or set up already; -900: no master answers within its time. Raises TypeError for
    a wrong type, a missing or an unknown argument. Returns at once: the segment becomes usable in the background."""
    values = dict(locals())
    return _join(values.pop("self"), values, False)


_NAMES = setup.__code__.co_varnames[1 : setup.__code__.co_argcount]
_setup = checked(setup, _OTHER_SPELLINGS)


class SetupCalls:
    @functools.wraps(setup)
    def setup(self, /, *args, **keywords):
        given = (*args, *keywords.values())
        if len(given) == 1 and issubclass(type(given[0]), dict) and (args or "config" in keywords):
            values = _of_dict(given[0])
            return INVALID_PARAMS if values is None else _join(self, values, True)
        return _setup(self, *args, **keywords)

    @checked
    def init_all(self, protocol, device_name, mount_segment_size=16777216):
        """setup on this machine for a try: 127.0.0.1, the master at 127.0.0.1:50051, a segment of mount_segment_size bytes.

        Returns as setup does."""
        size = _number(mount_segment_size)
        return self.setup("127.0.0.1", "P2PHANDSHAKE", size, 16 << 20, protocol, device_name, "127.0.0.1:50051")

    def _get_pyclient_capsule(self, *args, **keywords):
        """Raises NotImplementedError: there is no C++ object behind a store."""
        raise NotImplementedError("_get_pyclient_capsule: there is no C++ object behind a store.")
