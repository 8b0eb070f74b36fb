#include "infer/native_call.h"

namespace opgraft {

NativeCall::NativeCall(const Op &op, const std::vector<opgraft_tensor> &inputs,
                       const std::vector<opgraft_tensor> &outputs, const FlatAttrs &attrs)
    : args{sizeof args, int32_t(inputs.size()), attrs.size(), 0, inputs.data(), attrs.data(), nullptr, nullptr,
           nullptr},
      op_(op) {
  call.struct_size = sizeof call;
  call.n_inputs = int32_t(inputs.size());
  call.n_outputs = int32_t(outputs.size());
  call.n_attrs = attrs.size();
  call.inputs = inputs.data();
  call.outputs = outputs.data();
  call.attrs = attrs.data();
  call.host = host();
  if (op.native->workspace) check(op.native->workspace(&args, &call.workspace_bytes));
  if (call.workspace_bytes) workspace_ = allocate(size_t(call.workspace_bytes));
  call.workspace = workspace_.get();
  if (op.native->init) check(op.native->init(&args, &call.state));
}

NativeCall::~NativeCall() {
  if (call.state && op_.native->release) op_.native->release(call.state);
}

void NativeCall::check(int status) const {
  if (status) throw Error(status & 0xff, last_error(op_, status));
}

}  // namespace opgraft
