"""Settings of a store client or store service: from a JSON file, or from the environment.

    config = MooncakeConfig.from_file("mooncake.json")
    config = MooncakeConfig.load_from_env()     # the file that MOONCAKE_CONFIG_PATH names, else MOONCAKE_* variables

One file may serve several clients: the spellings of vLLM, SGLang, LMCache and FastDeploy are understood, their other keys are passed over, and a key
that nobody knows is a warning that names the nearest one. The native commands (src/store/service/config.c) read the same files and variables by the same rules.
"""
import dataclasses
import difflib
import json
import logging
import os
from typing import Optional

__all__ = ["MooncakeConfig", "DEFAULT_GLOBAL_SEGMENT_SIZE", "DEFAULT_LOCAL_BUFFER_SIZE"]

logger = logging.getLogger(__name__)

DEFAULT_GLOBAL_SEGMENT_SIZE = 3355443200
DEFAULT_LOCAL_BUFFER_SIZE = 1073741824
CONFIG_FILE_MAX = 1 << 20  # bytes

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_PROTOCOLS = frozenset("tcp rdma efa nvmeof nvlink musa nvlink_intra hip barex cxl ascend ub ubshmem maca sunrise_link rpc_only".split())
_YES = frozenset(("true", "1", "yes", "on", "enable"))
_NO = frozenset(("false", "0", "no", "off", "disable", ""))


def _fail(name, value, wanted):
    raise ValueError(f"{name}: {value!r} is not possible; {wanted}")


def _text(name, value):
    if not isinstance(value, str):
        _fail(name, value, "a text is expected")
    return value


def _name(name, value):
    """A text; also a number, but not one that is written in several ways."""
    is_whole = isinstance(value, int) and not isinstance(value, bool) and -1 << 63 <= value < 1 << 63
    return str(value) if is_whole else _text(name, value)


def _size(name, value):
    """Bytes: a number, or text such as "50gb", "1.5 GB", "4096": powers of 1024."""
    wanted = 'bytes are expected, as a number or as text like "4096", "512mb", "50gb" (powers of 1024)'
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        _fail(name, value, wanted)
    if isinstance(value, str):
        text = value.strip().lower()
        if text.endswith("b"):
            text = text[:-1]
        unit = text[-1:] if text[-1:] in ("k", "m", "g", "t") else ""
        digits = text[:len(text) - len(unit)].strip()
        if not set(digits) <= set("0123456789+-.eE"):  # no "1_0", no "nan"
            _fail(name, value, wanted)
        try:
            value = int(digits) * _UNITS[unit] if digits.isdecimal() else int(float(digits) * _UNITS[unit])
        except (ValueError, OverflowError):
            _fail(name, value, wanted)
    try:
        value = int(value)
    except (ValueError, OverflowError):  # nan, inf
        _fail(name, value, wanted)
    if not 0 <= value < 1 << 63:
        _fail(name, value, "it must be from 0 to 2^63 - 1 bytes")
    return value


def _parse_segment_size(value):
    return _size("Invalid segment size", value)  # by this name the original's tests know it


def _bool(name, value):
    if value is None or isinstance(value, (bool, int, float)):
        return bool(value)
    text = value.strip().lower() if isinstance(value, str) else None
    if text in _YES:
        return True
    if text in _NO:
        return False
    return _fail(name, value, "true or false is expected")


def _port(name, value):
    try:
        port = -1 if isinstance(value, bool) else int(value)
    except (TypeError, ValueError, OverflowError):
        port = -1
    if not 0 <= port <= 65535:
        _fail(name, value, "a port from 0 to 65535 is expected")
    return port


@dataclasses.dataclass(frozen=True)
class _Setting:
    """A row of the one table: name, how its values are read, value when it is not given, other spellings, variables in order of precedence."""
    name: str
    read: object
    initial: object
    spellings: tuple
    variables: tuple
    is_null_initial: bool = False  # null in a file means the same as not given


_SETTINGS = (
    _Setting("local_hostname", _text, None, (), ("MOONCAKE_LOCAL_HOSTNAME", "LOCAL_HOSTNAME")),
    _Setting("metadata_server", _text, None, (), ("MOONCAKE_TE_META_DATA_SERVER", "MOONCAKE_METADATA_SERVER")),
    _Setting("global_segment_size", _size, DEFAULT_GLOBAL_SEGMENT_SIZE, (), ("MOONCAKE_GLOBAL_SEGMENT_SIZE",)),
    _Setting("local_buffer_size", _size, DEFAULT_LOCAL_BUFFER_SIZE, (), ("MOONCAKE_LOCAL_BUFFER_SIZE",)),
    _Setting("protocol", _text, "tcp", (), ("MOONCAKE_PROTOCOL",)),
    _Setting("device_name", _name, "", ("rdma_devices", "device_names"), ("MOONCAKE_DEVICE", "MOONCAKE_RDMA_DEVICES"), True),
    _Setting("master_server_address", _text, None, ("master_server_addr",), ("MOONCAKE_MASTER", "MOONCAKE_MASTER_SERVER_ADDR")),
    _Setting("enable_ssd_offload", _bool, False, ("enable_offload",), ("MOONCAKE_OFFLOAD_ENABLED", "MOONCAKE_ENABLE_SSD_OFFLOAD")),
    _Setting("ssd_offload_path", _name, "", (), ("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH",), True),
    _Setting("tenant_id", _name, "default", (), ("MOONCAKE_TENANT_ID",), True),
    _Setting("stamp", _name, "", (), (), True),
    _Setting("enable_client_http_server", _bool, False, (), ("MOONCAKE_ENABLE_CLIENT_HTTP_SERVER",)),
    _Setting("client_http_port", _port, 9300, (), ("MOONCAKE_CLIENT_HTTP_PORT",)),
    _Setting("auth_file", _name, "", (), ("MC_AUTH_FILE",), True),
)
_REQUIRED = ("local_hostname", "metadata_server", "master_server_address")
_BY_SPELLING = {spelling: setting for setting in _SETTINGS for spelling in (setting.name, *setting.spellings)}

