// x plus every kind of attribute: an operator of opgraft, built with other flags than its own.
#include "opgraft/op.h"
using namespace opgraft;
namespace {
void Infer(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32});
  c.output(c.input(0).dtype(), c.input(0).shape());
}
void Kernel(Context &c) {
  double sum = c.attr_bool("flag", false) + double(c.attr_int("number", 0)) + c.attr_float("factor", 0);
  sum += double(c.attr_string("text", "").size());
  sum += double(c.attr_string("an_attribute_of_more_than_fifteen_characters", "").size());
  for (auto v : c.attr_ints("ints")) sum += double(v);
  for (auto v : c.attr_floats("floats")) sum += v;
  sum += c.has_attr("ints2d") + c.has_attr("floats2d");
  for (int64_t i = 0; i < c.input(0).size(); ++i)
    c.output(0).data<float>()[i] = c.input(0).data<float>()[i] + float(sum);
}
}  // namespace
OPGRAFT_OP(AllKinds, .inputs = 1, .infer = Infer, .kernel = Kernel)
