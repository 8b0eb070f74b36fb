// Symbolic dimensions: ids from OPGRAFT_FIRST_SYMBOL down name polynomials over a graph's free symbols, interned so
// that equal expressions have equal ids.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace opgraft {

class Symbols {
 public:
  // A new free symbol named for messages and dumps.
  int64_t fresh(std::string name);
  void rename(int64_t dim, std::string name);  // of a free symbol
  // Id or number of a OP b for + - * / ; -1 where it cannot be told (inexact division).
  int64_t op(char op, int64_t a, int64_t b);
  // The value of `dim` when free symbol i (in order of creation) is bindings[i]; -1 if unknown.
  int64_t evaluate(int64_t dim, std::span<const int64_t> bindings) const;
  bool is_free(int64_t dim) const;
  size_t free_count() const { return names_.size(); }
  int free_index(int64_t dim) const;  // of a free symbol
  std::string text(int64_t dim) const;

 private:
  // Monomial: sorted free-symbol indices with repetition. Polynomial: monomial -> coefficient.
  using Polynomial = std::map<std::vector<int>, int64_t>;
  Polynomial poly(int64_t dim) const;
  int64_t intern(Polynomial p);
  std::vector<std::string> names_;
  std::vector<Polynomial> polys_;  // by OPGRAFT_FIRST_SYMBOL - id
  std::map<Polynomial, int64_t> ids_;
};

}  // namespace opgraft
