// The packed form of a constant sparse matrix, made once at plan time.
//
// Rows are cut into tasks of equal work (partition.h, greedy), columns into blocks so short that the block's rows of
// the dense operand, one strip wide, stay in the L1 cache. Within a task and a block of columns, rows are taken four at
// a time, as one of two kinds of group:
//
//   sliced  rows of about the same number of entries, sorted for it, each with columns of its own: random sparsity
//   joint   four adjacent rows over the union of their columns, what is missing being 0: each row of the dense operand
//           is loaded once for all four. It wins where entries share columns: block sparsity, rows that are nearly full
//
// (Sliced groups are the sliced ELLPACK format of Monakov et al. 2010 with Kreutzer et al.'s sorting, 2014.)
#pragma once

#include <sched.h>

#include <cstring>

#include "aot_ops/common/caches.h"
#include "aot_ops/common/partition.h"
#include "aot_ops/sparse/csr.h"

namespace opgraft::sparse {

constexpr int kGroupRows = 4;
constexpr int kStepsAhead = 8;  // whose rows of the dense operand a joint group fetches; so many lie behind the last

struct Step {  // one entry of each of the four rows; a joint group's column is k[0]
  float v[kGroupRows];
  uint16_t k[kGroupRows];  // column within the block; the block's length: a row of zeros that lies behind it
};

struct Group {
  int32_t rows[kGroupRows];  // -1: none
  int32_t steps, joint;
  int64_t at;  // first step
};

enum Strategy : int32_t { kSparse, kDense };

// At the front of the blob; the arrays follow at offsets in bytes.
struct Packed {
  Strategy strategy;
  int32_t block, blocks;                         // columns of a block, blocks
  int64_t rows, columns, nonzeros, tasks, size;  // size: bytes of the blob
  double skew;                                   // work of the largest task, in that of the mean one
  int64_t task_begin, task_rows, group_begin, groups, steps;
  template <class T> const T *at(int64_t offset) const {
    return reinterpret_cast<const T *>(reinterpret_cast<const char *>(this) + offset);
  }
};

// Costs in units of one step of a joint group; the dense product takes over where the matrix costs more than this share
// of all steps that there can be. Measured at 2048 x 2048 by 256 (README.md): with AVX-512 sliced groups reach the
// dense product's time at 58 % of random nonzeros, with AVX2 at 70 %.
constexpr double kSlicedStep = 1.5, kGroupCost = 1.5, kDenseAbove = 0.85;

inline int64_t processors() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Columns of a block. `strip_bytes`: of one row of the dense operand's strip; a block of them lies in L1. `entries`: of
// a row, in the mean. Each block reads and writes the sums of the rows, which lie in L2: where a row has few entries
// blocks are longer, until it has twelve in each, or their strip is four times L1's share (with 0.5, 1, 2, 3 and 5 % of
// 2048 x 2048 by 256 on Emerald Rapids 0.89, 0.85, 0.83, 0.87 and 0.90 of the time). Rows that share their columns read
// few rows of the strip, one after another, and fetch them ahead: a block of them is as long as half of L2.
inline int32_t block_length(int64_t strip_bytes, int64_t columns, double entries, bool shared) {
  constexpr int64_t kMost = 1 << 15;  // as Step has it
  const int64_t in_l1 = std::clamp<int64_t>(caches().l1 * 7 / 10 / strip_bytes / 16 * 16, 32, 512);
  const int64_t in_l2 = std::clamp<int64_t>(caches().l2 / 2 / strip_bytes, in_l1, kMost);
  const double filled = 12 * double(columns) / std::max(entries, 1.0);
  const int64_t length = shared ? in_l2 : std::clamp(int64_t(std::min(filled, 1e6)) / 16 * 16, in_l1, 4 * in_l1);
  const int64_t blocks = std::max<int64_t>(1, (columns + length - 1) / length);
  return int32_t(std::max<int64_t>(1, (columns + blocks - 1) / blocks));
}

// Whether over all rows joint groups are the cheaper ones.
inline bool shares_columns(const Csr &m) {
  std::vector<int64_t> seen(size_t(m.columns_count), -1);
  int64_t joint = 0;
  for (int64_t r = 0; r < m.rows; ++r)
    for (int64_t i = m.begin[size_t(r)]; i < m.begin[size_t(r) + 1]; ++i) {
      int64_t &last = seen[size_t(m.columns[size_t(i)])];
      joint += last != r / kGroupRows;
      last = r / kGroupRows;
    }
  return double(joint) < kSlicedStep / kGroupRows * double(m.nonzeros());
}

// Decides what the packed form of a tidy matrix looks like, then writes it.
class Packer {
 public:
  Packer(const Csr &m, int32_t block, bool may_be_dense)
      : m_(m), block_(block), blocks_((m.columns_count + block - 1) / block) {
    const int64_t quads = (m.rows + kGroupRows - 1) / kGroupRows;
    joint_.resize(size_t(quads * blocks_));
    work_.resize(size_t(quads));
    std::vector<int64_t> seen(size_t(m.columns_count), -1);
    std::vector<int64_t> entries(static_cast<size_t>(blocks_)), together(static_cast<size_t>(blocks_));
    for (int64_t q = 0; q < quads; ++q) {
      std::fill(entries.begin(), entries.end(), 0);
      std::fill(together.begin(), together.end(), 0);
      for (int64_t r = q * kGroupRows; r < std::min(m.rows, (q + 1) * kGroupRows); ++r)
        for (int64_t i = m.begin[size_t(r)]; i < m.begin[size_t(r) + 1]; ++i) {
          const int32_t k = m.columns[size_t(i)];
          ++entries[size_t(k / block_)];
          together[size_t(k / block_)] += seen[size_t(k)] != q;
          seen[size_t(k)] = q;
        }
      for (int64_t b = 0; b < blocks_; ++b) {
        const double sliced = kSlicedStep / kGroupRows * double(entries[size_t(b)]),
                     joint = double(together[size_t(b)]);
        joint_[size_t(q * blocks_ + b)] = joint < sliced;
        if (joint < sliced) joint_steps_ += together[size_t(b)];
        if (entries[size_t(b)]) work_[size_t(q)] += std::min(joint, sliced) + kGroupCost;
      }
      cost_ += work_[size_t(q)];
    }
    strategy_ = may_be_dense && cost_ > kDenseAbove * double(quads) * double(m.columns_count) ? kDense : kSparse;
    tasks_ = partition::task_count(m.rows, processors());  // each reads the dense operand once
  }

