// Cutting items of known work (rows of a sparse matrix, say) into parts for cores.
//
//   even      as many items to every part: right when items cost the same
//   greedy    largest first, each to the least loaded part: at most 4/3 - 1/(3 parts) of the optimum (Graham 1969,
//             "Bounds on multiprocessing timing anomalies")
//   adaptive  chunks of consecutive items that shrink (guided self-scheduling, Polychronopoulos and Kuck 1987, but by
//             work, not by count), the largest first, taken by whoever is free: neighbours stay together, and a core
//             that is slow or taken away costs its share and no more
//
// An item that is too large for any such cut is cut across, as a row of a sparse matrix by the columns of the dense
// one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
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

// The same parts, the one with the most work first.
inline Parts largest_first(const Parts &parts, std::span<const double> work) {
  std::vector<double> loads(size_t(parts.size()), 0.0);
  std::vector<int64_t> order(loads.size());
  for (int64_t p = 0; p < parts.size(); ++p)
    for (int64_t item : parts[p]) loads[size_t(p)] += work[size_t(item)];
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return loads[size_t(a)] > loads[size_t(b)]; });
  Parts result;
  for (int64_t p : order) {
    result.items.insert(result.items.end(), parts[p].begin(), parts[p].end());
    result.begin.push_back(int64_t(result.items.size()));
  }
  return result;
}

// Items [begin, end), or of one item that is cut across the part `part` of `parts`.
struct Chunk {
  int64_t begin, end, part = 0, parts = 1;
};

// Handing out a chunk, an atomic addition, takes about 40 ns; one holds at least so many times what that costs.
constexpr double kHandOverTime = 40e-9, kHandOvers = 5;

// before(i): what the items before i cost together; it ascends from before(0) = 0. A chunk is a share of what is left,
// a quarter for two workers, 1 of 5/4 of their number for many (half of what each has left, as is usual, makes so many
// chunks that handing them out costs more), but at least `least` work and one item, and may be an eighth larger if it
// ends nearer to its share then. An item that is larger is cut into at most `most_parts`.
template <class WorkBefore> std::vector<Chunk> adaptive(int64_t items, int64_t workers, double least,
                                                        const WorkBefore &before, int64_t most_parts = 1) {
  std::vector<Chunk> chunks;
  const double total = items ? double(before(items)) : 0.0, shares = 1.25 * double(workers) + 1.5;
  least = std::max(least, total / double(workers) / 32);  // what is not even at the end costs no more
  for (int64_t i = 0; i < items;) {
    const double done = double(before(i)), share = std::max(least, (total - done) / shares), goal = done + share;
    // The last end at which the chunk is not yet larger than it may be, or one item's.
    int64_t low = i + 1, high = items;
    while (low < high) {
      const int64_t middle = low + (high - low + 1) / 2;
      if (double(before(middle)) <= goal) low = middle;
      else high = middle - 1;
    }
    if (low < items && double(before(low + 1)) - goal < std::min(goal - double(before(low)), share / 8)) ++low;
    const double fill = share > 0 ? (double(before(low)) - done) / share : 1.0;
    const int64_t parts =
        low == i + 1 ? std::lround(std::clamp(fill, 1.0, double(std::max<int64_t>(most_parts, 1)))) : 1;
    for (int64_t p = 0; p < parts; ++p) chunks.push_back({i, low, p, parts});
    i = low;
  }
  auto work = [&](const Chunk &c) { return (double(before(c.end)) - double(before(c.begin))) / double(c.parts); };
  std::stable_sort(chunks.begin(), chunks.end(), [&](auto &a, auto &b) { return work(a) > work(b); });
  return chunks;
}

// How many tasks items are cut into where each task has a fixed cost: of 256 items, or fewer, but not below 32, so that
// each worker gets four; as many for every worker.
inline int64_t task_count(int64_t items, int64_t workers) {
  const int64_t count = std::max((items + 255) / 256, std::min(4 * workers, (items + 31) / 32));
  return count <= 4 * workers ? count : (count + workers - 1) / workers * workers;
}

// How many of `columns` a unit of work takes, a task by some of them: `most`, or half of it, … or 1, so that there are
// 3 units of the largest task's size for every worker; 2, where less than `cheap` columns make each cost more. skew:
// the largest task's work, in that of the mean one.
inline int64_t columns_at_once(int64_t tasks, double skew, int64_t columns, int64_t workers, int64_t most,
                               int64_t cheap) {
  int64_t at_once = most;
  const auto units = [&] { return double(tasks * ((columns + at_once - 1) / at_once)) / skew; };
  while (at_once > 1 && units() < (at_once > cheap ? 3.5 : 2.0) * double(workers)) at_once /= 2;
  return at_once;
}

// Runs body(chunk, worker) for every chunk on the threads of the call; each takes the next one when it is free.
// (parallel_for alone would hand out several neighbours of the list at a time, the largest ones together.)
template <class Context, class Body> void run(Context &c, const std::vector<Chunk> &chunks, const Body &body) {
  std::atomic<size_t> next{0};
  c.parallel_for(std::min<int64_t>(c.threads(), int64_t(chunks.size())), 1, [&](int64_t, int64_t, int worker) {
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < chunks.size();) body(chunks[i], worker);
  });
}

// Runs body(i, worker) for i in [0, count) on the threads of the call; up to `grain` of them on one. A thread takes the
// i of a share of its own, the same one in every such loop of as many, so that what it wrote is in its core's cache
// when it comes again; then what is left of the others' shares, one by one. amount: as parallel_for has it.
template <class Context, class Body>
void run_shares(Context &c, int64_t count, int64_t grain, const Body &body, uint64_t amount = 0) {
  constexpr int64_t kMost = 64;
  const int64_t shares = count <= grain ? 1 : std::clamp<int64_t>(c.threads(), 1, kMost);
  struct alignas(64) Next {
    std::atomic<int64_t> i;
  } next[kMost];
  for (int64_t s = 0; s < shares; ++s) next[s].i.store(s * count / shares, std::memory_order_relaxed);
  const auto work = [&](int64_t, int64_t, int worker) {
    for (int64_t s = 0; s < shares; ++s) {
      const int64_t share = (worker + s) % shares, end = (share + 1) * count / shares;
      for (int64_t i; (i = next[share].i.fetch_add(1, std::memory_order_relaxed)) < end;) body(i, worker);
    }
  };
  c.parallel_for(shares, 1, work, amount);
}

}  // namespace opgraft::partition
