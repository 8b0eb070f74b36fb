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
  View(Form &form, size_t &budget) : form_(form), budget_(budget) {}

  ValueId narrowed(ValueId x, size_t at, int64_t begin, int64_t size, const std::string &name) {
    std::vector<int64_t> from(form_.dims().size(), 0), length(form_.dims().size(), -1);
    from[at] = begin, length[at] = size;
    return form_.node("Slice", {x, form_.constant(from), form_.constant(length)}, {}, name).at(0);
  }

  // Equal parts are Split's where it is known that they are. Where the dimension is open, SplitWithSize sees when the
  // model runs whether they add up to it; of too many for a node one takes all of x, for Slices of it.
  std::vector<ValueId> parts(size_t at, const std::vector<int64_t> &sizes) {
    const int64_t total = form_.dims()[at], n = int64_t(sizes.size());
    spend(sizes.size());
    if (std::ranges::any_of(sizes, [](int64_t s) { return s < 0 || s > kMostElements; }))
      refuse("sizes of parts must be at least 0, and at most 2^40");
    if (total >= 0 && std::accumulate(sizes.begin(), sizes.end(), int64_t(0)) != total)
      refuse(fmt::format("the parts must add up to {}, dimension {} of x", total, at));
    const bool equal = n > 0 && std::ranges::all_of(sizes, [&](int64_t s) { return s == sizes[0]; });
    if (total >= 0 && equal && n <= kMostOutputs)
      return form_.node("Split", {form_.x()}, {{"axis", int64_t(at)}, {"output_num", n}}, form_.name());
    const auto checked = [&](const std::vector<int64_t> &split) {
      return form_.node("SplitWithSize", {form_.x()}, {{"split_size", split}, {"dim", int64_t(at)}}, form_.name());
    };
    if (total < 0 && n > 0 && n <= kMostOutputs) return checked(sizes);
    const ValueId x = total < 0 ? checked({std::accumulate(sizes.begin(), sizes.end(), int64_t(0))}).at(0) : form_.x();
    std::vector<ValueId> out;
    int64_t begin = 0;
    for (int64_t s : sizes) {
      out.push_back(narrowed(x, at, begin, s, fmt::format("{}.{}", form_.name(), out.size())));
      begin += s;
    }
    return out;
  }

  // As many parts of this size as there are, and the rest.
  std::vector<ValueId> parts_of(size_t at, int64_t size) {
    const int64_t total = form_.dims()[at];
    if (total < 0) refuse(fmt::format("dimension {} of x is open, so the number of parts is not known", at));
    if (size < 1) refuse(fmt::format("parts must have a size of at least 1, got {}", size));
    if (total / size >= int64_t(budget_ / kPartCost)) refuse(fmt::format("{} parts are too many", total / size));
    std::vector<int64_t> sizes(size_t(total / size), size);
    if (total % size || total == 0) sizes.push_back(total % size);
    return parts(at, sizes);
  }

 private:
  void spend(size_t parts) {
    if (parts > budget_ / kPartCost) refuse(fmt::format("{} parts are too many", parts));
    budget_ -= parts * kPartCost;
  }

  Form &form_;
  size_t &budget_;
};

}  // namespace

bool gives_parts(const std::string &op) { return op == "SplitTensorView" || op == "SplitWithSizeView"; }
bool is_view(const std::string &op) { return gives_parts(op) || op == "TransposeExtView" || op == "NarrowView"; }

std::vector<ValueId> add_view(const std::string &op, Form form, size_t &budget) {
  View v(form, budget);
  const size_t operands = op == "NarrowView" ? 4 : 3;
  form.takes(operands, operands);
  if (op == "TransposeExtView") return {form.exchanged(form.x(), form.axis(1), form.axis(2))};
  if (op == "SplitTensorView") return v.parts_of(form.axis(2), form.number(1));
  if (op == "SplitWithSizeView") return v.parts(form.axis(2), form.numbers(1));
  if (form.number(3) < 0) refuse(fmt::format("length must be at least 0, got {}", form.number(3)));
  return {v.narrowed(form.x(), form.axis(1), form.number(2), form.number(3), form.name())};
}

}  // namespace opgraft::mindir
