// The partition of work (aot_ops/common/partition.h, as the kernels use it) on any number of cores: what share of the
// cores' time is used until the last one is done.
#pragma once

#include <cmath>
#include <random>

#include "aot_ops/common/partition.h"

namespace opgraft::partition {

// A chunk that is handed out costs this much beside its work, in nonzeros: an atomic addition takes about 40 ns, the
// row of 256 elements that a nonzero is multiplied with about 10.
constexpr double kHandOver = 4;

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
    for (int64_t item = chunk.begin; item < chunk.end; ++item) load += work[size_t(item)];
    const double done = free.top() + load + kHandOver;
    free.pop();
    free.push(done);
    total += load;
    last = std::max(last, done);
  }
  return last == 0 ? 1.0 : total / (double(cores) * last);
}

// `limit`: what no cut by rows can exceed, because of the fullest one. `strips`: greedy, every row in four items, one
// for each 64 of the dense operand's 256 columns; the packed kernel cuts so where rows alone do not balance.
struct Utilisation {
  double even = 0, greedy = 0, adaptive = 0, limit = 0, strips = 0;
};
inline Utilisation simulate(std::span<const double> work, int64_t cores) {
  std::vector<double> before(work.size() + 1), strips;
  std::partial_sum(work.begin(), work.end(), before.begin() + 1);
  for (double w : work) strips.insert(strips.end(), 4, w / 4);
  const auto chunks = adaptive(int64_t(work.size()), cores, 0.0, [&](int64_t i) { return before[size_t(i)]; });
  const double most = work.empty() ? 0.0 : *std::max_element(work.begin(), work.end());
  return {utilisation(even(int64_t(work.size()), cores), work), utilisation(greedy(work, cores), work),
          utilisation(chunks, work, cores), std::min(1.0, most == 0 ? 1.0 : before.back() / (double(cores) * most)),
          utilisation(greedy(strips, cores), strips)};
}

}  // namespace opgraft::partition
