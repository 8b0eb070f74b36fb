"""Does what the documents say: the files of docs/adding_an_op.md and docs/abi.md are written and their commands run, in
their order; README's ten lines are run. The folder my_ops becomes a temporary one."""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(?:\*\*(?P<file>[\w./]+)\*\*\n\n)?```(?P<kind>\w*)\n(?P<text>.*?)```", re.S)


def run(command, text):
    print(f"$ {text.strip().splitlines()[0]}{' …' if len(text.strip().splitlines()) > 1 else ''}", flush=True)
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"{text}\nfailed with exit code {done.returncode}:\n{done.stdout}")
    return done.stdout


def follow(document, folder):
    """Number of files written and commands run."""
    count = 0
    for block in BLOCK.finditer(document.read_text()):
        text = block["text"].replace("my_ops", str(folder))
        if block["file"]:
            target = pathlib.Path(block["file"].replace("my_ops", str(folder)))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        elif block["kind"] == "sh":
            for line in text.splitlines():
                output = run(["bash", "-c", line], line)
                if "pytest" in line and not re.search(r"\d\d+ passed", output):
                    sys.exit(f"{line}: runs fewer than ten tests:\n{output}")
        else:
            continue
        count += 1
    return count


def main():
    try:
        for document, least in {"adding_an_op.md": 14, "abi.md": 3}.items():
            with tempfile.TemporaryDirectory() as folder:
                count = follow(ROOT / "docs" / document, pathlib.Path(folder) / "my_ops")
            if count < least:
                sys.exit(f"docs/{document}: only {count} blocks were found, expected at least {least}")
    finally:
        for op in ("squared_relu", "shifted_relu"):
            (ROOT / "build" / "ops" / f"{op}.so").unlink(missing_ok=True)
    ten = [b["text"] for b in BLOCK.finditer((ROOT / "README.md").read_text()) if b["kind"] == "python"]
    if not ten:
        sys.exit("README.md: no Python lines were found")
    for text in ten:
        output = run([str(ROOT / ".venv" / "bin" / "python"), "-c", text], text)
        difference = float(output.split()[-1])
        if not difference < 1e-6:
            sys.exit(f"README.md's lines print a difference of {difference}")
    print("ok: docs/adding_an_op.md, docs/abi.md and README.md can be followed")


if __name__ == "__main__":
    main()
