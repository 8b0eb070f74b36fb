#include "infer/cli/llama/llama.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "infer/cli/llama/tokenizer.h"
#include "infer/mindir_file.h"
#include "infer/passes/passes.h"
#include "infer/session.h"

namespace opgraft::llama {
namespace {

using Values = std::vector<ValueId>;
constexpr std::string_view kLayers = "layers.";  // a list of Cells, which names no nodes

// Zeros that take no memory until somebody writes them, who needs a copy.
Tensor zeros(int32_t dtype, Shape dims) {
  auto pages = std::make_shared<mindir::Mapping>();
  size_t bytes = dtype_size(dtype);
  for (int64_t d : dims)
    if (__builtin_mul_overflow(bytes, size_t(d), &bytes)) throw std::bad_alloc();
  void *data = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  pages->data = data;
  pages->size = bytes;
  return Tensor::mapped(dtype, std::move(dims), data, pages);
}

class Builder {
 public:
  Builder(const Checkpoint &checkpoint, Weights weights, int64_t rows)
      : file_(checkpoint),
        config_(checkpoint.config()),
        weights_(weights),
        rows_(rows),
        dtype_(weights == Weights::kBfloat16 ? OPGRAFT_BFLOAT16 : OPGRAFT_FLOAT32),
        graph_(std::make_shared<Graph>("LlamaForCausalLM")) {}

  std::shared_ptr<Graph> build();

 private:
  // A product with a weight, or rows of a table, by how the weights are kept.
  struct Matrix {
    ValueId weight = kNone, scale = kNone;
    std::string format{};  // of blocks
    int64_t rows = 0;
  };

  // Within, Parameters and nodes are named after the Cell `name`.
  class Scope {
   public:
    Scope(Builder &builder, const std::string &name) : path_(builder.path_), before_(path_.size()) {
      path_ += name + ".";
    }
    ~Scope() { path_.resize(before_); }

   private:
    std::string &path_;
    size_t before_;
  };

  // A node by the name that a trace gives it: 0/self_attn/Mul_1.
  Values nodes(const std::string &op, const Values &inputs, Attrs attrs = {}) {
    std::string name = (path_.starts_with(kLayers) ? path_.substr(kLayers.size()) : path_) + op;
    std::ranges::replace(name, '.', '/');
    if (const int n = named_[name]++) name += fmt::format("_{}", n);
    return graph_->node(graph_->add_node(Registry::global(), op, inputs, std::move(attrs), name)).outputs;
  }
  ValueId node(const std::string &op, const Values &inputs, Attrs attrs = {}) {
    return nodes(op, inputs, std::move(attrs))[0];
  }
  ValueId parameter(const char *name, Tensor t) { return graph_->add_constant(std::move(t), path_ + name, true); }
  ValueId scalar(int64_t n) {
    Tensor t(OPGRAFT_INT64, {});
    *t.data<int64_t>() = n;
    return graph_->add_constant(t);
  }
  ValueId cast(ValueId x, int32_t dtype) {
    if (graph_->value(x).type.dtype == dtype) return x;
    return node("Cast", {x}, {{"dtype", std::string(dtype_name(dtype))}});
  }
  int64_t dim(ValueId x, int64_t i) const { return graph_->value(x).type.dims[size_t(i)]; }
  // Size i of x as a value: a number where it is one.
  ValueId size(ValueId x, int64_t i) {
    if (const int64_t d = dim(x, i); d >= 0) return scalar(d);
    if (!shapes_.contains(x)) shapes_[x] = node("Shape", {x});
    if (!sizes_.contains({x, i})) sizes_[{x, i}] = node("TupleGetItem", {shapes_[x]}, {{"index", i}});
    return sizes_[{x, i}];
  }
  ValueId reshape(ValueId x, const Values &sizes) { return node("Reshape", {x, node("MakeTuple", sizes)}); }
  ValueId slice(ValueId x, Tensor begin, Tensor end, Tensor strides, int64_t begin_mask, int64_t end_mask) {
    const Values inputs{x, graph_->add_constant(std::move(begin)), graph_->add_constant(std::move(end)),
                        graph_->add_constant(std::move(strides))};
    return node("StridedSlice", inputs, {{"begin_mask", begin_mask}, {"end_mask", end_mask}});
  }

