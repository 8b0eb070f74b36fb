#include "infer/mindir_views.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace opgraft::mindir {
namespace {

constexpr int64_t kMostOutputs = 64;                 // of one node
constexpr size_t kPartCost = 12;                     // of the file's budget of nodes: a part has constants, too
constexpr int64_t kMostElements = int64_t(1) << 40;  // of a part: sums stay in int64

class View {
 public:
  View(const std::string &name, const std::vector<size_t> &operands, Items &items, Graph &graph,
       const Registry &registry, size_t &budget)
      : name_(name), operands_(operands), items_(items), graph_(graph), registry_(registry), budget_(budget) {}

  void takes(size_t n) const {
    if (operands_.size() != n) refuse(fmt::format("takes {} operands, got {}", n, operands_.size()));
  }
  ValueId x() {
    const ValueId v = items_.value_of(operands_[0]);
    if (!graph_.value(v).type.ranked) refuse("x has no known rank");
    return v;
  }
  const Shape &dims() { return graph_.value(x()).type.dims; }
  int64_t number(size_t i) const { return std::get<int64_t>(attr(i, OPGRAFT_ATTR_INT)); }
  std::vector<int64_t> numbers(size_t i) const { return std::get<std::vector<int64_t>>(attr(i, OPGRAFT_ATTR_INTS)); }
  size_t axis(size_t i) {
    const int64_t a = number(i), rank = int64_t(dims().size());
    if (a < -rank || a >= rank) refuse(fmt::format("axis {} is outside the {} dimensions of x", a, rank));
    return size_t(a < 0 ? a + rank : a);
  }

  std::vector<ValueId> transposed(size_t a, size_t b) {
    std::vector<int64_t> perm(dims().size());
    std::iota(perm.begin(), perm.end(), int64_t(0));
    std::swap(perm[a], perm[b]);
    return node("Transpose", {x()}, {{"perm", perm}}, name_);
  }

  std::vector<ValueId> narrowed(size_t at, int64_t begin, int64_t size, const std::string &name) {
    std::vector<int64_t> from(dims().size(), 0), length(dims().size(), -1);
    from[at] = begin, length[at] = size;
    return node("Slice", {x(), constant(from), constant(length)}, {}, name);
  }

  // Equal parts are Split's where it is known that they are.
  std::vector<ValueId> parts(size_t at, const std::vector<int64_t> &sizes) {
    const int64_t total = dims()[at], n = int64_t(sizes.size());
    spend(sizes.size());
    if (std::ranges::any_of(sizes, [](int64_t s) { return s < 0 || s > kMostElements; }))
      refuse("sizes of parts must be at least 0, and at most 2^40");
    if (total >= 0 && std::accumulate(sizes.begin(), sizes.end(), int64_t(0)) != total)
      refuse(fmt::format("the parts must add up to {}, dimension {} of x", total, at));
    const bool equal = n > 0 && std::ranges::all_of(sizes, [&](int64_t s) { return s == sizes[0]; });
    if (total >= 0 && equal && n <= kMostOutputs)
      return node("Split", {x()}, {{"axis", int64_t(at)}, {"output_num", n}}, name_);
    std::vector<ValueId> out;
    int64_t begin = 0;
    for (int64_t s : sizes) {
      out.push_back(narrowed(at, begin, s, fmt::format("{}.{}", name_, out.size())).at(0));
      begin += s;
    }
    return out;
  }

  // As many parts of this size as there are, and the rest.
  std::vector<ValueId> parts_of(size_t at, int64_t size) {
    const int64_t total = dims()[at];
    if (total < 0) refuse(fmt::format("dimension {} of x is open, so the number of parts is not known", at));
    if (size < 1) refuse(fmt::format("parts must have a size of at least 1, got {}", size));
    if (total / size >= int64_t(budget_ / kPartCost)) refuse(fmt::format("{} parts are too many", total / size));
    std::vector<int64_t> sizes(size_t(total / size), size);
    if (total % size || total == 0) sizes.push_back(total % size);
    return parts(at, sizes);
  }

 private:
  AttrValue attr(size_t i, int32_t kind) const {
    Literal l;
    AttrValue v;
    if (!items_.literal_of(operands_[i], l) || !to_attr(l, kind, v))
      refuse(fmt::format("operand {} must be a constant {}", i, kind == OPGRAFT_ATTR_INT ? "int" : "tuple of int"));
    return v;
  }
  void spend(size_t parts) {
    if (parts > budget_ / kPartCost) refuse(fmt::format("{} parts are too many", parts));
    budget_ -= parts * kPartCost;
  }
  ValueId constant(const std::vector<int64_t> &values) {
    Tensor t(OPGRAFT_INT64, {int64_t(values.size())});
    std::copy(values.begin(), values.end(), t.data<int64_t>());
    return graph_.add_constant(std::move(t));
  }
  std::vector<ValueId> node(const std::string &op, const std::vector<ValueId> &in, const Attrs &attrs,
                            const std::string &name) {
    return graph_.node(graph_.add_node(registry_, op, in, attrs, name)).outputs;
  }

  const std::string &name_;
  const std::vector<size_t> &operands_;
  Items &items_;
  Graph &graph_;
  const Registry &registry_;
  size_t &budget_;
};

}  // namespace

bool gives_parts(const std::string &op) { return op == "SplitTensorView" || op == "SplitWithSizeView"; }
bool is_view(const std::string &op) { return gives_parts(op) || op == "TransposeExtView" || op == "NarrowView"; }

std::vector<ValueId> add_view(const std::string &op, const std::string &name, const std::vector<size_t> &operands,
                              Items &items, Graph &graph, const Registry &registry, size_t &budget) {
  View v(name, operands, items, graph, registry, budget);
  v.takes(op == "NarrowView" ? 4 : 3);
  if (op == "TransposeExtView") return v.transposed(v.axis(1), v.axis(2));
  if (op == "SplitTensorView") return v.parts_of(v.axis(2), v.number(1));
  if (op == "SplitWithSizeView") return v.parts(v.axis(2), v.numbers(1));
  if (v.number(3) < 0) refuse(fmt::format("length must be at least 0, got {}", v.number(3)));
  return v.narrowed(v.axis(1), v.number(2), v.number(3), name);
}

}  // namespace opgraft::mindir
