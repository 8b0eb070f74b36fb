// Cutting items of known work (rows of a sparse matrix, say) into parts for cores.
//
//   even      as many items to every part: right when items cost the same
//   greedy    largest first, each to the least loaded part: at most 4/3 - 1/(3 parts) of the optimum (Graham 1969,
//             "Bounds on multiprocessing timing anomalies")
//   adaptive  chunks of consecutive items that shrink (guided self-scheduling, Polychronopoulos and Kuck 1987, but by
//             work, not by count), the largest first, taken by whoever is free: neighbours stay together, and a core
//             that is slow or taken away costs its share and no more
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <queue>
#include <span>
#include <utility>
#include <vector>

namespace opgraft::partition {

// Part p holds items[begin[p]] to items[begin[p + 1] - 1]; every item lies in exactly one part.
struct Parts {
  std::vector<int64_t> items, begin{0};
  int64_t size() const { return int64_t(begin.size()) - 1; }
  std::span<const int64_t> operator[](int64_t p) const {
    return {items.data() + begin[size_t(p)], items.data() + begin[size_t(p) + 1]};
  }
};

inline Parts even(int64_t items, int64_t parts) {
  Parts result;
  result.items.resize(size_t(items));
  std::iota(result.items.begin(), result.items.end(), 0);
  for (int64_t p = 1; p <= parts; ++p)
    result.begin.push_back(items / parts * p + std::min(p, items % parts));  // the first ones hold one more
  return result;
}

// Items of a part are in ascending order.
inline Parts greedy(std::span<const double> work, int64_t parts) {
  std::vector<int64_t> order(work.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return work[size_t(a)] > work[size_t(b)]; });
  using Load = std::pair<double, int64_t>;
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
  for (int64_t p = 0; p < parts; ++p) least.emplace(0.0, p);
  std::vector<int64_t> part(work.size());
  Parts result;
  result.begin.assign(size_t(parts) + 1, 0);
  for (int64_t item : order) {
    auto [load, p] = least.top();
    least.pop();
    least.emplace(load + work[size_t(item)], p);
    part[size_t(item)] = p;
    ++result.begin[size_t(p) + 1];
  }
  std::partial_sum(result.begin.begin(), result.begin.end(), result.begin.begin());
  result.items.resize(work.size());
  std::vector<int64_t> at(result.begin.begin(), result.begin.end() - 1);
  for (int64_t item = 0; item < int64_t(work.size()); ++item)
    result.items[size_t(at[size_t(part[size_t(item)])]++)] = item;
  return result;
}

// Items [begin, end).
struct Chunk {
  int64_t begin, end;
};

// before(i): what the items before i cost together; it ascends from before(0) = 0. A chunk is a share of what is left,
// 1 of 2 `workers`, but at least `least` work and one item.
template <class WorkBefore>
std::vector<Chunk> adaptive(int64_t items, int64_t workers, double least, const WorkBefore &before) {
  std::vector<Chunk> chunks;
  const double total = items ? double(before(items)) : 0.0;
  for (int64_t i = 0; i < items;) {
    const double done = double(before(i)), upto = done + std::max(least, (total - done) / double(2 * workers));
    // The last end at which the chunk is not yet larger than it may be.
    int64_t low = i + 1, high = items;
    while (low < high) {
      const int64_t middle = low + (high - low + 1) / 2;
      if (double(before(middle)) <= upto) low = middle;
      else high = middle - 1;
    }
    chunks.push_back({i, low});
    i = low;
  }
  auto work = [&](const Chunk &c) { return double(before(c.end)) - double(before(c.begin)); };
  std::stable_sort(chunks.begin(), chunks.end(), [&](auto &a, auto &b) { return work(a) > work(b); });
  return chunks;
}

// Runs body(begin, end, worker) for every chunk on the threads of the call; each takes the next one when it is free.
// (parallel_for alone would hand out several neighbours of the list at a time, the largest ones together.)
template <class Context, class Body> void run(Context &c, const std::vector<Chunk> &chunks, const Body &body) {
  std::atomic<size_t> next{0};
  c.parallel_for(std::min<int64_t>(c.threads(), int64_t(chunks.size())), 1, [&](int64_t, int64_t, int worker) {
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < chunks.size();)
      body(chunks[i].begin, chunks[i].end, worker);
  });
}

}  // namespace opgraft::partition