  Matrix matrix(const char *key, const std::string &tensor, int64_t n, int64_t k);
  ValueId times(ValueId x, const Matrix &m);
  ValueId rows_of(const Matrix &m, ValueId indices);
  ValueId dense(const std::string &name, const std::string &tensor, ValueId x, int64_t n);
  ValueId norm(const std::string &name, const std::string &tensor, ValueId x);
  ValueId rotated(ValueId x);
  ValueId attention(const std::string &block, ValueId x);
  ValueId mlp(const std::string &block, ValueId x);
  ValueId layer(int64_t i, ValueId x);
  void tables();

  const Checkpoint &file_;
  const Config &config_;
  const Weights weights_;
  const int64_t rows_;
  const int32_t dtype_;  // of what stands between the weights, and of those that are no matrices
  std::shared_ptr<Graph> graph_;
  std::string path_;                  // of the Cell at work
  std::map<std::string, int> named_;  // nodes, by name
  std::map<ValueId, ValueId> shapes_;
  std::map<std::pair<ValueId, int64_t>, ValueId> sizes_;
  Tensor cache_;
  ValueId input_ids_ = kNone, position_ids_ = kNone, cos_ = kNone, sin_ = kNone;
};

Builder::Matrix Builder::matrix(const char *key, const std::string &tensor, int64_t n, int64_t k) {
  Matrix m;
  m.rows = n;
  if (weights_ == Weights::kInt8) {
    Channels c = file_.channels(tensor, {n, k});
    m.weight = parameter("weight", std::move(c.codes));
    m.scale = parameter("scale", std::move(c.scale));
  } else if (auto blocks = weights_ == Weights::kStored ? file_.stored(tensor, {n, k}) : std::nullopt) {
    m.weight = parameter("weight", std::move(blocks->rows));
    m.format = std::move(blocks->format);
  } else {
    m.weight = parameter(key, file_.weight(tensor, {n, k}, dtype_));
  }
  return m;
}

ValueId Builder::times(ValueId x, const Matrix &m) {
  if (!m.format.empty()) return node("BlockQuantMatMul", {x, m.weight}, {{"format", m.format}});
  if (m.scale == kNone) return node("MatMul", {x, m.weight}, {{"transpose_a", false}, {"transpose_b", true}});
  const int64_t rank = int64_t(graph_->value(x).type.dims.size());
  const ValueId flat = graph_->add_constant(Tensor::of({-1, dim(x, rank - 1)}));
  const Values quantised = nodes("DynamicQuantExt", {node("Reshape", {x, flat})});
  Tensor none_float(OPGRAFT_FLOAT32, {0}), none_int(OPGRAFT_INT32, {0});
  const ValueId y = node(
      "QuantBatchMatmul",
      {quantised[0], m.weight, m.scale, graph_->add_constant(none_float), graph_->add_constant(none_int), quantised[1]},
      {{"transpose_x1", false}, {"transpose_x2", true}, {"dtype", std::string(dtype_name(dtype_))}});
  Values sizes;
  bool open = false;
  for (int64_t i = 0; i + 1 < rank; ++i) open |= dim(x, i) < 0;
  if (!open) {
    Tensor shape(OPGRAFT_INT64, {rank});
    for (int64_t i = 0; i < rank; ++i) shape.data<int64_t>()[i] = i + 1 < rank ? dim(x, i) : m.rows;
    return node("Reshape", {y, graph_->add_constant(shape)});
  }
  for (int64_t i = 0; i + 1 < rank; ++i) sizes.push_back(size(x, i));
  sizes.push_back(scalar(m.rows));
  return reshape(y, sizes);
}

ValueId Builder::rows_of(const Matrix &m, ValueId indices) {
  if (!m.format.empty())
    return node("BlockQuantGather", {m.weight, indices}, {{"format", m.format}, {"dtype", std::string("float32")}});
  const Attrs axis{{"axis", int64_t(0)}};
  const ValueId found = node("Gather", {m.weight, indices}, axis);
  if (m.scale == kNone) return found;
  const ValueId wide = cast(found, OPGRAFT_FLOAT32);
  const ValueId scales = node("Gather", {m.scale, indices}, axis);
  return node("Mul", {wide, node("ExpandDims", {scales}, {{"axis", int64_t(-1)}})});
}

ValueId Builder::dense(const std::string &name, const std::string &tensor, ValueId x, int64_t n) {
  const Scope scope(*this, name);
  return times(x, matrix("weight", tensor + ".weight", n, dim(x, 2)));
}

// x / sqrt(mean of x^2 + eps) * weight over the last dimension, the mean in float32.
ValueId Builder::norm(const std::string &name, const std::string &tensor, ValueId x) {
  const Scope scope(*this, name);
  const ValueId wide = cast(x, OPGRAFT_FLOAT32);
  const ValueId mean =
      node("ReduceMean", {node("Square", {wide})}, {{"axis", std::vector<int64_t>{-1}}, {"keep_dims", true}});
  const ValueId eps = graph_->add_constant(Tensor::scalar(float(config_.rms_norm_eps)));
  const ValueId scaled = node("Mul", {wide, node("Rsqrt", {node("Add", {mean, eps})})});
  const ValueId narrow = cast(scaled, dtype_);
  return node("Mul", {narrow, parameter("weight", file_.weight(tensor + ".weight", {config_.hidden_size}, dtype_))});
}

// Pairs (x[2i], x[2i + 1]) turned by the angles of cos and sin. GGUF's query and key rows stand in this order.
ValueId Builder::rotated(ValueId x) {
  const ValueId even = slice(x, Tensor::of({0, 0, 0, 0}), Tensor::of({0, 0, 0, 0}), Tensor::of({1, 1, 1, 2}), 15, 15);
  const ValueId odd = slice(x, Tensor::of({0, 0, 0, 1}), Tensor::of({0, 0, 0, 0}), Tensor::of({1, 1, 1, 2}), 7, 15);
  const Attrs last{{"axis", int64_t(-1)}};
  const ValueId minus = node("ExpandDims", {node("Neg", {odd})}, last), plus = node("ExpandDims", {even}, last);
  const ValueId pairs = node("Concat", {minus, plus}, last);
  const ValueId turned = reshape(pairs, {size(x, 0), size(x, 1), size(x, 2), size(x, 3)});
  const ValueId along = node("Mul", {x, cos_});
  return node("Add", {along, node("Mul", {turned, sin_})});
}

ValueId Builder::attention(const std::string &block, ValueId x) {
  const Scope scope(*this, "self_attn");
  const int64_t heads = config_.num_attention_heads, kv = config_.num_key_value_heads, width = config_.head_dim;
  const Attrs swap{{"perm", std::vector<int64_t>{0, 2, 1, 3}}};
  const auto split = [&](ValueId y, int64_t n) {
    return node("Transpose", {reshape(y, {size(x, 0), size(x, 1), scalar(n), scalar(width)})}, swap);
  };
  const ValueId q = rotated(split(dense("q_proj", block + "attn_q", x, heads * width), heads));
  const ValueId key = rotated(split(dense("k_proj", block + "attn_k", x, kv * width), kv));
  const ValueId value = split(dense("v_proj", block + "attn_v", x, kv * width), kv);
  const ValueId keys = parameter("k_cache", cache_), values = parameter("v_cache", cache_);
  const ValueId lengths = node("KVCacheAppend", {keys, values, key, value, position_ids_});
  const Attrs scale{{"scale", std::numeric_limits<double>::quiet_NaN()}};  // the usual one
  const ValueId mixed = node("CachedAttention", {q, keys, values, lengths}, scale);
  const ValueId joined = reshape(node("Transpose", {mixed}, swap), {size(x, 0), size(x, 1), scalar(heads * width)});
  return dense("o_proj", block + "attn_output", joined, config_.hidden_size);
}

ValueId Builder::mlp(const std::string &block, ValueId x) {
  const Scope scope(*this, "mlp");
  const ValueId gate = node("SiLU", {dense("gate_proj", block + "ffn_gate", x, config_.intermediate_size)});
  const ValueId up = dense("up_proj", block + "ffn_up", x, config_.intermediate_size);
  return dense("down_proj", block + "ffn_down", node("Mul", {gate, up}), config_.hidden_size);
}

ValueId Builder::layer(int64_t i, ValueId x) {
  const Scope scope(*this, fmt::format("{}{}", kLayers, i));
  const std::string block = fmt::format("blk.{}.", i);
  const ValueId mixed = attention(block, norm("input_layernorm", block + "attn_norm", x));
  x = node("Add", {x, mixed});
  return node("Add", {x, mlp(block, norm("post_attention_layernorm", block + "ffn_norm", x))});
}

// cos and sin of every position's angles, an entry for each element.
void Builder::tables() {
  const int64_t positions = config_.max_position_embeddings, width = config_.head_dim;
  Tensor cos(OPGRAFT_FLOAT32, {positions, width}), sin(OPGRAFT_FLOAT32, {positions, width});
  std::vector<double> inverse;
  for (int64_t i = 0; i < width; i += 2) inverse.push_back(std::pow(config_.rope_theta, -double(i) / double(width)));
  float *c = cos.data<float>(), *s = sin.data<float>();
  for (int64_t p = 0; p < positions; ++p)
    for (const double x : inverse) {
      c = std::fill_n(c, 2, float(std::cos(double(p) * x)));
      s = std::fill_n(s, 2, float(std::sin(double(p) * x)));
    }
  const auto gathered = [&](const char *name, const Tensor &table) {
    const OpPtr cast = Registry::global().resolve("Cast");
    const Tensor kept = run_op(cast, {table}, {{"dtype", std::string(dtype_name(dtype_))}})[0];
    return node("Gather", {parameter(name, kept), position_ids_}, {{"axis", int64_t(0)}});
  };
  cos_ = gathered("cos_table", cos);
  sin_ = gathered("sin_table", sin);
}

std::shared_ptr<Graph> Builder::build() {
  const int64_t length = graph_->symbols.fresh("length");
  input_ids_ = graph_->add_input("input_ids", {OPGRAFT_INT32, {1, length}});
  position_ids_ = graph_->add_input("position_ids", {OPGRAFT_INT32, {length}});
  cache_ = zeros(dtype_, {1, config_.num_key_value_heads, rows_, config_.head_dim});
  Matrix table;
  ValueId x = kNone;
  {
    const Scope scope(*this, "embed_tokens");
    table = matrix("embedding_table", "token_embd.weight", config_.vocab_size, config_.hidden_size);
    x = rows_of(table, input_ids_);
  }
  tables();
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) x = layer(i, x);
  x = slice(x, Tensor::of({0, -1, 0}), Tensor::of({0, 0, 0}), Tensor::of({1, 1, 1}), 5, 7);
  x = norm("norm", "output_norm", x);
  graph_->outputs = {config_.tie_word_embeddings ? times(x, table) : dense("lm_head", "output", x, config_.vocab_size)};
  graph_->output_names = {"output0"};
  passes::fold_constants(*graph_, Registry::global());
  passes::merge_common(*graph_, Registry::global());
  passes::remove_dead_code(*graph_, Registry::global());
  return graph_;
}

}  // namespace

std::optional<Weights> weights_of(std::string_view name) {
  for (auto [known, weights] : {std::pair("float32", Weights::kFloat32),
                                {"bfloat16", Weights::kBfloat16},
                                {"stored", Weights::kStored},
                                {"int8", Weights::kInt8}})
    if (name == known) return weights;
  return std::nullopt;
}

std::shared_ptr<Graph> build_graph(const Checkpoint &checkpoint, Weights weights, int64_t rows) {
  return Builder(checkpoint, weights, rows).build();
}

std::shared_ptr<Graph> load(const std::filesystem::path &file, Weights weights, int64_t rows, bool plain) {
  const Checkpoint checkpoint{Gguf(file)};
  const int64_t most = checkpoint.config().max_position_embeddings;
  if (rows == 0) rows = most;
  if (rows > most) throw GgufError(fmt::format("rows must be in [1, {}], the model's context, got {}", most, rows));
  auto graph = build_graph(checkpoint, weights, rows);
  graph->user_info = text_of(checkpoint.file(), rows).user_info();
  if (!plain) passes::substitute(*graph, Registry::global(), passes::rules_of(Registry::global()));
  return graph;
}

}  // namespace opgraft::llama
