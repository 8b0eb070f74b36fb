// The driver of the sparse products: strips of columns, tiles of the dense operand, tasks over the threads.
#include "aot_ops/sparse/spmm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "spmm.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/product-inl.h"
#include "aot_ops/common/skinny-inl.h"
#include "aot_ops/sparse/spmm-inl.h"
// clang-format on

#if HWY_ONCE
#include "aot_ops/common/product-host.h"
#include "aot_ops/common/scratch.h"
#include "aot_ops/sparse/dense.h"

namespace opgraft {
OPGRAFT_SIMD(StripWidth)
OPGRAFT_SIMD(SpmmLanes)
OPGRAFT_SIMD(Groups)
OPGRAFT_SIMD_FLOATS(Tile)
OPGRAFT_SIMD_FLOATS(StoreRow)
OPGRAFT_SIMD_FLOATS(StoreColumns)
OPGRAFT_SIMD_FLOATS(BiasAndActivation)
OPGRAFT_SIMD_FLOATS(DirectRow)
OPGRAFT_SIMD_FLOATS(RowDot)
OPGRAFT_SIMD_FLOATS(Finite)
}  // namespace opgraft

namespace opgraft::sparse {
namespace {

constexpr double kStepsPerMicrosecond = 300;  // about, of packed groups, four vectors wide

// Strips of the columns, four vectors wide or less: whole ones, and as many vectors as it takes for the rest.
struct Strips {
  int64_t width, columns, count, padded;  // columns, and what the strips hold together
  Strips(int64_t columns_, int64_t width_) : width(width_), columns(columns_) {
    const int64_t lanes = SpmmLanes_simd()();
    count = (columns + width - 1) / width;
    padded = (columns + lanes - 1) / lanes * lanes;
  }
  int64_t begin(int64_t s) const { return s * width; }
  int64_t width_of(int64_t s) const { return std::min(width, padded - s * width); }
  int64_t end(int64_t s) const { return std::min(columns, begin(s) + width); }
};

// What a call needs beside its operands, in floats: all tiles of D; sums of all rows, and a row a thread for the rows
// that a group lacks.
struct Layout {
  Strips strips;
  int64_t block, blocks, rows;
  Layout(const Product &p, int64_t block_, int64_t threads, int64_t width)
      : strips(p.columns, width), block(block_), blocks((p.inner + block_ - 1) / block_), rows(p.rows + threads) {}
  int64_t tile(int64_t s, int64_t b) const { return (strips.begin(s) * blocks + b * strips.width_of(s)) * (block + 1); }
  int64_t tiles() const { return strips.padded * blocks * (block + 1); }
  int64_t sums(int64_t s) const { return strips.begin(s) * rows; }
  int64_t all_sums() const { return strips.padded * rows; }
};

// Units of work: a task and some of the strips. Task by task, so that S passes once; or, where every thread gets strips
// of its own and all fits L3, strips by strips, those of D that the thread has packed: what another core has written
// comes slowly (0.81 to 1.01 of the time, the less the larger D is beside S; but 1.06 where S has to come from memory).
struct Units {
  int64_t tasks, strips, at_once;
  bool by_strips;
  // at_once: strips of a unit, at most.
  Units(const Product &p, const Packed &s, int64_t strips_, int64_t at_once_, int64_t threads)
      : tasks(s.tasks), strips(strips_), at_once(std::clamp<int64_t>(at_once_, 1, strips_)) {
    by_strips = threads > 1 && strips >= threads && s.size + 4 * p.columns * (p.inner + p.rows) <= caches().l3;
    if (by_strips) at_once = std::min(at_once, (strips + threads - 1) / threads);
  }
  int64_t parts() const { return (strips + at_once - 1) / at_once; }
  int64_t count() const { return tasks * parts(); }
  struct Unit {
    int64_t task, first, last;  // of the strips
  };
  Unit operator[](int64_t unit) const {
    const int64_t first = (by_strips ? unit / tasks : unit % parts()) * at_once;
    return {by_strips ? unit % tasks : unit / parts(), first, std::min(first + at_once, strips)};
  }
};

int32_t block_of(int64_t inner, double entries, bool shared = false) {
  return block_length(StripWidth_simd()() * 4, inner, entries, shared);
}

// Whether the sums may lie in y: float32 by whole vectors and lines, and rows so close that those of a task do not meet
// in the same sets of L2.
bool sums_in_y(const Product &p, int64_t padded) {
  constexpr int64_t kLine = 64, kFarthest = 4096;  // bytes
  const int64_t next = p.y.row_stride * 4;
  return p.dtype == OPGRAFT_FLOAT32 && p.y.column_stride == 1 && padded == p.columns && next % kLine == 0 &&
         next <= kFarthest && reinterpret_cast<uintptr_t>(p.y.data) % kLine == 0;
}

}  // namespace

uint64_t workspace_bytes(const Product &p, int64_t threads) {
  // Narrower strips and longer blocks take no more, but for the last columns of a block.
  const Layout l(p, block_of(p.inner, double(p.inner)), threads, StripWidth_simd()());
  return 4 * uint64_t(l.strips.padded * (p.inner + 2 * l.blocks) + l.all_sums());
}

Packing::Packing(Csr &m, bool may_be_dense)
    : packer_((tidy(m), m),
              block_of(m.columns_count, double(m.nonzeros()) / double(std::max<int64_t>(m.rows, 1)), shares_columns(m)),
              may_be_dense) {}

void multiply(Context &c, const Product &p, const Packed &s) {
  if (p.rows == 0 || p.columns == 0) return;
  const int64_t threads = c.threads();
  // Units: a task and as many strips as keep its sums in L2; fewer, and narrower ones, where units are too few, or one
  // of them too large, for the threads.
  const int64_t lanes = SpmmLanes_simd()(), strip_vectors = StripWidth_simd()() / lanes;
  const int64_t vectors = partition::columns_at_once(s.tasks, s.skew, (p.columns + lanes - 1) / lanes, threads,
                                                     4 * strip_vectors, strip_vectors);
  const Layout l(p, s.block, threads, std::min(vectors, strip_vectors) * lanes);
  Scratch<float> scratch(c, size_t(l.tiles() + l.all_sums()));
  float *tiles = scratch.get(), *sums = tiles + l.tiles();
  const auto tile = Tile_simd(p.dtype);
  std::atomic<bool> finite{true};
  partition::run_shares(c, l.strips.count * l.blocks, std::max<int64_t>(1, 32768 / (l.block * l.strips.width)),
                        [&](int64_t i, int) {
                          const int64_t strip = i / l.blocks, b = i % l.blocks;
                          if (!tile(p.d, b * l.block, std::min((b + 1) * l.block, p.inner), l.strips.begin(strip),
                                    l.strips.end(strip), l.block, l.strips.width_of(strip), tiles + l.tile(strip, b)))
                            finite.store(false, std::memory_order_relaxed);
                        });
  const Units units(p, s, l.strips.count, vectors / strip_vectors, threads);
  const double steps = double(s.nonzeros) / kGroupRows / double(s.tasks) * double(units.at_once);
  const auto groups = Groups_simd();
  const auto store = StoreRow_simd(p.dtype);
  const int64_t element = int64_t(dtype_size(p.dtype));
  // A line of y that is transposed holds rows of several tasks: all are turned together, when they are done. What
  // follows the product is added then.
  const bool turned = p.y.column_stride != 1 || p.follows(), in_y = !turned && sums_in_y(p, l.strips.padded);
  const auto *task_begin = s.at<int64_t>(s.task_begin), *group_begin = s.at<int64_t>(s.group_begin);
  const auto *task_rows = s.at<int32_t>(s.task_rows);
  const auto *all = s.at<Group>(s.groups);
  const auto to_y = [&](int64_t row, int64_t column) {
    return static_cast<char *>(const_cast<void *>(p.y.data)) +
           (row * p.y.row_stride + column * p.y.column_stride) * element;
  };
  const auto run = [&](int64_t unit, int worker) {
    const auto [t, first, last] = units[unit];
    const int32_t *rows = task_rows + task_begin[t], *rows_end = task_rows + task_begin[t + 1];
    // Of a strip: the sums of row 0, how far apart the rows' are, and those of what has no row, where what memory
    // held could slow them down.
    const auto sums_of = [&](int64_t strip) {
      float *of = sums + l.sums(strip), *none = of + (p.rows + worker) * l.strips.width_of(strip);
      if (!in_y) return std::tuple(of, l.strips.width_of(strip), none);
      return std::tuple(reinterpret_cast<float *>(to_y(0, l.strips.begin(strip))), p.y.row_stride, none);
    };
    for (int64_t strip = first; strip < last; ++strip) {
      const auto [y, ldy, none] = sums_of(strip);
      const auto clear = [&](float *row) { std::memset(row, 0, size_t(l.strips.width_of(strip)) * 4); };
      for (const int32_t *r = rows; r < rows_end; ++r) clear(y + *r * ldy);
      clear(none);
    }
    for (int64_t b = 0; b < l.blocks; ++b) {
      const int64_t g = group_begin[t * l.blocks + b], count = group_begin[t * l.blocks + b + 1] - g;
      for (int64_t strip = first; strip < last; ++strip) {
        const auto [y, ldy, none] = sums_of(strip);
        groups(all + g, count, s.at<Step>(s.steps), tiles + l.tile(strip, b), l.strips.width_of(strip), y, ldy, none,
               finite.load(std::memory_order_relaxed));
      }
    }
    for (int64_t strip = first; strip < last && !turned && !in_y; ++strip) {
      const int64_t begin = l.strips.begin(strip);
      for (const int32_t *r = rows; r < rows_end; ++r)
        store(sums + l.sums(strip) + *r * l.strips.width_of(strip), l.strips.end(strip) - begin, to_y(*r, begin), 1);
    }
  };
  partition::run_shares(c, units.count(),
                        std::max<int64_t>(1, int64_t(10 * kStepsPerMicrosecond / std::max(steps, 1.0))), run,
                        uint64_t(s.nonzeros) * uint64_t(s.block));  // blocks are longer where rows share their columns
  if (!turned) return;
  const int64_t blocks = (p.rows + kStoreRows - 1) / kStoreRows;
  c.parallel_for(l.strips.count * blocks, std::max<int64_t>(1, 16384 / (kStoreRows * l.strips.width)),
                 [&](int64_t from, int64_t to) {
                   for (int64_t i = from; i < to; ++i) {
                     const int64_t strip = i / blocks, row = i % blocks * kStoreRows, width = l.strips.width_of(strip);
                     StoreColumns_simd(p.dtype)(
                         sums + l.sums(strip) + row * width, width, std::min(kStoreRows, p.rows - row),
                         l.strips.end(strip) - l.strips.begin(strip), to_y(row, l.strips.begin(strip)),
                         p.y.column_stride, p.bias_of(row), p.activation);
                   }
                 });
}

namespace {

// Rows of a matrix one after another, copied where its elements do not lie so.
class Rows {
 public:
  Rows(Context &c, int32_t dtype, const MatrixRef &m, int64_t rows, int64_t columns)
      : data_(static_cast<const char *>(m.data)), bytes_(int64_t(dtype_size(dtype))), stride_(m.row_stride) {
    if (m.column_stride == 1 || columns <= 1) return;
    copy_.resize(size_t(rows * columns * bytes_));
    dispatch<float, float16, bfloat16>(c, dtype, [&](auto zero) {
      using T = decltype(zero);
      const T *from = static_cast<const T *>(m.data);
      T *to = reinterpret_cast<T *>(copy_.data());
      c.parallel_for(rows, std::max<int64_t>(1, 8192 / columns), [&](int64_t b, int64_t e) {
        for (int64_t j = 0; j < columns; ++j)
          for (int64_t r = b; r < e; ++r) to[r * columns + j] = from[r * m.row_stride + j * m.column_stride];
      });
    });
    data_ = copy_.data();
    stride_ = columns;
  }
  const char *row(int64_t r) const { return data_ + r * stride_ * bytes_; }
  int64_t stride() const { return stride_; }

