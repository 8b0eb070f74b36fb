// The partition of work (aot_ops/common/partition.h, as the kernels use it) on any number of cores: what share of the
// cores' time is used until the last one is done.
#pragma once

#include <cmath>
#include <random>

#include "aot_ops/common/partition.h"

namespace opgraft::partition {

// A chunk that is handed out costs this much beside its work, in nonzeros: the row of 256 elements that a nonzero is
// multiplied with takes about 10 ns (kHandOverTime: 40).
constexpr double kHandOver = 4;
constexpr double kLeast = kHandOvers * kHandOver;  // of a chunk

// Columns of the dense operand, in vectors of 16: what rows can be cut across by; and vectors of a strip of the packed
// kernel (aot_ops/sparse/spmm.cc), of which a unit takes 4 at most.
constexpr int64_t kVectors = 16, kStrip = 4, kStripsAtOnce = 4, kQuad = 4;

// Work of the rows of a 2048 x 2048 matrix, in nonzeros, by Zipf's law: a row's is 2048 / rank^0.57, and ranks are
// shuffled. The fullest row is a 59th part of all: no cut by rows can use more than 93 % of 64 cores.
constexpr uint64_t kZipfSeeds = 8;
inline std::vector<double> zipf_rows(uint64_t seed) {
  std::vector<double> work(2048);
  for (size_t r = 0; r < work.size(); ++r) work[r] = std::floor(2048 * std::pow(double(r + 1), -0.57));
  std::mt19937_64 random(seed);  // std::shuffle differs between libraries
  for (size_t i = work.size(); i > 1; --i) std::swap(work[i - 1], work[random() % i]);
  return work;
}

// Busy share of `cores` until the last is done, when each has its part from the start.
inline double utilisation(const Parts &parts, std::span<const double> work) {
  double total = 0, most = 0;
  for (int64_t p = 0; p < parts.size(); ++p) {
    double load = 0;
    for (int64_t item : parts[p]) load += work[size_t(item)];
    total += load;
    most = std::max(most, load);
  }
  return most == 0 ? 1.0 : total / (double(parts.size()) * most);
}

// The same when whoever is free takes the next chunk.
inline double utilisation(const std::vector<Chunk> &chunks, std::span<const double> work, int64_t cores) {
  std::priority_queue<double, std::vector<double>, std::greater<>> free;
  for (int64_t p = 0; p < cores; ++p) free.push(0.0);
  double total = 0, last = 0;
  for (const Chunk &chunk : chunks) {
    double load = 0;
    for (int64_t item = chunk.begin; item < chunk.end; ++item) load += work[size_t(item)] / double(chunk.parts);
    const double done = free.top() + load + kHandOver;
    free.pop();
    free.push(done);
    total += load;
    last = std::max(last, done);
  }
  return last == 0 ? 1.0 : total / (double(cores) * last);
}

// The packed kernel's units: rows by four in tasks, the largest task first, each by so many columns that there are
// enough for all cores; whoever is free takes the next one.
inline double packed_utilisation(std::span<const double> rows, int64_t cores) {
  std::vector<double> quads((rows.size() + kQuad - 1) / kQuad);
  for (size_t r = 0; r < rows.size(); ++r) quads[r / kQuad] += rows[r];
  const int64_t count = task_count(int64_t(rows.size()), cores);
  const Parts tasks = largest_first(greedy(quads, count), quads);
  std::vector<double> loads;
  for (int64_t t = 0; t < count; ++t) {
    loads.push_back(0.0);
    for (int64_t q : tasks[t]) loads.back() += quads[size_t(q)];
  }
  const double total = std::accumulate(loads.begin(), loads.end(), 0.0);
  if (total == 0) return 1.0;
  const double skew = loads[0] * double(count) / total;
  const int64_t parts = kVectors / columns_at_once(count, skew, kVectors, cores, kStrip * kStripsAtOnce, kStrip);
  std::vector<Chunk> units;
  for (int64_t t = 0; t < count; ++t)
    for (int64_t p = 0; p < parts; ++p) units.push_back({t, t + 1, p, parts});
  return utilisation(units, loads, cores);
}

// `limit`: what no cut by rows can exceed, because of the fullest one. `greedy` cuts by rows alone; `adaptive`, as the
// kernel of plain CSR arrays does, and `packed` by the dense operand's 256 columns as well.
struct Utilisation {
  double even = 0, greedy = 0, adaptive = 0, packed = 0, limit = 0;
};
inline Utilisation simulate(std::span<const double> work, int64_t cores) {
  std::vector<double> before(work.size() + 1);
  std::partial_sum(work.begin(), work.end(), before.begin() + 1);
  const auto chunks = adaptive(
      int64_t(work.size()), cores, kLeast, [&](int64_t i) { return before[size_t(i)]; }, kVectors);
  const double most = work.empty() ? 0.0 : *std::max_element(work.begin(), work.end());
  return {utilisation(even(int64_t(work.size()), cores), work), utilisation(greedy(work, cores), work),
          utilisation(chunks, work, cores), packed_utilisation(work, cores),
          std::min(1.0, most == 0 ? 1.0 : before.back() / (double(cores) * most))};
}

}  // namespace opgraft::partition
