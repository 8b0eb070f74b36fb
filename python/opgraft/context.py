"""Execution mode: PYNATIVE_MODE runs each operator as it is called, GRAPH_MODE traces a Cell once per signature."""

from . import _core

GRAPH_MODE = 0
PYNATIVE_MODE = 1
MOST_THREADS = 256  # of the pool (aot_ops/common/threads.cc)
_state = {"mode": PYNATIVE_MODE, "device_target": "CPU"}


def set_context(mode=None, device_target=None, runtime_num_threads=None):
    """Sets the mode and the number of threads (0: as many as the machine has)."""
    if mode is not None:
        if mode not in (GRAPH_MODE, PYNATIVE_MODE):
            raise ValueError(f"set_context: mode must be GRAPH_MODE (0) or PYNATIVE_MODE (1), got {mode!r}")
        _state["mode"] = mode
    if device_target is not None and device_target != "CPU":
        raise ValueError(f"set_context: device_target must be 'CPU', got {device_target!r}")
    if runtime_num_threads is not None:
        if not isinstance(runtime_num_threads, int) or not 0 <= runtime_num_threads <= MOST_THREADS:
            raise ValueError(
                f"set_context: runtime_num_threads must be an int of at least 0 and at most {MOST_THREADS}, "
                f"got {runtime_num_threads!r}"
            )
        _core.set_threads(runtime_num_threads)


def get_context(attr_key):
    if attr_key not in _state:
        raise ValueError(f"get_context: attr_key must be one of {', '.join(_state)}, got {attr_key!r}")
    return _state[attr_key]


def graph_mode() -> bool:
    return _state["mode"] == GRAPH_MODE


def set_device(device_target, device_id=None):
    """MindSpore's choice of a device: here there is the CPU."""
    if device_target != "CPU":
        raise ValueError(f"set_device: device_target must be 'CPU', got {device_target!r}")
    if device_id not in (None, 0):
        raise ValueError(f"set_device: device_id must be 0, got {device_id!r}")
