#include "infer/symbols.h"

#include <algorithm>

#include "opgraft/op.h"

namespace opgraft {
namespace {

size_t index(int64_t dim) { return size_t(OPGRAFT_FIRST_SYMBOL - dim); }

}  // namespace

int64_t Symbols::fresh(std::string name) {
  names_.push_back(std::move(name));
  return intern({{{int(names_.size()) - 1}, 1}});
}

void Symbols::rename(int64_t dim, std::string name) {
  if (int i = free_index(dim); i >= 0) names_[size_t(i)] = std::move(name);
}

Symbols::Polynomial Symbols::poly(int64_t dim) const {
  if (dim >= 0) return dim == 0 ? Polynomial{} : Polynomial{{{}, dim}};
  return polys_[index(dim)];
}

int64_t Symbols::intern(Polynomial p) {
  for (auto it = p.begin(); it != p.end();) it = it->second == 0 ? p.erase(it) : std::next(it);
  if (p.empty()) return 0;
  if (p.size() == 1 && p.begin()->first.empty()) return p.begin()->second < 0 ? -1 : p.begin()->second;
  auto [it, added] = ids_.try_emplace(p, OPGRAFT_FIRST_SYMBOL - int64_t(polys_.size()));
  if (added) polys_.push_back(std::move(p));
  return it->second;
}

int64_t Symbols::op(char op, int64_t a, int64_t b) {
  auto known = [&](int64_t d) { return d >= 0 || (is_symbol(d) && index(d) < polys_.size()); };
  if (!known(a) || !known(b)) return -1;
  Polynomial x = poly(a), y = poly(b), out;
  if (x.size() > 16 || y.size() > 16) return -1;  // no real shape needs more terms
  auto put = [&out](std::vector<int> m, int64_t c) -> bool {
    int64_t &slot = out[std::move(m)];
    return !__builtin_add_overflow(slot, c, &slot);
  };
  bool ok = true;
  switch (op) {
    case '+':
    case '-':
      out = x;
      for (auto &[m, c] : y) ok = ok && put(m, op == '+' ? c : -c);
      break;
    case '*':
      for (auto &[m, c] : x)
        for (auto &[n, d] : y) {
          std::vector<int> mn(m);
          mn.insert(mn.end(), n.begin(), n.end());
          std::sort(mn.begin(), mn.end());
          int64_t cd;
          ok = ok && mn.size() <= 8 && !__builtin_mul_overflow(c, d, &cd) && put(std::move(mn), cd);
        }
      break;
    case '/': {  // exact division by one term; else equal polynomials
      if (x == y && !x.empty()) return 1;
      if (y.size() != 1) return -1;
      auto &[n, d] = *y.begin();
      for (auto &[m, c] : x) {
        if (d == 0 || c % d != 0 || !std::includes(m.begin(), m.end(), n.begin(), n.end())) return -1;
        std::vector<int> rest;
        std::set_difference(m.begin(), m.end(), n.begin(), n.end(), std::back_inserter(rest));
        ok = ok && put(std::move(rest), c / d);
      }
      break;
    }
    default: return -1;
  }
  return ok ? intern(std::move(out)) : -1;
}

int64_t Symbols::evaluate(int64_t dim, std::span<const int64_t> bindings) const {
  if (!is_symbol(dim)) return dim;
  if (index(dim) >= polys_.size()) return -1;
  int64_t sum = 0;
  for (auto &[m, c] : polys_[index(dim)]) {
    int64_t term = c;
    for (int i : m) {
      if (size_t(i) >= bindings.size() || bindings[size_t(i)] < 0 ||
          __builtin_mul_overflow(term, bindings[size_t(i)], &term))
        return -1;
    }
    if (__builtin_add_overflow(sum, term, &sum)) return -1;
  }
  return sum < 0 ? -1 : sum;
}

bool Symbols::is_free(int64_t dim) const { return free_index(dim) >= 0; }

int Symbols::free_index(int64_t dim) const {
  if (!is_symbol(dim) || index(dim) >= polys_.size()) return -1;
  auto &p = polys_[index(dim)];
  return p.size() == 1 && p.begin()->second == 1 && p.begin()->first.size() == 1 ? p.begin()->first[0] : -1;
}

std::string Symbols::text(int64_t dim) const {
  if (dim >= 0) return std::to_string(dim);
  if (!is_symbol(dim) || index(dim) >= polys_.size()) return "?";
  std::string s;
  for (auto &[m, c] : polys_[index(dim)]) {
    if (!s.empty()) s += c < 0 ? "-" : "+";
    else if (c < 0) s += "-";
    int64_t a = c < 0 ? -c : c;
    if (a != 1 || m.empty()) s += std::to_string(a) + (m.empty() ? "" : "*");
    for (size_t i = 0; i < m.size(); ++i) s += (i ? "*" : "") + names_[size_t(m[i])];
  }
  return s;
}

}  // namespace opgraft
