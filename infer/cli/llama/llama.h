// LLaMA as a graph: what examples/llama/model.py is when it is traced.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "infer/cli/llama/checkpoint.h"
#include "infer/graph.h"

namespace opgraft::llama {

// float32 or bfloat16, to which the file's weights are expanded; as the file has them, or eight bits with a scale for
// each row, float32 between them.
enum class Weights { kFloat32, kBfloat16, kStored, kInt8 };
std::optional<Weights> weights_of(std::string_view name);

// (input_ids (1, S) int32, position_ids (S,) int32) -> the last token's logits (1, 1, vocabulary), over caches of
// `rows` tokens. Node by node what Python traces, nothing fused. Throws GgufError.
std::shared_ptr<Graph> build_graph(const Checkpoint &checkpoint, Weights weights, int64_t rows);

// The whole of `opgraft generate`'s models of a GGUF file: the graph, fused or `plain`, and what goes with it. rows 0:
// the model's context. Throws GgufError.
std::shared_ptr<Graph> load(const std::filesystem::path &file, Weights weights, int64_t rows, bool plain);

}  // namespace opgraft::llama
