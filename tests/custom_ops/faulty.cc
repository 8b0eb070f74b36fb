// Fails where the attribute `where` says, in the way `how` says.
#include <new>
#include <stdexcept>

#include "custom_aot_extra.h"

namespace {
int fail(void *pointer, const std::string &here) {
  auto *extra = static_cast<AotExtra *>(pointer);
  if (extra->Attr<std::string>("where") != here) return 0;
  auto how = extra->Attr<std::string>("how");
  if (how == "code") return 7;
  if (how == "runtime_error") throw std::runtime_error("a runtime error");
  if (how == "bad_alloc") throw std::bad_alloc();
  if (how == "missing") extra->Attr<float>("nothing");
  throw 42;
}
}  // namespace

extern "C" std::vector<int64_t> FaultyInferShape(int *ndims, int64_t **shapes, AotExtra *extra) {
  fail(extra, "InferShape");
  return {shapes[0], shapes[0] + ndims[0]};
}
extern "C" TypeId FaultyInferType(std::vector<TypeId> types, AotExtra *extra) {
  fail(extra, "InferType");
  return types[0];
}
extern "C" int FaultyInit(int *, int64_t **, const char **, AotExtra *extra) { return fail(extra, "Init"); }
extern "C" int Faulty(int, void **, int *, int64_t **, const char **, void *, void *extra) { return fail(extra, ""); }