  Strategy strategy() const { return strategy_; }
  // Room for the worst padding: each (task, block) has at most one group that is not full, and sorting lets the lengths
  // of the others add up to a quarter of the entries and one longest row.
  uint64_t bytes() const {
    if (strategy_ == kDense) return (sizeof(Packed) + 63) / 64 * 64;
    const int64_t cells = tasks_ * blocks_;
    const uint64_t groups = uint64_t((m_.rows * blocks_) / kGroupRows + cells + joint_rows());
    const uint64_t steps = uint64_t(joint_steps_ + m_.nonzeros() / kGroupRows + cells * block_ + kStepsAhead);
    const uint64_t all = sizeof(Packed) + 8 * uint64_t(tasks_ + 1 + cells + 1) + 4 * uint64_t(m_.rows) +
                         groups * sizeof(Group) + steps * sizeof(Step) + 5 * 64;
    return (all + 63) / 64 * 64;
  }

  void write(void *blob) const {
    Packed p{};
    p.strategy = strategy_;
    p.block = block_;
    p.blocks = int32_t(blocks_);
    p.rows = m_.rows;
    p.columns = m_.columns_count;
    p.nonzeros = m_.nonzeros();
    p.tasks = tasks_;
    p.size = int64_t(bytes());
    p.skew = 1.0;
    if (strategy_ == kSparse) write_groups(p, static_cast<char *>(blob));
    std::memcpy(blob, &p, sizeof p);
  }

 private:
  int64_t joint_rows() const { return int64_t(joint_.size()); }

  void write_groups(Packed &p, char *blob) const {
    int64_t end = sizeof(Packed);
    auto room = [&](int64_t bytes) {
      const int64_t at = (end + 63) / 64 * 64;
      end = at + bytes;
      return at;
    };
    const partition::Parts tasks = partition::largest_first(partition::greedy(work_, tasks_), work_);
    double largest = 0;
    for (int64_t q : tasks[0]) largest += work_[size_t(q)];
    p.skew = cost_ == 0 ? 1.0 : std::max(1.0, largest * double(tasks_) / cost_);
    p.task_begin = room(8 * (tasks_ + 1));
    p.task_rows = room(4 * m_.rows);
    p.group_begin = room(8 * (tasks_ * blocks_ + 1));
    std::vector<Group> groups;
    std::vector<int64_t> at(m_.begin.begin(), m_.begin.end() - 1);  // the next entry of each row
    auto *task_begin = reinterpret_cast<int64_t *>(blob + p.task_begin);
    auto *group_begin = reinterpret_cast<int64_t *>(blob + p.group_begin);
    auto *rows = reinterpret_cast<int32_t *>(blob + p.task_rows);
    int64_t written = 0, steps = 0;
    std::vector<Cell> cells;
    for (int64_t t = 0; t < tasks_; ++t) {
      task_begin[t] = written;
      for (int64_t q : tasks[t])
        for (int64_t r = q * kGroupRows; r < std::min(m_.rows, (q + 1) * kGroupRows); ++r) rows[written++] = int32_t(r);
      for (int64_t b = 0; b < blocks_; ++b) {
        group_begin[t * blocks_ + b] = int64_t(groups.size());
        plan_cell(tasks[t], b, at, cells, groups, steps);
      }
    }
    task_begin[tasks_] = written;
    group_begin[tasks_ * blocks_] = int64_t(groups.size());
    p.groups = room(int64_t(groups.size() * sizeof(Group)));
    p.steps = room((steps + kStepsAhead) * int64_t(sizeof(Step)));
    if (!groups.empty()) std::memcpy(blob + p.groups, groups.data(), groups.size() * sizeof(Group));
    auto *to = reinterpret_cast<Step *>(blob + p.steps);
    std::memset(static_cast<void *>(to + steps), 0, kStepsAhead * sizeof(Step));
    for (size_t g = 0; g < groups.size(); ++g) fill(groups[g], cells.data() + g * kGroupRows, to + groups[g].at);
  }