 private:
  std::vector<char> copy_;
  const char *data_;
  int64_t bytes_, stride_;
};

}  // namespace

template <class I> void multiply(Context &c, const Product &p, const CsrView<I> &s) {
  if (p.rows == 0 || p.columns == 0) return;
  const int64_t element = int64_t(dtype_size(p.dtype)), threads = c.threads();
  const int64_t width = (p.columns + 15) / 16 * 16;
  const Rows d(c, p.dtype, p.d, p.inner, p.columns);
  const Scratch<float> sums(c, size_t(threads * width));  // by lines: a row's vectors begin them
  const auto row = DirectRow_simd(p.dtype);
  const auto store = StoreRow_simd(p.dtype);
  const auto follow = BiasAndActivation_simd(p.dtype);
  // Chunks of rows of about the same work: an entry costs its row of D, a row its result. 8 us are worth a thread.
  const auto before = [&](int64_t r) { return double(s.begin[r]) + 2.0 * double(r); };
  const double second = 25e9 / double(p.columns + 16);  // entries of one thread
  const int64_t lanes = SpmmLanes_simd()(), vectors = (p.columns + lanes - 1) / lanes;
  using namespace partition;
  const auto chunks = before(p.rows) <= 8e-6 * second
                          ? std::vector<Chunk>{{0, p.rows}}
                          : adaptive(p.rows, threads, kHandOvers * kHandOverTime * second, before, vectors);
  partition::run(c, chunks, [&](const partition::Chunk &chunk, int worker) {
    float *y = sums.get() + worker * width;
    const int64_t from = vectors * chunk.part / chunk.parts * lanes,
                  to = std::min(vectors * (chunk.part + 1) / chunk.parts * lanes, p.columns);
    for (int64_t r = chunk.begin; r < chunk.end; ++r) {
      const int64_t first = int64_t(s.begin[r]), entries = int64_t(s.begin[r + 1]) - first;
      row(s.columns + first, sizeof(I) == 8, static_cast<const char *>(s.values) + first * element, entries,
          d.row(0) + from * element, d.stride(), to - from, y);
      if (p.follows()) follow(y, to - from, p.bias_of(r), p.activation);
      store(
          y, to - from,
          static_cast<char *>(const_cast<void *>(p.y.data)) + (r * p.y.row_stride + from * p.y.column_stride) * element,
          p.y.column_stride);
    }
  });
}
template void multiply(Context &, const Product &, const CsrView<int32_t> &);
template void multiply(Context &, const Product &, const CsrView<int64_t> &);

void multiply(Context &c, const Product &p, const Csr &s) {
  dispatch<float, float16, bfloat16>(c, p.dtype, [&](auto zero) {
    using T = decltype(zero);
    std::vector<T> values(s.values.begin(), s.values.end());
    std::vector<int64_t> columns(s.columns.begin(), s.columns.end());
    multiply(c, p, CsrView<int64_t>{s.begin.data(), columns.data(), values.data()});
  });
}

void reference(const Context &c, const Product &p, const Csr &s) {
  dispatch<float, float16, bfloat16>(c, p.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *d = static_cast<const T *>(p.d.data);
    T *y = static_cast<T *>(const_cast<void *>(p.y.data));
    const T *bias = static_cast<const T *>(p.bias);
    for (int64_t r = 0; r < p.rows; ++r)
      for (int64_t j = 0; j < p.columns; ++j) {
        double sum = 0;
        for (int64_t i = s.begin[size_t(r)]; i < s.begin[size_t(r) + 1]; ++i)
          if (const double v = s.values[size_t(i)]; v != 0)
            sum += v * double(float(d[s.columns[size_t(i)] * p.d.row_stride + j * p.d.column_stride]));
        if (bias) sum += double(float(bias[r]));
        y[r * p.y.row_stride + j * p.y.column_stride] = T(float(activate(p.activation, sum)));
      }
  });
}

