// Names of symbolic dimensions in a file ("batch", "2*seq+1"): equal names are equal symbols.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "infer/symbols.h"
#include "infer/tensor.h"

namespace opgraft::mindir {

// Reads names: sums of products of numbers and names known so far; any other name is a new symbol.
class DimensionNames {
 public:
  // Makes symbols of a shape's plain names, so that formulas in inputs before this one find them.
  void declare(std::string_view shape, Symbols &symbols);
  // `text` as a dimension of `symbols`; -1 for "?".
  int64_t read(std::string_view text, Symbols &symbols);

 private:
  std::map<std::string, int64_t, std::less<>> known_;
};

// Writes them: a name for each symbol, no two alike, none that reads as a formula.
class DimensionWriter {
 public:
  explicit DimensionWriter(const Symbols &symbols) : symbols_(symbols) {}
  // The names of a shape, "batch,,2*seq"; empty where all dimensions are numbers.
  std::string write(const TensorType &type);

 private:
  const Symbols &symbols_;
  std::map<int64_t, std::string> written_;
  std::set<std::string> names_;
};

}  // namespace opgraft::mindir
