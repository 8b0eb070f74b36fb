// opgraft_generate: text of a model that `opgraft export` wrote, or of a GGUF file, without Python; `opgraft generate`
// is its twin.
#include <fmt/format.h>
#include <getopt.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "infer/cli/llama/llama.h"
#include "infer/cli/text/text_model.h"
#include "infer/mindir.h"

namespace {

using namespace opgraft;
namespace fs = std::filesystem;

constexpr const char *kHelp = R"(usage: opgraft_generate --model FILE --prompt TEXT [options]

Writes on from a prompt; Ctrl-C ends the text.

  --model FILE        a model of `opgraft export`, FILE.mindir, or a GGUF file of the architecture llama
  --prompt TEXT       what a person says
  --system TEXT       what the model is told before the prompt, in its chat form
  --max-tokens N      default: 256
  --temperature T     default: 0, the likeliest token each time
  --top-k N           draw among the N likeliest; default: all
  --top-p P           and the fewest that hold P of the probability
  --seed N            default: 0
  --no-chat           the prompt as it is, outside the model's chat form
  --state-bytes N     what keys and values may take; default: no bound
  --weights W         of a GGUF file: float32 or bfloat16, to which it is expanded; stored, as it has them (default);
                      or int8
  --rows N            of a GGUF file: tokens that the caches hold; default: the context
  --plain-operators   of a GGUF file: fuse nothing
  --threads N         default: all cores
  --json              print text and figures when all is done
  --help

Exit code: 0 done, 1 the model or the prompt failed, 2 wrong usage, 130 ended by Ctrl-C.
)";
constexpr int kInterrupted = 130;
constexpr int64_t kMostThreads = 256;  // of the pool

struct Usage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Options {
  std::string model;
  std::optional<std::string> prompt, system;
  text::Drawing drawing;
  int64_t state_bytes = 0, threads = 0, rows = 0;
  llama::Weights weights = llama::Weights::kStored;
  bool chat = true, plain = false, json = false, help = false;
};

template <class T> T number(const std::string &flag, std::string_view given, T least, T most, const char *wanted) {
  T n{};
  const auto [end, ec] = std::from_chars(given.data(), given.data() + given.size(), n);
  if (ec != std::errc() || end != given.data() + given.size() || n < least || n > most)
    throw Usage(fmt::format("{} takes {}, got '{}'", flag, wanted, given));
  return n;
}

llama::Weights weights(const std::string &given) {
  const auto known = llama::weights_of(given);
  if (!known) throw Usage(fmt::format("--weights takes float32, bfloat16, stored or int8, got '{}'", given));
  return *known;
}

Options parse(int argc, char **argv) {
  static const option kOptions[] = {{"model", required_argument, nullptr, 0},
                                    {"prompt", required_argument, nullptr, 0},
                                    {"system", required_argument, nullptr, 0},
                                    {"max-tokens", required_argument, nullptr, 0},
                                    {"temperature", required_argument, nullptr, 0},
                                    {"top-k", required_argument, nullptr, 0},
                                    {"top-p", required_argument, nullptr, 0},
                                    {"seed", required_argument, nullptr, 0},
                                    {"state-bytes", required_argument, nullptr, 0},
                                    {"threads", required_argument, nullptr, 0},
                                    {"weights", required_argument, nullptr, 0},
                                    {"rows", required_argument, nullptr, 0},
                                    {"plain-operators", no_argument, nullptr, 0},
                                    {"no-chat", no_argument, nullptr, 0},
                                    {"json", no_argument, nullptr, 0},
                                    {"help", no_argument, nullptr, 0},
                                    {nullptr, 0, nullptr, 0}};
  Options o;
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  constexpr double any = std::numeric_limits<double>::infinity();
  opterr = 0;
  int index = 0;
  while (true) {
    const int begin = optind;
    const int found = getopt_long(argc, argv, ":h", kOptions, &index);
    if (found == -1) break;
    if (found == ':') throw Usage(fmt::format("{} needs a value", argv[optind - 1]));
    if (found == '?') throw Usage(fmt::format("unknown option '{}'", argv[begin]));
    const std::string name = found == 'h' ? "help" : kOptions[index].name, flag = "--" + name;
    const std::string value = optarg ? optarg : "";
    const auto integer = [&](int64_t least, int64_t greatest, const char *wanted) {
      return number(flag, value, least, greatest, wanted);
    };
    if (name == "help") o.help = true;
    else if (name == "json") o.json = true;
    else if (name == "no-chat") o.chat = false;
    else if (name == "plain-operators") o.plain = true;
    else if (name == "model") o.model = value;
    else if (name == "prompt") o.prompt = value;
    else if (name == "system") o.system = value;
    else if (name == "max-tokens") o.drawing.max_tokens = integer(1, most, "a positive number");
    else if (name == "top-k") o.drawing.top_k = integer(-most, most, "a whole number");
    else if (name == "seed") o.drawing.seed = integer(-most, most, "a whole number");
    else if (name == "rows") o.rows = integer(1, most, "a positive number");
    else if (name == "weights") o.weights = weights(value);
    else if (name == "state-bytes") o.state_bytes = integer(1, most, "a positive number");
    else if (name == "threads")
      o.threads = integer(1, kMostThreads, fmt::format("a number from 1 to {}", kMostThreads).c_str());
    else if (name == "temperature") o.drawing.temperature = number(flag, value, -any, any, "a number");
    else if (name == "top-p") o.drawing.top_p = number(flag, value, -any, any, "a number");
  }
  if (o.help) return o;
  if (optind < argc) throw Usage(fmt::format("unknown argument '{}'", argv[optind]));
  if (o.model.empty()) throw Usage("--model is missing");
  if (!o.prompt) throw Usage("--prompt is missing");
  return o;
}

