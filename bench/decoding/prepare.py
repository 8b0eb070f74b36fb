"""The files that the programs decode with, made anew where something is newer than they are."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROWS = 2048  # tokens that a text's caches may hold
sys.path.insert(0, str(ROOT / "bench"))


def gguf():
    found = sorted((ROOT / "build" / "data" / "smollm2").rglob("*.gguf"))
    return found[0] if found else None


def weight_bytes(file, width):
    """Bytes of the weights that a token reads: all matrices, the embedding's as the head where there is no other."""
    from gguf import GGUFReader

    tensors = [t for t in GGUFReader(file).tensors if len(t.shape) == 2]
    if any(t.name == "output.weight" for t in tensors):
        tensors = [t for t in tensors if t.name != "token_embd.weight"]
    return int(sum(t.n_elements * width if width else t.n_bytes for t in tensors))


def files(model, folder, wanted, pythons):
    """{form: its file}; `pythons` {environment's folder: its Python}."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = [p for at in ("python/opgraft", "examples/llama") for p in (ROOT / at).glob("*.py")]
    sources += [*(ROOT / "build" / "ops").glob("*.so"), *(ROOT / "build" / "python" / "opgraft").glob("*.so"), model]
    newest = max(p.stat().st_mtime for p in sources)
    made = {"gguf": str(model)}
    for form in set(wanted) - {"gguf"}:
        made[form] = str(folder / form) + ("" if form == "transformers" else ".mindir")
        of = [model] if form == "transformers" else sources
        mark = folder / f"{form}.made"
        if mark.exists() and mark.stat().st_mtime > (newest if of is sources else 0):
            continue
        print(f"making {made[form]}", file=sys.stderr, flush=True)
        for command in commands(form, model, folder, made[form], pythons):
            subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        mark.touch()
    return made


def commands(form, model, folder, made, pythons):
    """As a user makes them: `opgraft export`, `opgraft optimize`; transformers' own conversion."""
    if form == "transformers":
        program = pathlib.Path(__file__).with_name("save_transformers.py")
        return [[pythons[".venv-transformers"], program, model, made]]
    if form == "plain":
        return [[sys.executable, pathlib.Path(__file__), model, made]]
    whole = folder / f"{form}_exported.mindir"
    cli, cells = [sys.executable, "-m", "opgraft"], ROOT / "examples" / "llama"
    return [[*cli, "export", cells, "--model", model, "-o", whole, "--weights", form, "--rows", ROWS],
            [*cli, "optimize", whole, "-o", made]]  # fmt: skip


def export_plain(model, made):
    """Concatenated caches, as many texts at once as are given, nothing fused."""
    sys.path.insert(0, str(ROOT / "examples"))
    import llama
    import opgraft

    net = llama.load(model)
    batch, length, past = (opgraft.dim(n) for n in ("batch", "length", "past"))
    cache = [batch, net.config.num_key_value_heads, past, net.config.head_dim]
    net.set_inputs(
        opgraft.Tensor(shape=[batch, length], dtype=opgraft.int32), opgraft.Tensor(shape=[length], dtype=opgraft.int32),
        *[opgraft.Tensor(shape=cache, dtype=opgraft.float32) for _ in range(2 * net.config.num_hidden_layers)],
    )  # fmt: skip
    opgraft.export(net, file_name=made)


if __name__ == "__main__":
    export_plain(*sys.argv[1:])
