#include "infer/attrs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "opgraft/op.h"

namespace opgraft {
namespace {

const char *kind_name(int32_t kind) {
  static constexpr const char *kNames[] = {
      "?", "bool", "int", "float", "str", "list of int", "list of float", "2-D list of int", "2-D list of float"};
  return kind >= 1 && kind <= 8 ? kNames[kind] : kNames[0];
}

template <class T> const T *as(const AttrValue &v) { return std::get_if<T>(&v); }

// `value` as `kind`, where nothing is lost; false where it does not fit.
bool convert(const AttrValue &value, int32_t kind, AttrValue &out) {
  using Ints = std::vector<int64_t>;
  using Floats = std::vector<double>;
  if (attr_kind(value) == kind) return out = value, true;
  const int64_t *i = as<int64_t>(value);
  const Ints *list = as<Ints>(value);
  switch (kind) {
    case OPGRAFT_ATTR_BOOL:
      if (i && (*i == 0 || *i == 1)) return out = *i == 1, true;
      return false;
    case OPGRAFT_ATTR_INT:
      if (auto b = as<bool>(value)) return out = int64_t(*b), true;
      if (list && list->size() == 1) return out = list->front(), true;
      return false;
    case OPGRAFT_ATTR_FLOAT:
      if (i) return out = double(*i), true;
      return false;
    case OPGRAFT_ATTR_INTS:
      if (i) return out = Ints{*i}, true;
      if (auto f = as<Floats>(value); f && f->empty()) return out = Ints{}, true;
      return false;
    case OPGRAFT_ATTR_FLOATS:
      if (list) return out = Floats(list->begin(), list->end()), true;
      if (auto f = as<double>(value)) return out = Floats{*f}, true;
      return false;
    case OPGRAFT_ATTR_INTS2D:
      if (list && list->empty()) return out = std::vector<Ints>{}, true;
      return false;
    case OPGRAFT_ATTR_FLOATS2D:
      if (auto rows = as<std::vector<Ints>>(value)) {
        std::vector<Floats> r;
        for (auto &row : *rows) r.emplace_back(row.begin(), row.end());
        return out = std::move(r), true;
      }
      return false;
    default: return false;
  }
}

}  // namespace

int32_t attr_kind(const AttrValue &value) { return int32_t(value.index()) + 1; }

std::string attr_text(const AttrValue &value) {
  return std::visit(
      [](auto &v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string>) return fmt::format("\"{}\"", v);
        else return fmt::format("{}", v);
      },
      value);
}

FlatAttrs::FlatAttrs(const Attrs &attrs) : values_(attrs) {
  ints_.reserve(2 * values_.size());
  floats_.reserve(values_.size());
  for (auto &[name, value] : values_) {
    opgraft_attr a{name.c_str(), nullptr, nullptr, 1, attr_kind(value), 0};
    auto keep_ints = [&](std::vector<int64_t> v) { return ints_.push_back(std::move(v)), ints_.back().data(); };
    auto keep_floats = [&](std::vector<double> v) { return floats_.push_back(std::move(v)), floats_.back().data(); };
    std::visit(
        [&](auto &v) {
          using T = std::decay_t<decltype(v)>;
          if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, int64_t>) a.data = keep_ints({int64_t(v)});
          else if constexpr (std::is_same_v<T, double>) a.data = keep_floats({v});
          else {
            a.count = int64_t(v.size());
            if constexpr (std::is_same_v<T, std::string>) a.data = v.c_str();
            else if constexpr (std::is_same_v<T, std::vector<int64_t>> || std::is_same_v<T, std::vector<double>>)
              a.data = v.data();
            else {
              std::vector<int64_t> lengths;
              typename T::value_type all;
              for (auto &row : v) {
                lengths.push_back(int64_t(row.size()));
                all.insert(all.end(), row.begin(), row.end());
              }
              a.rows = keep_ints(std::move(lengths));
              if constexpr (std::is_same_v<typename T::value_type, std::vector<int64_t>>)
                a.data = keep_ints(std::move(all));
              else a.data = keep_floats(std::move(all));
            }
          }
        },
        value);
    list_.push_back(a);
  }
}

Attrs complete_attrs(const Manifest &manifest, const Attrs &given) {
  Attrs out;
  for (auto &[name, value] : given) {
    auto *declared = manifest.attr(name);
    if (!declared) {
      std::string known;
      for (auto &a : manifest.attrs) known += (known.empty() ? "" : ", ") + a.name;
      throw Error(OPGRAFT_INVALID_TYPE, fmt::format("{}: unknown attribute '{}', expected {}", manifest.name, name,
                                                    known.empty() ? "none" : "one of " + known));
    }
    AttrValue v;
    if (!convert(value, declared->kind, v))
      throw Error(OPGRAFT_INVALID_TYPE,
                  fmt::format("{}: attribute {} must be {}, got {} {}", manifest.name, name, kind_name(declared->kind),
                              kind_name(attr_kind(value)), attr_text(value)));
    out.emplace(name, std::move(v));
  }
  for (auto &a : manifest.attrs)
    if (!out.count(a.name)) {
      if (a.fallback) out.emplace(a.name, *a.fallback);
    }
  return out;
}

}  // namespace opgraft
