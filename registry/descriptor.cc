#include "registry/descriptor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace opgraft {
namespace {

[[noreturn]] void refuse(const std::string &cause) { throw std::runtime_error(cause); }

void check_size(uint32_t size, size_t room, const Manifest &m) {
  if (size < kLeastDescriptor || size > room)
    refuse(fmt::format("{}: descriptor.struct_size must be {} to {} (its symbol's size), got {}", m.name,
                       kLeastDescriptor, room, size));
}

void check(const opgraft_op &d, const Manifest &m) {
  auto same = [&](const char *field, const char *got, const std::string &expected) {
    if (!got || got != expected)
      refuse(fmt::format("{}: descriptor.{} must be '{}' as in op.yaml, got {}", m.name, field, expected,
                         got ? fmt::format("'{}'", got) : "null"));
  };
  same("name", d.name, m.name);
  same("version", d.version, m.version);
  if (!d.infer) refuse(fmt::format("{}: descriptor.infer must not be null", m.name));
  if (!d.kernel) refuse(fmt::format("{}: descriptor.kernel must not be null", m.name));
  if (!m.backward.empty() && d.backward) same("backward", d.backward, m.backward);
}

}  // namespace

std::string abi_text(uint32_t abi) { return fmt::format("{}.{}", abi >> 16, abi & 0xffff); }

void check_abi(uint32_t abi, std::string_view who) {
  if (abi >> 16 == OPGRAFT_ABI_MAJOR) return;
  refuse(fmt::format("{} built for opgraft ABI {}, this opgraft has ABI {}; {}", who, abi_text(abi),
                     abi_text(OPGRAFT_ABI_VERSION),
                     abi >> 16 > OPGRAFT_ABI_MAJOR ? "a newer opgraft is needed" : "build the operator again"));
}

opgraft_op descriptor_in(const Elf &elf, const Elf::Symbol &symbol, const Manifest &m) {
  constexpr size_t kHead = offsetof(opgraft_op, name);  // after it there are only pointers
  auto head = elf.bytes(symbol.address, kHead, "the descriptor");
  opgraft_op d{};
  std::memcpy(&d, head.data(), kHead);
  check_abi(d.abi_version, m.name + " was");
  check_size(d.struct_size, symbol.size, m);
  for (size_t at = kHead; at + sizeof(void *) <= std::min<size_t>(d.struct_size, sizeof d); at += sizeof(void *)) {
    auto target = elf.pointer_at(symbol.address + at, "a member of the descriptor");
    const bool text =
        at == offsetof(opgraft_op, name) || at == offsetof(opgraft_op, version) || at == offsetof(opgraft_op, backward);
    if (text && target == Elf::kElsewhere)
      refuse(fmt::format("{}: the descriptor's name, version and backward must lie in the file itself", m.name));
    if (text && target) target = reinterpret_cast<uintptr_t>(elf.text_at(target, "a text of the descriptor").data());
    std::memcpy(reinterpret_cast<char *>(&d) + at, &target, sizeof target);
  }
  check(d, m);
  d.struct_size = sizeof d;
  return d;
}

opgraft_op descriptor_at(const opgraft_op *raw, size_t room, const Manifest &m) {
  if (!raw) refuse(fmt::format("{}: the descriptor cannot be found", m.name));
  check_abi(raw->abi_version, m.name + " was");
  check_size(raw->struct_size, room, m);
  opgraft_op d{};
  std::memcpy(&d, raw, std::min<size_t>(raw->struct_size, sizeof d));
  check(d, m);
  d.struct_size = sizeof d;
  return d;
}

}  // namespace opgraft
