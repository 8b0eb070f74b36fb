// Simulates the partition of work on 8 to 64 cores (partition.h). Without input: rows by Zipf's law, the mean of seeds.
// On standard input: a line for each matrix, its name and the work of its rows. Writes JSON: {name: {cores: {cut: share
// of the cores' time that is used}}}. bench/partition.py makes the table.
#include "bench/partition.h"

#include <fmt/format.h>

#include <iostream>
#include <sstream>
#include <string>

int main() {
  using namespace opgraft::partition;
  struct Case {
    std::string name;
    std::vector<std::vector<double>> rows;  // figures are the mean of these
  };
  std::vector<Case> cases{{"Zipf", {}}};
  for (uint64_t seed = 1; seed <= kZipfSeeds; ++seed) cases[0].rows.push_back(zipf_rows(seed));
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    std::string name;
    in >> name;
    std::vector<double> work;
    for (double w; in >> w;) work.push_back(w);
    if (!in.eof() || work.empty()) {
      fmt::print(stderr, "partition: {}: expected the work of rows, got '{}'\n", name, line.substr(0, 80));
      return 1;
    }
    cases.push_back({name, {work}});
  }
  std::string text = "{";
  for (const Case &c : cases) {
    text += fmt::format("{}\"{}\": {{", &c == cases.data() ? "" : ",\n ", c.name);
    for (int64_t cores : {8, 16, 32, 64}) {
      Utilisation mean;
      const auto n = double(c.rows.size());
      for (const auto &rows : c.rows) {
        const Utilisation u = simulate(rows, cores);
        mean.even += u.even / n;
        mean.greedy += u.greedy / n;
        mean.adaptive += u.adaptive / n;
        mean.packed += u.packed / n;
        mean.limit += u.limit / n;
      }
      text += fmt::format(
          "{}\"{}\": {{\"even\": {:.4f}, \"greedy\": {:.4f}, \"adaptive\": {:.4f}, \"packed\": {:.4f}, "
          "\"limit\": {:.4f}}}",
          cores == 8 ? "" : ", ", cores, mean.even, mean.greedy, mean.adaptive, mean.packed, mean.limit);
    }
    text += "}";
  }
  fmt::print("{}}}\n", text);
}
