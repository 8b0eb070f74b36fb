// MindSpore's checkpoint files (.ckpt): messages of its checkpoint.proto one after another, each with a piece of one
// parameter, and, where it was asked for, a CRC-32 of them all at the end.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "infer/mindir.h"
#include "infer/tensor.h"

namespace opgraft {

// A parameter, or, without a tensor, a text (what MindSpore's append_dict takes beside parameters).
struct CheckpointEntry {
  std::string name;
  Tensor tensor;
  std::u32string text;
};

struct Checkpoint {
  std::vector<CheckpointEntry> entries;  // names are UTF-8 and differ
  bool has_crc = false;                  // and it is right
};

// Both throw MindirError with file, parameter and what was expected; tensors are copies.
Checkpoint read_checkpoint(const std::filesystem::path &file);
Checkpoint parse_checkpoint(std::string_view bytes, const std::string &origin);

// The file appears under its name only when it is whole. Pieces have at most `slice` bytes, as MindSpore's.
void write_checkpoint(std::span<const CheckpointEntry> entries, const std::filesystem::path &file, bool crc,
                      size_t slice = size_t(512) << 20);

}  // namespace opgraft
