#include "infer/mindir_operands.h"

#include <fmt/format.h>

#include "infer/mindir_data.h"
#include "infer/mindir_enums.h"

namespace opgraft::mindir {

void Operands::attribute(const Manifest &m, const std::string &name, const Literal &l, Attrs &out) const {
  if (l.kind == Literal::kNone) return;  // absent: the op's default
  AttrValue v;
  int32_t kind = m.attr(name)->kind;
  auto word = kind == OPGRAFT_ATTR_STRING && l.kind == Literal::kInt ? word_of(name, l.i) : std::nullopt;
  if (word) v = *word;
  else if (!to_attr(l, kind, v)) refuse(fmt::format("attribute {} has a value of the wrong kind", name));
  out.insert_or_assign(name, std::move(v));
}

// An operand that the operator has no place for and that is None or the number that op.yaml states.
void Operands::expect(const std::string &word, size_t position, size_t item) const {
  Literal l;
  AttrValue v;
  int64_t number = 0;
  const bool constant = items_.literal_of(item, l);
  if (word == "none" && constant && l.kind == Literal::kNone) return;
  if (whole_number(word, number) && constant && to_attr(l, OPGRAFT_ATTR_FLOAT, v) &&
      std::get<double>(v) == double(number))
    return;
  refuse(fmt::format("operand {} must be {}: opgraft knows no other", position, word == "none" ? "None" : word));
}

std::vector<ValueId> Operands::inputs(const Manifest &m, std::vector<std::string> order,
                                      const std::vector<size_t> &operands, Attrs &given) {
  if (order.empty()) {
    for (auto &t : m.inputs) order.push_back(t.name);
    for (auto &a : m.attrs) order.push_back(a.name);
  }
  std::vector<ValueId> in;
  std::vector<std::pair<size_t, Literal>> numbers;  // by place in `in`
  size_t position = 0;
  for (size_t k = 0; k < operands.size();) {
    if (position >= order.size())
      refuse(fmt::format("takes at most {} operands, got {}", order.size(), operands.size()));
    const std::string &name = order[position];
    const Item &item = items_[operands[k]];
    bool literal = item.kind == Item::kLiteral && item.literal.kind != Literal::kTensor;
    int index = m.input_index(name);
    if (index < 0 && !m.attr(name)) {
      expect(name, position, operands[k]);
      ++position, ++k;
      continue;
    }
    if (index < 0) {
      Literal l;
      if (!items_.literal_of(operands[k], l)) refuse(fmt::format("operand {} ({}) must be a constant", k, name));
      attribute(m, name, l, given);
      ++position, ++k;
      continue;
    }
    if (literal && item.literal.kind == Literal::kNone) {
      ++position, ++k;
      continue;
    }
    bool variadic = m.variadic() && size_t(index) + 1 == m.inputs.size();
    if (in.size() < size_t(index)) in.resize(size_t(index), kNone);
    if (variadic && in.size() > size_t(index) && literal && position + 1 < order.size()) {
      ++position;  // inputs given one by one end where a number or text stands
      continue;
    }
    if (variadic && item.kind == Item::kTuple) {
      for (size_t each : std::vector<size_t>(item.items)) in.push_back(items_.value_of(each));
      ++position;
    } else {
      const size_t at = variadic ? in.size() : size_t(index);
      if (literal && item.literal.kind != Literal::kTuple) numbers.emplace_back(at, item.literal);
      if (at == in.size()) in.push_back(kNone);
      in[at] = items_.value_of(operands[k]);
      if (!variadic) ++position;
    }
    ++k;
  }
  for (size_t i = 0; i < in.size(); ++i)
    if (in[i] == kNone) refuse(fmt::format("input {} is missing before others", m.inputs[i].name));
  for (auto &[at, number] : numbers) in[at] = as_its_peer(m, in, at, number);
  return in;
}

// A number beside tensors has the dtype of one that op.yaml gives the same type.
ValueId Operands::as_its_peer(const Manifest &m, const std::vector<ValueId> &in, size_t at, const Literal &number) {
  auto type_of = [&](size_t i) -> auto & { return m.input(i)->dtype; };
  for (size_t i = 0; i < in.size(); ++i) {
    const Value &peer = graph_.value(in[i]);
    if (i == at || type_of(i) != type_of(at) || (peer.kind == Value::kConstant && !peer.parameter)) continue;
    Tensor t;
    if (!to_scalar(number, peer.type.dtype, t)) break;
    return graph_.add_constant(std::move(t));
  }
  return in[at];
}

}  // namespace opgraft::mindir
