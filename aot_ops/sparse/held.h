// What is made once, at plan time, of a constant sparse matrix that its indices give: they are checked, sorted, and
// brought into the form that is multiplied. The blob belongs to the values.
#pragma once

#include <optional>

#include "aot_ops/sparse/indexed.h"

namespace opgraft::sparse {

// At the front of the blob; what follows lies at offsets in bytes.
struct Held {
  enum Form : int32_t {
    kAsGiven,  // only checked: the caller's arrays are read
    kRows,     // as arrays by rows
    kGroups,   // packed
  } form;
  int32_t dtype;
  // It holds for a matrix of this shape made of these constants beside the values, by address.
  int64_t rows, columns;
  const void *made_of[2];
  int64_t matrix;  // Packed, or where rows begin
  int64_t columns_at, values_at;
  int64_t rows_of, columns_of;  // for gradients: where each value lies, in the order of the values
  template <class T> const T *at(int64_t offset) const {
    return reinterpret_cast<const T *>(reinterpret_cast<const char *>(this) + offset);
  }
};

// What is so sparse that most blocks of its packed form would be empty is read as it is.
inline bool worth_packing(int64_t rows, int64_t columns, int64_t nonzeros) {
  return rows > 0 && columns > 0 && columns <= 1 << 28 &&
         (rows / kGroupRows + 1) * (columns / 32 + 1) <= 8 * nonzeros + 65536;
}
// A matrix without a row or a column is left to the calls, and so is one whose shape is stated so large that its few
// values are no measure of the memory.
inline bool holdable(int64_t rows, int64_t columns, int64_t nonzeros) {
  return rows > 0 && columns > 0 && std::max(rows, columns) <= 256 * nonzeros + (1 << 22);
}
inline bool all_known(const Arguments &c, std::initializer_list<int> inputs) {
  return std::all_of(inputs.begin(), inputs.end(), [&](int i) { return c.input(i).known() && c.input(i).size() >= 0; });
}

class Holder {
 public:
  // as_given: where it is not worth packing, the caller's arrays will do.
  Holder(Csr m, int32_t dtype, bool as_given, Positions at = {}) : m_(std::move(m)), at_(std::move(at)) {
    h_.dtype = dtype;
    h_.rows = m_.rows;
    h_.columns = m_.columns_count;
    h_.form = worth_packing(m_.rows, m_.columns_count, m_.nonzeros()) ? Held::kGroups
              : as_given                                              ? Held::kAsGiven
                                                                      : Held::kRows;
    take(sizeof h_);
    const int64_t positions = 4 * int64_t(at_.rows.size());
    h_.rows_of = take(positions);
    h_.columns_of = take(positions);
    if (h_.form == Held::kRows) {
      h_.matrix = take(4 * (m_.rows + 1));
      h_.columns_at = take(4 * m_.nonzeros());
      h_.values_at = take(int64_t(dtype_size(dtype)) * m_.nonzeros());
    }
    if (h_.form != Held::kGroups) return;
    packing_.emplace(m_, false);
    h_.matrix = take(int64_t(packing_->bytes()));
  }
  Holder(const Holder &) = delete;

  // 0: it cannot be held.
  uint64_t bytes() const { return h_.form == Held::kRows && m_.nonzeros() > INT32_MAX ? 0 : uint64_t(size_); }

  void write(const Arguments &c, std::initializer_list<int> made_of, void *to) const {
    Held h = h_;
    size_t i = 0;
    for (int input : made_of) h.made_of[i++] = c.input(input).raw();
    std::memcpy(to, &h, sizeof h);
    char *const base = static_cast<char *>(to);
    std::copy(at_.rows.begin(), at_.rows.end(), reinterpret_cast<int32_t *>(base + h.rows_of));
    std::copy(at_.columns.begin(), at_.columns.end(), reinterpret_cast<int32_t *>(base + h.columns_of));
    if (h.form == Held::kGroups) packing_->write(base + h.matrix);
    if (h.form != Held::kRows) return;
    std::transform(m_.begin.begin(), m_.begin.end(), reinterpret_cast<int32_t *>(base + h.matrix),
                   [](int64_t b) { return int32_t(b); });
    std::copy(m_.columns.begin(), m_.columns.end(), reinterpret_cast<int32_t *>(base + h.columns_at));
    dispatch<float, float16, bfloat16>(c, h.dtype, [&](auto zero) {
      using T = decltype(zero);
      std::transform(m_.values.begin(), m_.values.end(), reinterpret_cast<T *>(base + h.values_at),
                     [](float v) { return T(v); });
    });
  }

 private:
  int64_t take(int64_t bytes) {
    const int64_t at = size_;
    size_ = (size_ + bytes + 63) / 64 * 64;
    return at;
  }
  Csr m_;
  Positions at_;
  Held h_{};
  int64_t size_ = 0;
  std::optional<Packing> packing_;
};

// What Holder wrote for this matrix, rows x columns, or null.
inline const Held *held_of(const Context &c, int values, int64_t rows, int64_t columns,
                           std::initializer_list<int> others) {
  const auto *h = static_cast<const Held *>(c.packed(values));
  if (!h || h->rows != rows || h->columns != columns) return nullptr;
  size_t i = 0;
  for (int other : others)
    if (h->made_of[i++] != c.input(other).raw()) return nullptr;
  return h;
}

// Not for what is held as given.
inline void multiply(Context &c, const Product &p, const Held &h) {
  if (h.form == Held::kGroups) return multiply(c, p, *h.at<Packed>(h.matrix));
  multiply(c, p, CsrView<int32_t>{h.at<int32_t>(h.matrix), h.at<int32_t>(h.columns_at), h.at<char>(h.values_at)});
}

}  // namespace opgraft::sparse
