// The boundary of C functions that are written in C++: what is thrown inside becomes a status and a
// message, kept per thread until the next call.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "opgraft/op.h"

namespace opgraft::detail {

// The text, or, where memory for it is lacking, a constant.
struct Message {
  std::string text;
  const char *constant = nullptr;
  template <class... Parts> void set(const Parts &...parts) noexcept {
    try {
      text.clear();
      ((text += parts), ...);
      constant = nullptr;
    } catch (...) {
      constant = "out of memory, also for the message of an error";
    }
  }
};
inline Message &message() {
  thread_local Message m;
  return m;
}
inline const char *last_error() { return message().constant ? message().constant : message().text.c_str(); }

// Runs f and turns whatever it throws into status and message.
template <class F> int guarded(const char *op, F &&f) noexcept {
  try {
    f();
    return OPGRAFT_OK;
  } catch (const SizeError &e) {
    message().set(op, ": ", e.what());
    return e.status;
  } catch (const Error &e) {
    message().set(e.what());
    return e.status;
  } catch (const std::bad_alloc &) {
    message().set(op, ": out of memory");
    return OPGRAFT_OUT_OF_MEMORY;
  } catch (const std::exception &e) {
    message().set(op, ": ", e.what());
    return OPGRAFT_INTERNAL;
  } catch (...) {
    message().set(op, ": unknown exception");
    return OPGRAFT_INTERNAL;
  }
}

}  // namespace opgraft::detail
