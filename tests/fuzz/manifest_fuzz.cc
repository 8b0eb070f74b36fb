// The op.yaml reader on hostile bytes. Only ManifestError may come out.
#include "registry/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  try {
    opgraft::parse_manifests({reinterpret_cast<const char *>(data), size}, "fuzz");
  } catch (const opgraft::ManifestError &) {
  }
  return 0;
}
