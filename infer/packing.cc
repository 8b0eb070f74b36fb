#include "infer/packing.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>

#include "infer/native.h"

namespace opgraft {
namespace {

// One prepare, to be run on any thread.
struct Packing {
  const PackRequest *request;
  std::shared_ptr<void> *blob;
  uint64_t bytes;
  int status = 0;
  std::string error{};
};

// dst null: sets bytes.
int prepare(const PackRequest &r, void *dst, uint64_t *bytes) {
  opgraft_infer_args args{};
  args.struct_size = sizeof args;
  args.n_inputs = int32_t(r.inputs.size());
  args.n_attrs = int32_t(r.attrs.size());
  args.inputs = r.inputs.data();
  args.attrs = r.attrs.data();
  return r.op->native->prepare(&args, r.input, dst, bytes);
}

// The threads take one after another, the largest first, so that they end together. (parallel_for alone would hand out
// several at a time, the largest together.)
struct Queue {
  std::vector<Packing> &packings;
  std::atomic<size_t> next{0};
};

void pack(void *queue, int64_t, int64_t, int32_t) {
  auto &[packings, next] = *static_cast<Queue *>(queue);
  for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < packings.size();) {
    Packing &p = packings[i];
    p.status = prepare(*p.request, p.blob->get(), &p.bytes);
    if (p.status) p.error = last_error(*p.request->op, p.status);
    p.request->weight->rest();
  }
}

// Many weights lie together in large pages, which cost fewer faults to fill and fewer misses to read; few on their
// own, where AddressSanitizer sees a read past one's end.
void allocate_blobs(std::vector<Packing> &packings) {
  const auto padded = [](uint64_t bytes) { return (bytes + 63) / 64 * 64; };
  size_t total = 0;
  for (const Packing &p : packings) total += padded(p.bytes);
  if (total < 4 * kLargePage) {
    for (Packing &p : packings) *p.blob = allocate(p.bytes);
    return;
  }
  const std::shared_ptr<void> all = allocate(total);
  void *const base = all.get();
  size_t at = 0;
  for (Packing &p : packings) {
    *p.blob = std::shared_ptr<void>(all, static_cast<char *>(base) + at);
    at += padded(p.bytes);
  }
}

}  // namespace

bool PackedWeights::Entry::answers(const PackRequest &r) const {
  const opgraft_tensor &weight = r.inputs[size_t(r.input)];
  return op == r.op && input == r.input && attrs == r.attrs_text && dtype == weight.dtype &&
         std::ranges::equal(dims, std::span(weight.shape, size_t(weight.ndim)));
}

void PackedWeights::answer(std::vector<PackRequest> &requests) {
  Entries fresh;
  std::vector<const Entry *> entries;
  std::vector<Packing> packings;
  size_t bytes = 0;
  for (const PackRequest &r : requests) {
    const opgraft_tensor &weight = r.inputs[size_t(r.input)];
    const Entry *found = nullptr;
    for (Entries *known : {&entries_, &fresh}) {
      auto [low, high] = known->equal_range(weight.data);
      for (auto it = low; it != high && !found; ++it)
        if (it->second.answers(r)) found = &it->second;
    }
    if (!found) {
      Shape dims(weight.shape, weight.shape + weight.ndim);
      Entry &made = fresh.emplace(weight.data, Entry{r.op, r.input, r.attrs_text, weight.dtype, dims, nullptr})->second;
      Packing p{&r, &made.blob, 0};
      if (int status = prepare(r, nullptr, &p.bytes)) throw Error(status & 0xff, last_error(*r.op, status));
      bytes += p.bytes;
      if (p.bytes) packings.push_back(std::move(p));
      found = &made;
    }
    entries.push_back(found);
  }
  allocate_blobs(packings);
  std::ranges::stable_sort(packings, std::greater<>(), &Packing::bytes);
  Queue queue{packings};
  const int64_t threads = host()->threads(host()->context);
  host()->parallel_for(host()->context, std::min(threads, int64_t(packings.size())), 1, pack, &queue);
  for (const Packing &p : packings)
    if (p.status) throw Error(p.status & 0xff, p.error);
  for (size_t i = 0; i < requests.size(); ++i) requests[i].packed = entries[i]->blob.get();
  entries_.merge(fresh);
  bytes_ += bytes;
}

}  // namespace opgraft
