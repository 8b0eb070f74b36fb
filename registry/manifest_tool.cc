// Build-time tool: checks an op.yaml and writes what opgraft_add_op() compiles into the shared
// object: op_manifest.h (name, version and attribute kinds for OPGRAFT_OP) and op_manifest.S (the ELF
// note).  Usage: opgraft-manifest op.yaml OUT_DIR
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "opgraft/abi.h"
#include "registry/manifest.h"

int main(int argc, char **argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: opgraft-manifest op.yaml OUT_DIR\n");
    return 2;
  }
  std::ifstream in(argv[1], std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in) {
    fmt::print(stderr, "opgraft-manifest: cannot read {}\n", argv[1]);
    return 1;
  }
  try {
    auto ops = opgraft::parse_manifests(text.str(), argv[1]);
    std::string dir = argv[2];
    std::ofstream h(dir + "/op_manifest.h"), s(dir + "/op_manifest.S");
    h << "// Generated from op.yaml.\n#pragma once\n#include \"opgraft/export.h\"\n";
    for (auto &op : ops) {
      if (!op.attrs.empty()) {
        h << fmt::format("static constexpr ::opgraft::detail::AttrInfo opgraft_attrs_{}[] = {{", op.name);
        for (auto &a : op.attrs) h << fmt::format("{{\"{}\", {}}}, ", a.name, a.kind);
        h << "};\n";
      }
      h << fmt::format("#define OPGRAFT_INFO_{0} {{\"{0}\", \"{1}\", {2}, {3}}}\n", op.name, op.version,
                       op.attrs.empty() ? "nullptr" : "opgraft_attrs_" + op.name, op.attrs.size());
    }
    size_t bytes = text.str().size();
    s << fmt::format(
        "  .section .note.opgraft, \"a\", @note\n  .balign 4\n  .long 8, {}, {}\n  .asciz \"{}\"\n  .long {}\n"
        "  .global opgraft_manifest_begin\n  .hidden opgraft_manifest_begin\nopgraft_manifest_begin:\n"
        "  .incbin \"{}\"\n  .global opgraft_manifest_end\n  .hidden opgraft_manifest_end\nopgraft_manifest_end:\n"
        "  .balign 4\n  .section .note.GNU-stack,\"\",@progbits\n",
        bytes + 4, OPGRAFT_NOTE_TYPE, OPGRAFT_NOTE_OWNER, OPGRAFT_ABI_VERSION, argv[1]);
    if (!h || !s) throw std::runtime_error("cannot write into " + dir);
  } catch (const std::exception &e) {
    fmt::print(stderr, "opgraft-manifest: {}\n", e.what());
    return 1;
  }
  return 0;
}
