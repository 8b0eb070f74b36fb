// Several implementations of one operator: files with the same name and version whose op.yaml differs in
// `implementation`. By default the one with the highest score serves; here one is chosen by measuring,
// and another takes over from one that fails.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "registry/registry.h"

namespace opgraft {

// What a choice holds for: dtypes and shapes of the inputs. Dimensions that round up to the same power
// of two share a choice.
struct Signature {
  std::vector<int32_t> dtypes;
  std::vector<std::vector<int64_t>> shapes;
  std::string bucket() const;
};

// The implementations of one name and version in one registry, and what was chosen among them.
class Family {
 public:
  void add(const OpPtr &op);
  // Those that are still loaded, highest score first.
  std::vector<OpPtr> members() const;
  size_t added() const { return added_.load(std::memory_order_relaxed); }

  using Measure = std::function<double(const OpPtr &)>;  // seconds of one call; throws where it cannot run
  // The fastest for this signature: measured once a process, by the first who asks, while others who ask
  // for the same signature wait; remembered until another implementation is added. Null where all throw.
  OpPtr choose(const Signature &signature, const Measure &seconds);

 private:
  struct Choice {
    std::once_flag once;
    std::weak_ptr<const Op> op;
  };
  mutable std::mutex mutex_;
  std::atomic<size_t> added_{0};
  std::vector<std::weak_ptr<const Op>> members_;
  std::map<std::string, std::shared_ptr<Choice>> chosen_;
};

// `op` and its other implementations, highest score first; `op` alone where it has none.
std::vector<OpPtr> implementations(const OpPtr &op);

// What became of a call whose kernel failed.
struct Recovery {
  int status = 0;     // OPGRAFT_OK: the outputs are right
  std::string cause;  // message of the last failure
  std::string by;     // who took over, for the log: "Probe@1.0.0 (plain)" or "the reference"
};
// `op`'s kernel has returned `status`. Where it wrote nothing, the next implementation by score and finally
// the reference run instead, each failure counted in Op::failures; `log` is told each time.
Recovery recover(const Op &op, const opgraft_call &call, int status,
                 const std::function<void(const std::string &)> &log);

}  // namespace opgraft