# What only other clients understand: vLLM, SGLang, LMCache, in this order.
_OF_OTHERS = frozenset(
    "mode preferred_segment enable_group_semantics "
    "client_server_address master_metrics_port check_server standalone_storage extra_backend_tag engine "
    "transfer_timeout storage_root_dir prefer_local_alloc save_chunk_meta use_exists_sync".split())


@dataclasses.dataclass
class MooncakeConfig:
    """Checked settings, in the original's names and order."""
    local_hostname: str
    metadata_server: str
    global_segment_size: int
    local_buffer_size: int
    protocol: str
    device_name: Optional[str]
    master_server_address: str
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = "default"
    enable_client_http_server: bool = False
    client_http_port: int = 9300
    stamp: str = ""
    auth_file: str = ""

    def __post_init__(self):
        if not isinstance(self.protocol, str) or not self.protocol.strip():
            _fail("Invalid protocol", self.protocol, 'a name such as "tcp" or "rdma" is expected')
        self.protocol = self.protocol.strip().lower()
        if self.protocol not in _PROTOCOLS:
            logger.warning("Unrecognised protocol %r is passed on as it is; known ones: %s", self.protocol, ", ".join(sorted(_PROTOCOLS)))
        for name in ("global_segment_size", "local_buffer_size"):
            if getattr(self, name) < 0:
                _fail(f"Invalid {name}", getattr(self, name), "it must be non-negative")
        for name in _REQUIRED:
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                _fail(f"Config field {name!r}", value, "it must be a non-empty string")

    @staticmethod
    def from_file(file_path: str) -> "MooncakeConfig":
        """Reads a JSON file. ValueError names the file and the place or key that is wrong; OSError when it cannot be read."""
        with open(file_path, "rb") as file:
            data = file.read(CONFIG_FILE_MAX + 1)
        if len(data) > CONFIG_FILE_MAX:
            raise ValueError(f"{file_path}: longer than {CONFIG_FILE_MAX} bytes")
        try:
            given = json.loads(data.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{file_path}: byte {error.start} is not UTF-8") from None
        except json.JSONDecodeError as error:
            raise json.JSONDecodeError(f"{file_path}:{error.lineno}:{error.colno}: {error.msg}", error.doc, error.pos) from None
        except RecursionError:
            raise ValueError(f"{file_path}: nested too deep") from None
        if not isinstance(given, dict):
            raise ValueError(f'{file_path}:1:1: an object {{"name": value}} is expected')
        return MooncakeConfig(**_read_file(given, file_path))

    @staticmethod
    def load_from_env() -> "MooncakeConfig":
        """The file that MOONCAKE_CONFIG_PATH names; without one MOONCAKE_MASTER and the other MOONCAKE_* variables."""
        path = os.environ.get("MOONCAKE_CONFIG_PATH")
        if path is not None:
            return MooncakeConfig.from_file(path)
        values = {"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE"}
        for setting in _SETTINGS:
            variable = next((name for name in setting.variables if name in os.environ), None)
            if variable is not None:
                values[setting.name] = setting.read(variable, os.environ[variable])
            elif setting.name not in values:
                values[setting.name] = setting.initial
        if not values["master_server_address"]:
            raise ValueError("Neither the environment variable 'MOONCAKE_CONFIG_PATH' nor 'MOONCAKE_MASTER' is set.")
        return MooncakeConfig(**values)


def _plain(key):
    """LMCache hands on keys with its own prefix."""
    return key[len("mooncake_"):] if key.startswith("mooncake_") else key


def _read_file(given, path):
    values, is_of_others = {}, False
    for key, value in given.items():
        setting = _BY_SPELLING.get(key) or _BY_SPELLING.get(_plain(key))
        if setting is None:
            is_of_others |= _plain(key) in _OF_OTHERS
            if _plain(key) not in _OF_OTHERS:
                near = difflib.get_close_matches(key, _BY_SPELLING, 1)
                logger.warning("%s: unknown key %r is ignored%s", path, key, f"; did you mean {near[0]!r}?" if near else "")
            continue
        is_of_others |= key != setting.name
        if key != setting.name and setting.name in given:
            continue  # the name of ours wins
        if value is None and setting.is_null_initial:
            continue
        values[setting.name] = setting.read(f"{path}: {key}", value)
    # A file that was written for FastDeploy or vLLM names no host; our own must.
    if is_of_others and "local_hostname" not in values:
        values["local_hostname"] = os.environ.get("MOONCAKE_LOCAL_HOSTNAME", "localhost")
    for name in _REQUIRED:
        if name not in values:
            raise ValueError(f"{path}: Missing required config field: {name}")
    for setting in _SETTINGS:
        values.setdefault(setting.name, setting.initial)
    return values
