"""Shared objects with the opgraft note, and the same with one field made wrong."""

import pathlib
import struct
import subprocess
import tempfile

from manifest import SMALL

ELF_SOURCE = """__attribute__((constructor)) static void first(void) { __asm__ volatile(""); }
int Probe(void) { return 0; }
int other(void);
int call(void) { return other(); }
static int run(void *p) { return p != 0; }
struct descriptor {
  unsigned size, abi;
  const char *name, *version, *begin, *end;
  int (*infer)(void *), (*kernel)(void *);
  void *more[8];
};
const struct descriptor opgraft_op_Probe = {sizeof opgraft_op_Probe, 0x10000, "fuzz", "fuzz", 0, 0, run, run};
"""
VERSIONS = "OTHER_1 { global: other; };\n"


def elves():
    """Small shared objects with the note, as gcc links them with both kinds of hash table."""
    note = f"""#define NOTE_ABI 0x00010000
  .section .note.opgraft, "a", @note
  .balign 4
  .long 8, 2f - 1f, 1
  .asciz "opgraft"
1: .long NOTE_ABI
  .ascii "{SMALL.replace(chr(10), chr(92) + "n")}"
2: .balign 4
  .section .note.GNU-stack, "", @progbits
"""
    flags = [
        "-shared",
        "-fPIC",
        "-Os",
        "-s",
        "-nostdlib",
        "-fno-asynchronous-unwind-tables",
        "-Wl,-z,noseparate-code,-z,norelro",
        "-Wl,--build-id=none",
    ]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "probe.c").write_text(ELF_SOURCE)
        (folder / "note.S").write_text(note)
        (folder / "other.c").write_text("int other(void) { return 1; }\n")
        other = folder / "libother.so"
        (folder / "other.map").write_text(VERSIONS)
        subprocess.run(["gcc", *flags, folder / "other.c", "-o", other, "-Wl,-soname,libother.so",
                        f"-Wl,--version-script,{folder / 'other.map'}"], check=True)  # fmt: skip
        yield "versions", other.read_bytes()
        for name, more in {
            "gnu": ["-Wl,--hash-style=gnu", other, "-Wl,-rpath,/nowhere"],
            "sysv": ["-Wl,--hash-style=sysv", other, "-Wl,-rpath,/nowhere,--disable-new-dtags"],
            "both": ["-Wl,--hash-style=both", "-Wl,-z,now"],
            "packed": ["-Wl,-z,pack-relative-relocs", other],
        }.items():
            out = folder / name
            subprocess.run(["gcc", *flags, folder / "probe.c", folder / "note.S", "-o", out, *more], check=True)
            yield name, out.read_bytes()


def broken_elves(good):
    """The header's, the segments' and the dynamic section's fields, each made wrong once."""
    yield "empty", b""
    yield "text", b"not a shared object"
    yield "short_header", good[:40]
    yield "half", good[: len(good) // 2]

    def patched(at, form, value):
        return good[:at] + struct.pack(form, value) + good[at + struct.calcsize(form) :]

    for what, at, form, v in [
        ("class", 4, "B", 1),
        ("endian", 5, "B", 2),
        ("machine_arm", 18, "<H", 183),
        ("machine_386", 18, "<H", 3),
        ("machine_unknown", 18, "<H", 9999),
        ("machine_riscv", 18, "<H", 243),
        ("machine_arm32", 18, "<H", 40),
        ("executable", 16, "<H", 2),
        ("no_segments", 56, "<H", 0),
        ("segments_far", 32, "<Q", 1 << 60),
        ("sections_far", 40, "<Q", 1 << 60),
        ("many_segments", 56, "<H", 60000),
    ]:
        yield what, patched(at, form, v)
    segments, count = struct.unpack_from("<Q", good, 32)[0], struct.unpack_from("<H", good, 56)[0]
    for i in range(count):
        at = segments + 56 * i
        kind, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", good, at)
        if kind not in (1, 2, 4):
            continue
        name = {1: "load", 2: "dynamic", 4: "note"}[kind]
        yield f"{name}{i}_kind", patched(at, "<I", 0)
        yield f"{name}{i}_offset", patched(at + 8, "<Q", 1 << 62)
        yield f"{name}{i}_size", patched(at + 32, "<Q", 5)
        yield f"{name}{i}_align", patched(at + 48, "<Q", 3)
        if kind == 4:
            yield f"note{i}_name_size", patched(offset, "<I", 0xFFFFFFFF)
            yield f"note{i}_text_size", patched(offset + 4, "<I", 0xFFFFFFFF)
        for k in range(size // 16 if kind == 2 else 0):
            tag = struct.unpack_from("<Q", good, offset + 16 * k)[0]
            if tag in (1, 4, 5, 6, 7, 11, 15, 25, 29, 0x6FFFFEF5, 0x6FFFFFF0):
                yield f"tag{tag:x}_value", patched(offset + 16 * k + 8, "<Q", 0x7FFFFFFF)
                yield f"tag{tag:x}_gone", patched(offset + 16 * k, "<Q", 0x6FFFFFFF)
                at = struct.unpack_from("<Q", good, offset + 16 * k + 8)[0]
                if tag in (4, 0x6FFFFEF5) and at + 12 < len(good):  # the hash tables: address and offset are equal here
                    for word in range(3):
                        yield f"tag{tag:x}_word{word}", patched(at + 4 * word, "<I", 0)
                        yield f"tag{tag:x}_large{word}", patched(at + 4 * word, "<I", 0x7FFFFFFF)


def elf():
    objects = dict(elves())
    yield from objects.items()
    yield from broken_elves(objects["gnu"])
    yield from ((f"sysv_{name}", data) for name, data in broken_elves(objects["sysv"]) if name.startswith("tag4_"))