void write(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw std::runtime_error(fmt::format("cannot write the text: {}", std::strerror(errno)));
}

// --- Ctrl-C: before and after the text it ends the program, in between the text ---
volatile std::sig_atomic_t g_interrupted = 0;

void on_interrupt(void (*handler)(int), int flags) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = flags | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
}

void end_program(int) {
  constexpr char text[] = "opgraft_generate: interrupted\n";
  if (::write(STDERR_FILENO, text, sizeof(text) - 1) < 0) _exit(kInterrupted);
  _exit(kInterrupted);
}

void end_text(int) { g_interrupted = 1; }

std::shared_ptr<Graph> read_model(const Options &o) {
  const bool mindir = fs::path(o.model).extension() == ".mindir";
  if (mindir ? !fs::exists(o.model) : !fs::is_regular_file(o.model))
    throw std::runtime_error(o.model + ": no such file");
  if (mindir) return read_mindir(o.model, Registry::global());
  return llama::load(o.model, o.weights, o.rows, o.plain);
}

std::string rate(const std::optional<double> &value) {
  return value ? fmt::format("{:.1f} tokens/s", *value) : std::string("-");
}

int run(const Options &o) {
  if (o.threads) setenv("OPGRAFT_NUM_THREADS", std::to_string(o.threads).c_str(), 1);
  text::TextModel model(read_model(o));
  if (o.state_bytes) model.model().limit_state(size_t(o.state_bytes));
  const auto ids = model.encode(*o.prompt, o.chat, o.system);
  std::string whole;
  std::vector<int32_t> drawn;
  on_interrupt(end_text, SA_RESETHAND);  // a second one ends the program
  const auto stats = model.generate(
      ids, o.drawing,
      [&](int32_t id, const std::string &piece) {
        drawn.push_back(id);
        if (o.json) whole += piece;
        else write(piece);
      },
      [] { return g_interrupted != 0; });
  on_interrupt(end_program, 0);
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const int64_t peak = int64_t(usage.ru_maxrss) * 1024;
  if (o.json) {
    using Json = nlohmann::ordered_json;
    const auto or_null = [](const std::optional<double> &v) { return v ? Json(*v) : Json(); };
    const Json report{{"text", whole},
                      {"ids", drawn},
                      {"prompt_tokens", stats.prompt_tokens},
                      {"tokens", stats.tokens},
                      {"first_token_ms", 1e3 * stats.first_token},
                      {"prompt_tokens_per_s", or_null(stats.prompt_rate())},
                      {"decode_tokens_per_s", or_null(stats.decode_rate())},
                      {"kv_bytes", stats.kv_bytes},
                      {"end", stats.end},
                      {"peak_rss_bytes", peak}};
    write(report.dump(2, ' ', true) + "\n");
  } else {
    constexpr double mib = 1 << 20;
    write(
        fmt::format("\n\nprompt {} tokens, {}\nfirst token {:.1f} ms\nthen {} tokens, {}\n"
                    "peak memory {:.0f} MiB, keys and values {:.1f} MiB\n{}",
                    stats.prompt_tokens, rate(stats.prompt_rate()), 1e3 * stats.first_token, stats.tokens,
                    rate(stats.decode_rate()), double(peak) / mib, double(stats.kv_bytes) / mib,
                    stats.end == "eos" ? "" : "ended by " + stats.end + "\n"));
  }
  return stats.end == "interrupted" ? kInterrupted : 0;
}

}  // namespace

int main(int argc, char **argv) {
  try {
    const Options options = parse(argc, argv);
    if (options.help) {
      write(kHelp);
      return 0;
    }
    on_interrupt(end_program, 0);
    return run(options);
  } catch (const Usage &e) {
    fmt::print(stderr, "opgraft_generate: {}\nTry --help.\n", e.what());
    return 2;
  } catch (const std::bad_alloc &) {
    fmt::print(stderr, "opgraft_generate: too little memory\n");
    return 1;
  } catch (const std::exception &e) {
    fmt::print(stderr, "opgraft_generate: {}\n", e.what());
    return 1;
  }
}
