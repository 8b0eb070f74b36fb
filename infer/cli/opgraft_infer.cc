// opgraft_infer: runs a MindIR model on .npy inputs without Python.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "infer/mindir.h"
#include "infer/npy.h"
#include "infer/session.h"

namespace {

using namespace opgraft;
namespace fs = std::filesystem;

constexpr const char *kHelp = R"(usage: opgraft_infer --model MODEL.mindir --input NAME=X.npy ... --output DIR [options]

  --model FILE        the model
  --input NAME=FILE   one input, by name or by position (0=x.npy); once for each input
  --output DIR        where outputs are written as DIR/<name>.npy
  --ops DIR           load the operators of this directory as well (may be repeated)
  --threads N         threads of the pool (default: all cores)
  --repeat N          timed runs (default 1)
  --profile FILE      write cost and share of each node, as JSON
  --json              print results as JSON
  --help

Exit code: 0 done, 1 the model or an input failed, 2 wrong usage.
)";

struct Usage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Options {
  std::string model, output, profile;
  std::vector<std::pair<std::string, std::string>> inputs;
  std::vector<std::string> ops;
  int threads = 0, repeat = 1;
  bool json = false, help = false;
};

int number(const std::string &flag, const std::string &text) {
  int n = 0;
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (ec != std::errc() || end != text.data() + text.size() || n < 1)
    throw Usage(fmt::format("{} takes a positive number, got '{}'", flag, text));
  return n;
}

Options parse(int argc, char **argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    std::string flag = argv[i];
    auto value = [&]() -> std::string {
      if (++i >= argc) throw Usage(flag + " needs a value");
      return argv[i];
    };
    if (flag == "--help" || flag == "-h") o.help = true;
    else if (flag == "--json") o.json = true;
    else if (flag == "--model") o.model = value();
    else if (flag == "--output") o.output = value();
    else if (flag == "--profile") o.profile = value();
    else if (flag == "--ops") o.ops.push_back(value());
    else if (flag == "--threads") o.threads = number(flag, value());
    else if (flag == "--repeat") o.repeat = number(flag, value());
    else if (flag == "--input") {
      std::string text = value();
      auto at = text.find('=');
      if (at == std::string::npos) throw Usage(fmt::format("--input takes NAME=FILE, got '{}'", text));
      o.inputs.emplace_back(text.substr(0, at), text.substr(at + 1));
    } else throw Usage(fmt::format("unknown option '{}'", flag));
  }
  if (o.help) return o;
  if (o.model.empty()) throw Usage("--model is missing");
  if (o.output.empty()) throw Usage("--output is missing");
  return o;
}

std::vector<Tensor> read_inputs(const Graph &graph, const Options &o) {
  std::vector<Tensor> inputs(graph.inputs.size());
  std::string names;
  for (ValueId id : graph.inputs) names += (names.empty() ? "" : ", ") + graph.value(id).name;
  for (auto &[name, file] : o.inputs) {
    size_t index = graph.inputs.size();
    for (size_t i = 0; i < graph.inputs.size(); ++i)
      if (graph.value(graph.inputs[i]).name == name) index = i;
    if (index == graph.inputs.size()) {
      auto [end, ec] = std::from_chars(name.data(), name.data() + name.size(), index);
      if (ec != std::errc() || end != name.data() + name.size() || index >= inputs.size())
        throw Usage(fmt::format("the model has no input '{}'; its inputs are: {}", name, names));
    }
    if (inputs[index]) throw Usage(fmt::format("input '{}' is given twice", name));
    inputs[index] = read_npy(file);
  }
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!inputs[i])
      throw Usage(fmt::format("input '{}' is missing: --input {}=FILE", graph.value(graph.inputs[i]).name,
                              graph.value(graph.inputs[i]).name));
  return inputs;
}

// A tenth of a millisecond and less is told in microseconds.
std::string latency_text(double ms) {
  return ms < 0.1 ? fmt::format("{:.2f} us", ms * 1e3) : fmt::format("{:.3f} ms", ms);
}

// A file name made of an output's name; the model must not choose the directory.
std::string file_name(std::string name) {
  for (char &c : name)
    if (c == '/' || c == '\\' || c == '\0') c = '_';
  return name.empty() || name[0] == '.' ? "_" + name : name;
}

void run(const Options &o) {
  if (o.threads) setenv("OPGRAFT_NUM_THREADS", std::to_string(o.threads).c_str(), 1);
  Registry &registry = Registry::global();
  for (auto &dir : o.ops)
    for (auto &refused : registry.load_directory(dir)) std::cerr << "opgraft_infer: refused " << refused.what() << "\n";
  auto graph = read_mindir(o.model, registry);
  auto inputs = read_inputs(*graph, o);
  auto model = std::make_shared<Model>(graph);
  Session session(model);
  std::vector<Tensor> outputs = session.run(inputs);
  std::vector<double> ms;
  for (int i = 0; i < o.repeat; ++i) {
    auto start = std::chrono::steady_clock::now();
    session.run_into(inputs, outputs);
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(ms.begin(), ms.end());
  double least = ms.front(), median = (ms[ms.size() / 2] + ms[(ms.size() - 1) / 2]) / 2;
  fs::create_directories(o.output);
  nlohmann::json report{{"model", o.model},
                        {"runs", o.repeat},
                        {"ms_min", least},
                        {"ms_median", median},
                        {"arena_bytes", session.arena_bytes()},
                        {"outputs", nlohmann::json::array()}};
  std::map<std::string, int> seen;
  if (!o.json) fmt::print("{:<24} {:<10} {:<24} {}\n", "output", "dtype", "shape", "file");
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::string name = i < graph->output_names.size() ? graph->output_names[i] : fmt::format("output{}", i);
    std::string base = file_name(name);
    if (int n = seen[base]++) base += fmt::format("_{}", n);
    fs::path file = fs::path(o.output) / (base + ".npy");
    write_npy(file, outputs[i]);
    report["outputs"].push_back({{"name", name},
                                 {"dtype", dtype_name(outputs[i].dtype())},
                                 {"shape", outputs[i].dims()},
                                 {"file", file.string()}});
    if (!o.json)
      fmt::print("{:<24} {:<10} {:<24} {}\n", name, dtype_name(outputs[i].dtype()), to_string(outputs[i].dims()),
                 file.string());
  }
  if (!o.profile.empty()) {
    std::ofstream out(o.profile);
    out << profile_json(session, inputs, o.repeat) << "\n";
    out.close();
    if (!out) throw std::runtime_error(o.profile + ": cannot write");
  }
  if (o.json) fmt::print("{}\n", report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  else
    fmt::print("latency over {} runs: min {}, median {}; arena {} bytes\n", o.repeat, latency_text(least),
               latency_text(median), session.arena_bytes());
}

}  // namespace

int main(int argc, char **argv) {
  try {
    Options options = parse(argc, argv);
    if (options.help) {
      std::cout << kHelp;
      return 0;
    }
    run(options);
    return 0;
  } catch (const Usage &e) {
    std::cerr << "opgraft_infer: " << e.what() << "\nTry --help.\n";
    return 2;
  } catch (const std::exception &e) {
    std::cerr << "opgraft_infer: " << e.what() << "\n";
    return 1;
  }
}