void sampled_product(Context &c, const Product &p, const MatrixRef &dy, const MatrixRef &s, const MatrixRef &ds) {
  const Rows of_d(c, p.dtype, p.d, p.inner, p.columns), of_dy(c, p.dtype, dy, p.rows, p.columns);
  const auto dot = RowDot_simd(p.dtype);
  dispatch<float, float16, bfloat16>(c, p.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *from = static_cast<const T *>(s.data);
    T *to = static_cast<T *>(const_cast<void *>(ds.data));
    c.parallel_for(p.rows, std::max<int64_t>(1, 65536 / std::max<int64_t>(p.inner, 1)), [&](int64_t b, int64_t e) {
      for (int64_t r = b; r < e; ++r)
        for (int64_t k = 0; k < p.inner; ++k) {
          const int64_t at = r * s.row_stride + k * s.column_stride;
          to[at] = float(from[at]) == 0.0f ? T(0.0f) : T(dot(of_dy.row(r), of_d.row(k), p.columns));
        }
    });
  });
}

void sampled_entries(Context &c, const Product &p, const MatrixRef &dy, const int32_t *rows, const int32_t *columns,
                     int64_t count, void *ds) {
  const Rows of_d(c, p.dtype, p.d, p.inner, p.columns), of_dy(c, p.dtype, dy, p.rows, p.columns);
  const auto dot = RowDot_simd(p.dtype);
  dispatch<float, float16, bfloat16>(c, p.dtype, [&](auto zero) {
    using T = decltype(zero);
    c.parallel_for(count, 1 + 65536 / (p.columns + 16), [&](int64_t b, int64_t e) {
      for (int64_t i = b; i < e; ++i)
        static_cast<T *>(ds)[i] = T(dot(of_dy.row(rows[i]), of_d.row(columns[i]), p.columns));
    });
  });
}

