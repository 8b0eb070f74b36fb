// One call of an op's native kernel: its arguments with the workspace and the state that they need.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "infer/native.h"

namespace opgraft {

// Views and attributes must outlive it. Throws Error with the op's message.
class NativeCall {
 public:
  NativeCall(const Op &op, const std::vector<opgraft_tensor> &inputs, const std::vector<opgraft_tensor> &outputs,
             const FlatAttrs &attrs);
  NativeCall(const NativeCall &) = delete;
  ~NativeCall();

  opgraft_call call{};
  const opgraft_infer_args args;
  void check(int status) const;

 private:
  const Op &op_;
  std::shared_ptr<void> workspace_;
};

}  // namespace opgraft
