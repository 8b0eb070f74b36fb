// The MindIR reader on hostile bytes. Only MindirError may come out. OPGRAFT_OPS_PATH names a folder of
// built operators; without one every node ends at "no registered operator".
#include "infer/mindir.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  try {
    opgraft::parse_mindir({reinterpret_cast<const char *>(data), size}, opgraft::Registry::global(), "fuzz");
  } catch (const opgraft::MindirError &) {
  }
  return 0;
}
