// What is read of a shared object before it may be opened, on hostile bytes: ELF, the note, its op.yaml.
#include "opgraft/abi.h"
#include "registry/descriptor.h"
#include "registry/elf.h"
#include "registry/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  try {
    opgraft::Elf elf({reinterpret_cast<const char *>(data), size});
    if (elf.machine().empty()) __builtin_trap();
    for (auto &s : elf.exports())
      if (elf.find(s.name)->name != s.name) __builtin_trap();
    auto note = elf.note(OPGRAFT_NOTE_OWNER, OPGRAFT_NOTE_TYPE);
    opgraft::Manifest any;
    any.name = any.version = "fuzz";
    for (auto &s : elf.exports()) try {
        opgraft::descriptor_in(elf, s, any);
      } catch (const std::runtime_error &) {
      }
    if (note && note->size() >= sizeof(uint32_t)) opgraft::parse_manifests(note->substr(sizeof(uint32_t)), "fuzz");
  } catch (const opgraft::ElfError &) {
  } catch (const opgraft::ManifestError &) {
  }
  return 0;
}
