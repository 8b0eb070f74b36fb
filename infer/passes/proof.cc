#include "infer/passes/proof.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <tuple>

#include "infer/session.h"

namespace opgraft::passes {
namespace {

template <class T> double as_double(T x) {
  if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) return double(float(x));
  else return double(x);
}

template <class T> Difference compare_as(const Tensor &got, const Tensor &want, double rtol, double atol) {
  Difference d;
  const T *a = got.data<T>(), *b = want.data<T>();
  int64_t n = want.size(), finite = 0;
  double scale = 0;
  for (int64_t i = 0; i < n; ++i)
    if (double y = std::fabs(as_double(b[i])); std::isfinite(y)) scale = std::max(scale, y);
  for (int64_t i = 0; i < n; ++i) {
    double x = as_double(a[i]), y = as_double(b[i]);
    bool same_special = (std::isnan(x) && std::isnan(y)) || x == y;
    if (!std::isfinite(x) || !std::isfinite(y)) {
      if (!same_special) d.comparable = false;
      if (!same_special && d.agrees) {
        d.agrees = false;
        d.why = fmt::format("element {}: {} instead of {}", i, x, y);
      }
      continue;
    }
    double e = std::fabs(x - y);
    d.max_abs = std::max(d.max_abs, e);
    d.mean_abs += e;
    ++finite;
    if (e > rtol * std::fabs(y) + atol * scale && d.agrees) {
      d.agrees = false;
      d.why = fmt::format("element {}: {} instead of {}, more than {} relative + {}", i, x, y, rtol, atol * scale);
    }
  }
  if (finite) d.mean_abs /= double(finite);
  return d;
}

using Clock = std::chrono::steady_clock;

double ms(Session &s, const std::vector<Tensor> &inputs, std::vector<Tensor> &outputs) {
  auto start = Clock::now();
  s.run_into(inputs, outputs);
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Best times of two sessions in turns: at least 7 of them, more where they are short, as long as it takes 20 ms.
std::pair<double, double> race(Session &old_one, Session &new_one, const std::vector<Tensor> &inputs) {
  std::vector<Tensor> old_out, new_out;
  ms(old_one, inputs, old_out);
  ms(new_one, inputs, new_out);
  double best_old = 1e30, best_new = 1e30, spent = 0;
  for (int r = 0; r < 7 || (spent < 20 && r < 200); ++r) {
    double a = ms(old_one, inputs, old_out), b = ms(new_one, inputs, new_out);
    best_old = std::min(best_old, a);
    best_new = std::min(best_new, b);
    spent += a + b;
  }
  return {best_old, best_new};
}

// The given model on one set of inputs; a set that was cut to size may be one the model does not take.
std::vector<Tensor> run_set(Session &s, const std::vector<Tensor> &set, bool given) {
  try {
    return s.run(set);
  } catch (const std::exception &e) {
    if (given) throw;
    std::string sizes;
    for (auto &t : set) sizes += (sizes.empty() ? "" : ", ") + t.type().text();
    throw Error(
        OPGRAFT_INVALID_VALUE,
        fmt::format("substitute: a proof needs inputs of two sizes; of the given ones a second size was cut ({}), "
                    "with which the model fails: {}",
                    sizes, e.what()));
  }
}

// An element one number up or down, unless it is 0 or none can follow.
float moved(float x, bool up) { return std::isfinite(x) && x != 0 ? std::nextafter(x, up ? 1e30f : -1e30f) : x; }
template <class T> T moved_half(T x, bool up) {
  const float at = float(x);
  T next = x;
  next.bits = uint16_t(x.bits + (up ? 1 : -1));
  return at != 0 && std::isfinite(at) && std::isfinite(float(next)) ? next : x;
}
float16 moved(float16 x, bool up) { return moved_half(x, up); }
bfloat16 moved(bfloat16 x, bool up) { return moved_half(x, up); }

// The model with the elements of its floating Parameters one up or one down, which follows from where they stand.
std::shared_ptr<Graph> nudged(const Graph &g) {
  auto out = g.clone();
  for (size_t v = 0; v < out->value_count(); ++v) {
    Value &x = out->value(ValueId(v));
    if (!x.stays() || !x.parameter) continue;
    const auto nudge = [&](auto zero) {
      using T = decltype(zero);
      Tensor to(x.constant.dtype(), x.constant.dims());
      for (int64_t i = 0; i < to.size(); ++i)
        to.data<T>()[i] = moved(x.constant.data<T>()[i], (uint64_t(i) * 0x9e3779b97f4a7c15u + v) >> 63);
      x.constant = to;
    };
    if (x.type.dtype == OPGRAFT_FLOAT32) nudge(0.0f);
    if (x.type.dtype == OPGRAFT_FLOAT16) nudge(float16());
    if (x.type.dtype == OPGRAFT_BFLOAT16) nudge(bfloat16());
  }
  return out;
}

// The whole models' results for one set of inputs, output by output.
class Whole {
 public:
  Whole(const Graph &before, const Graph &after)
      : before_(before), old_(std::make_shared<Model>(before.clone())), new_(std::make_shared<Model>(after.clone())) {}

  // The worst of the outputs; `own`: set where it agrees for what the model differs by from itself.
  Difference run(const std::vector<Tensor> &set, double &own) {
    const auto want = old_.run(set), got = new_.run(set);
    std::vector<Tensor> self;
    Difference worst;
    for (size_t o = 0; o < want.size(); ++o) {
      Difference d = compare(got[o], want[o]);
      if (!d.agrees && d.comparable) {
        if (self.empty()) self = Session(std::make_shared<Model>(nudged(before_))).run(set);
        const Difference by_itself = compare(self[o], want[o]);
        if (by_itself.comparable && d.max_abs <= kOwn * by_itself.max_abs) {
          d.agrees = true;
          own = std::max(own, by_itself.max_abs);
        }
      }
      worst.max_abs = std::max(worst.max_abs, d.max_abs);
      worst.mean_abs = std::max(worst.mean_abs, d.mean_abs);
      if (!d.agrees && worst.agrees) worst.agrees = false, worst.why = d.why;
    }
    return worst;
  }

 private:
  const Graph &before_;
  Session old_, new_;
};

}  // namespace

Difference compare(const Tensor &got, const Tensor &want) {
  Difference d;
  if (got.dtype() != want.dtype() || got.dims() != want.dims()) {
    d.agrees = d.comparable = false;
    d.why = fmt::format("{} instead of {}", got.type().text(), want.type().text());
    return d;
  }
  switch (want.dtype()) {
    case OPGRAFT_FLOAT32: return compare_as<float>(got, want, 1e-4, 1e-5);
    case OPGRAFT_FLOAT64: return compare_as<double>(got, want, 1e-9, 1e-10);
    case OPGRAFT_FLOAT16: return compare_as<float16>(got, want, 1e-2, 1e-3);
    case OPGRAFT_BFLOAT16: return compare_as<bfloat16>(got, want, 4e-2, 4e-3);
    case OPGRAFT_INT64: return compare_as<int64_t>(got, want, 0, 0);
    case OPGRAFT_INT32: return compare_as<int32_t>(got, want, 0, 0);
    default:
      d.agrees = std::memcmp(got.data(), want.data(), want.bytes()) == 0;
      if (!d.agrees) d.why = "bytes differ";
      return d;
  }
}

std::vector<std::vector<Tensor>> vary_sizes(const Graph &g, const std::vector<std::vector<Tensor>> &given) {
  if (given.empty() && !g.inputs.empty())
    throw Error(OPGRAFT_INVALID_VALUE, "substitute: a proof needs inputs, got none");
  std::vector<std::vector<Tensor>> sets = given;
  if (sets.empty()) sets.emplace_back();
  // Sizes seen of every free symbol.
  std::map<int64_t, std::vector<int64_t>> sizes;
  for (auto &set : sets) {
    if (set.size() != g.inputs.size())
      throw Error(OPGRAFT_INVALID_VALUE, fmt::format("substitute: the model takes {} inputs, the proof gives {}",
                                                     g.inputs.size(), set.size()));
    for (size_t i = 0; i < set.size(); ++i) {
      auto &dims = g.value(g.inputs[i]).type.dims;
      for (size_t k = 0; k < dims.size() && k < set[i].dims().size(); ++k)
        if (dims[k] < 0) {
          auto &s = sizes[dims[k]];
          if (std::find(s.begin(), s.end(), set[i].dims()[k]) == s.end()) s.push_back(set[i].dims()[k]);
        }
    }
  }
  bool missing = std::any_of(sizes.begin(), sizes.end(), [](auto &s) { return s.second.size() < 2; });
  if (!missing) return sets;
  auto other = [](int64_t n) { return n > 1 ? (n + 1) / 2 : 2; };
  std::vector<Tensor> varied;
  for (size_t i = 0; i < sets[0].size(); ++i) {
    const Tensor &from = sets[0][i];
    auto &dims = g.value(g.inputs[i]).type.dims;
    Shape shape = from.dims();
    for (size_t k = 0; k < shape.size() && k < dims.size(); ++k)
      if (dims[k] < 0 && sizes[dims[k]].size() < 2) shape[k] = other(shape[k]);
    Tensor to(from.dtype(), shape);
    size_t element = dtype_size(from.dtype());
    for (int64_t e = 0; e < to.size(); ++e) {  // element e of the new set, wrapping around the old one
      int64_t rest = e, source = 0, stride = 1;
      for (size_t k = shape.size(); k-- > 0;) {
        source += (rest % shape[k]) % std::max<int64_t>(1, from.dims()[k]) * stride;
        rest /= shape[k];
        stride *= from.dims()[k];
      }
      if (from.size() == 0) throw Error(OPGRAFT_INVALID_VALUE, "substitute: a proof needs inputs that are not empty");
      std::memcpy(static_cast<char *>(to.data()) + size_t(e) * element,
                  static_cast<char *>(from.data()) + size_t(source) * element, element);
    }
    varied.push_back(std::move(to));
  }
  sets.push_back(std::move(varied));
  return sets;
}

std::vector<Left> prove(const Graph &before, const Graph &after, Report &report, const ProofOptions &options) {
  std::vector<Left> bad;
  auto sets = vary_sizes(before, options.inputs);
  if (report.swapped.empty()) return bad;
  size_t done = 0, total = (report.swapped.size() + 1) * sets.size();
  auto step = [&] {
    if (options.progress) options.progress(++done, total);
  };
  // What every swapped node is given: outputs of a probe of the model as it was.
  auto probe = before.clone();
  probe->outputs.clear();
  std::map<ValueId, size_t> where;
  for (auto &s : report.swapped)
    for (ValueId v : s.inputs)
      if (s.was && where.emplace(v, probe->outputs.size()).second) probe->outputs.push_back(v);
  Session probe_session(std::make_shared<Model>(probe));
  struct Pair {
    std::unique_ptr<Session> old_one, new_one;
  };
  std::vector<Pair> pairs;
  for (auto &s : report.swapped) {
    pairs.emplace_back();
    if (s.was)
      pairs.back() = {std::make_unique<Session>(std::make_shared<Model>(s.was)),
                      std::make_unique<Session>(std::make_shared<Model>(s.now))};
  }
  std::vector<bool> refused(report.swapped.size());
  for (size_t set = 0; set < sets.size(); ++set) {
    std::vector<Tensor> seen = run_set(probe_session, sets[set], set < options.inputs.size());
    for (size_t k = 0; k < report.swapped.size(); step(), ++k) {
      Swap &s = report.swapped[k];
      if (!s.was || refused[k]) continue;
      std::vector<Tensor> in, want, got;
      for (ValueId v : s.inputs) in.push_back(seen[where[v]]);
      auto &[old_one, new_one] = pairs[k];
      auto refuse = [&](const std::string &why) {
        bad.push_back({s.op, s.root, why});
        refused[k] = true;
      };
      ms(*old_one, in, want);
      try {
        ms(*new_one, in, got);
      } catch (const std::exception &e) {
        refuse(e.what());
        continue;
      }
      for (size_t o = 0; o < want.size() && !refused[k]; ++o) {
        Difference d = compare(got[o], want[o]);
        s.max_abs = std::max(s.max_abs, d.max_abs);
        s.mean_abs = std::max(s.mean_abs, d.mean_abs);
        if (!d.agrees) refuse("the results differ: " + d.why);
      }
      if (refused[k] || set != 0) continue;  // times are of the first set
      std::tie(s.ms_before, s.ms_after) = race(*old_one, *new_one, in);
      if (options.only_faster && s.ms_after * 1.05 > s.ms_before)
        refuse(fmt::format("not 5 % faster: {:.4f} ms before, {:.4f} ms after", s.ms_before, s.ms_after));
    }
  }
  if (!bad.empty()) return bad;
  Whole whole(before, after);
  double own = 0, most = 0;
  for (auto &set : sets) {
    const Difference d = whole.run(set, own);
    most = std::max(most, d.max_abs);
    for (auto &s : report.swapped) {
      if (!d.agrees) bad.push_back({s.op, s.root, "the model's results differ: " + d.why});
      if (s.was) continue;  // no comparison of its own
      s.max_abs = std::max(s.max_abs, d.max_abs);
      s.mean_abs = std::max(s.mean_abs, d.mean_abs);
    }
    if (!d.agrees) return bad;
    step();
  }
  if (own > 0)
    report.note = fmt::format(
        "the whole models differ by {:.2e} at most: the model differs by {:.2e} from itself when its Parameters change "
        "in the last bit",
        most, own);
  return bad;
}

}  // namespace opgraft::passes
