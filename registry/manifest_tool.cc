// Build-time tool: checks an op.yaml and writes what opgraft_add_op() compiles into the shared
// object: op_manifest.h (name, version and attribute kinds for OPGRAFT_OP) and op_manifest.S (the ELF
// note).  Usage: opgraft-manifest op.yaml OUT_DIR
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>

#include "opgraft/mindspore.h"
#include "opgraft/op.h"
#include "registry/manifest.h"

// The table of inputs: their dtypes, and which of them share a type variable.
static void write_inputs(std::ostream &h, const opgraft::Manifest &op) {
  std::string table;
  std::map<std::string, size_t> variables;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    auto &in = op.inputs[i];
    std::vector<int32_t> dtypes{opgraft::dtype_from_name(in.dtype)};
    std::string variable = fmt::format("{}:{}", in.dtype, i);  // a fixed dtype shares with nobody
    for (auto &[name, list] : op.dtypes)
      if (name == in.dtype) dtypes = list, variable = name;
    auto number = variables.try_emplace(variable, variables.size()).first->second;
    h << fmt::format("static constexpr int32_t opgraft_dtypes_{}_{}[] = {{{}}};\n", op.name, i,
                     fmt::join(dtypes, ", "));
    table += fmt::format("{{\"{0}\", opgraft_dtypes_{1}_{2}, {3}, {4}, {5}, {6}, {7}}}, ", in.name, op.name, i,
                         dtypes.size(), number, in.value, in.optional, in.variadic);
  }
  if (!table.empty())
    h << fmt::format("static constexpr ::opgraft::detail::InputInfo opgraft_inputs_{}[] = {{{}}};\n", op.name, table);
}

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
    h << "static constexpr std::string_view opgraft_names[] = {";
    for (auto &op : ops) h << fmt::format("\"{}\", ", op.name);
    h << "};\n";
    for (auto &op : ops) {
      for (auto &a : op.attrs)
        if (a.name.size() > opgraft::mindspore::Name::kMost)
          throw std::runtime_error(fmt::format("{}: {}: attribute names must be at most {} characters, got {}", argv[1],
                                               op.name, opgraft::mindspore::Name::kMost, a.name));
      if (!op.attrs.empty()) {
        h << fmt::format("static constexpr ::opgraft::detail::AttrInfo opgraft_attrs_{}[] = {{", op.name);
        for (auto &a : op.attrs) h << fmt::format("{{\"{}\", {}}}, ", a.name, a.kind);
        h << "};\n";
      }
      write_inputs(h, op);
      h << fmt::format("#define OPGRAFT_INFO_{0} {{\"{0}\", \"{1}\", {2}, {3}, {4}, {5}}}\n", op.name, op.version,
                       op.attrs.empty() ? "nullptr" : "opgraft_attrs_" + op.name, op.attrs.size(),
                       op.inputs.empty() ? "nullptr" : "opgraft_inputs_" + op.name, op.inputs.size());
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
