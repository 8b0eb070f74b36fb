// An operator's descriptor (opgraft_op): read from a file that is not opened yet, and checked against op.yaml.
#pragma once

#include <cstddef>

#include "opgraft/abi.h"
#include "registry/elf.h"
#include "registry/manifest.h"

namespace opgraft {

// What descriptors must at least hold: everything up to and including `kernel`.
constexpr size_t kLeastDescriptor = offsetof(opgraft_op, kernel) + sizeof(opgraft_op::kernel);

// Throws std::runtime_error unless a file of ABI version `abi` can be served here; `who` begins the message.
void check_abi(uint32_t abi, std::string_view who);
std::string abi_text(uint32_t abi);  // "1.0"

// The descriptor at `symbol` as the file holds it: texts point into the file, functions are only null or not, and
// members that its struct_size does not reach are null. `room`: the symbol's size.
opgraft_op descriptor_in(const Elf &elf, const Elf::Symbol &symbol, const Manifest &manifest);
// The same of a loaded file.
opgraft_op descriptor_at(const opgraft_op *raw, size_t room, const Manifest &manifest);
// Both throw std::runtime_error or ElfError where it disagrees with op.yaml.

}  // namespace opgraft