bool all_finite(Context &c, int32_t dtype, const void *data, int64_t size) {
  const auto finite = Finite_simd(dtype);
  const int64_t element = int64_t(dtype_size(dtype));
  std::atomic<bool> all{true};
  c.parallel_for(size, 32768, [&](int64_t b, int64_t e) {
    if (!finite(static_cast<const char *>(data) + b * element, e - b)) all.store(false, std::memory_order_relaxed);
  });
  return all.load();
}

// The dense product, by common/product-host.h.
namespace {
GemmProblem problem(const DenseProduct &p) {
  return {p.dtype, p.m, p.n, p.k, p.a, p.b, p.c, p.packed, p.bias, nullptr, p.activation};
}
}  // namespace

void multiply_dense(Context &c, const DenseProduct &p) { run_product(c, problem(p), product_kernels(p.dtype)); }
uint64_t dense_workspace_bytes(const DenseProduct &p, bool packed) {
  return product_workspace(problem(p), product_kernels(p.dtype), packed);
}
uint64_t dense_packed_bytes(const DenseProduct &p) { return packed_bytes(problem(p), product_kernels(p.dtype)); }
void dense_pack(const DenseProduct &p, void *to) { pack_b(problem(p), product_kernels(p.dtype), to); }
}  // namespace opgraft::sparse
#endif