  // The entries [begin, end) of a row in one block.
  struct Cell {
    int64_t begin, end;
  };

  // Adds the groups of one task and block, with four cells each.
  void plan_cell(std::span<const int64_t> quads, int64_t b, std::vector<int64_t> &at, std::vector<Cell> &cells,
                 std::vector<Group> &groups, int64_t &steps) const {
    const int64_t stop = std::min((b + 1) * block_, m_.columns_count);
    auto take = [&](int64_t r) {
      Cell c{at[size_t(r)], at[size_t(r)]};
      while (c.end < m_.begin[size_t(r) + 1] && m_.columns[size_t(c.end)] < stop) ++c.end;
      at[size_t(r)] = c.end;
      return c;
    };
    std::vector<std::pair<int32_t, Cell>> loose;
    for (int64_t q : quads) {
      const int64_t first = q * kGroupRows, count = std::min<int64_t>(kGroupRows, m_.rows - first);
      if (!joint_[size_t(q * blocks_ + b)]) {
        for (int64_t r = first; r < first + count; ++r)
          if (const Cell c = take(r); c.begin < c.end) loose.emplace_back(int32_t(r), c);
        continue;
      }
      Group g{{-1, -1, -1, -1}, 0, 1, steps};
      std::vector<int32_t> columns;
      for (int64_t r = 0; r < kGroupRows; ++r) {
        const Cell c = r < count ? take(first + r) : Cell{0, 0};
        if (r < count) g.rows[r] = int32_t(first + r);
        cells.push_back(c);
        columns.insert(columns.end(), m_.columns.begin() + c.begin, m_.columns.begin() + c.end);
      }
      std::sort(columns.begin(), columns.end());
      g.steps = int32_t(std::unique(columns.begin(), columns.end()) - columns.begin());
      steps += g.steps;
      groups.push_back(g);
    }
    std::stable_sort(loose.begin(), loose.end(),
                     [](auto &x, auto &y) { return x.second.end - x.second.begin > y.second.end - y.second.begin; });
    for (size_t i = 0; i < loose.size(); i += kGroupRows) {
      Group g{{-1, -1, -1, -1}, int32_t(loose[i].second.end - loose[i].second.begin), 0, steps};
      for (size_t r = 0; r < kGroupRows; ++r) {
        const bool there = i + r < loose.size();
        if (there) g.rows[r] = loose[i + r].first;
        cells.push_back(there ? loose[i + r].second : Cell{0, 0});
      }
      steps += g.steps;
      groups.push_back(g);
    }
  }

  void fill(const Group &g, const Cell *cells, Step *to) const {
    const auto column = [&](int64_t i) { return uint16_t(m_.columns[size_t(i)] % block_); };
    if (!g.joint) {
      for (int32_t s = 0; s < g.steps; ++s)
        for (int r = 0; r < kGroupRows; ++r) {
          const int64_t i = cells[r].begin + s;
          to[s].v[r] = i < cells[r].end ? m_.values[size_t(i)] : 0.0f;
          to[s].k[r] = i < cells[r].end ? column(i) : uint16_t(block_);
        }
      return;
    }
    int64_t at[kGroupRows];
    for (int r = 0; r < kGroupRows; ++r) at[r] = cells[r].begin;
    for (int32_t s = 0; s < g.steps; ++s) {
      uint16_t next = UINT16_MAX;
      for (int r = 0; r < kGroupRows; ++r)
        if (at[r] < cells[r].end) next = std::min(next, column(at[r]));
      for (int r = 0; r < kGroupRows; ++r) {
        const bool here = at[r] < cells[r].end && column(at[r]) == next;
        to[s].v[r] = here ? m_.values[size_t(at[r]++)] : 0.0f;
        to[s].k[r] = next;
      }
    }
  }

  const Csr &m_;
  int32_t block_;
  int64_t blocks_, tasks_ = 1, joint_steps_ = 0;
  double cost_ = 0;
  Strategy strategy_ = kSparse;
  std::vector<uint8_t> joint_;  // per four rows and block
  std::vector<double> work_;    // of four rows
};

}  // namespace opgraft::sparse
