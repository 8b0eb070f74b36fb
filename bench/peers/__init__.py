"""The programs that are compared, one file each. A peer is run by `bench/worker.py` in an environment of its own.

A file has `build(row, inputs, weights, threads) -> (run, fetch)`: `run()` makes one call and is what is timed,
`fetch()` gives the last call's outputs as NumPy arrays; `VERSION()`, what is being measured; and `WARM = True` where
nothing is compiled in a first call. What a row cannot be built for raises `Missing` with the reason.
"""


class Missing(Exception):
    pass


# name: (environment's folder under the repository's root, its requirements beside bench/, the file here)
PEERS = {
    "opgraft": (".venv", None, "opgraft_peer"),
    "twin": (".venv", None, "twin_peer"),
    "numpy": (".venv-numpy", "numpy.txt", "numpy_peer"),
    "torch": (".venv-torch", "torch.txt", "torch_peer"),
    "torch.compile": (".venv-torch", "torch.txt", "torch_compile_peer"),
    "onnxruntime": (".venv-onnxruntime", "onnxruntime.txt", "onnxruntime_peer"),
    "openvino": (".venv-openvino", "openvino.txt", "openvino_peer"),
    "mindspore graph": (".venv-mindspore", "../../requirements-mindspore.txt", "mindspore_graph_peer"),
    "mindspore pynative": (".venv-mindspore", "../../requirements-mindspore.txt", "mindspore_pynative_peer"),
}
AGAINST = "against"  # opgraft in the row that a row is compared with
# What is not a peer: a row's target is a share of the best of the others.
OURS = {"opgraft", "twin", AGAINST}


def as_list(value):
    return list(value) if isinstance(value, (list, tuple)) else [value]
