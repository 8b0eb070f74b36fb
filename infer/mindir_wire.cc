#include "infer/mindir_wire.h"

#include <fmt/format.h>

#include <algorithm>

#include "infer/wire.h"

namespace opgraft::mindir {
namespace {

constexpr std::pair<int32_t, int32_t> kWireTypes[] = {
    {1, OPGRAFT_FLOAT32}, {2, OPGRAFT_UINT8},   {3, OPGRAFT_INT8},       {4, OPGRAFT_UINT16},    {5, OPGRAFT_INT16},
    {6, OPGRAFT_INT32},   {7, OPGRAFT_INT64},   {9, OPGRAFT_BOOL},       {10, OPGRAFT_FLOAT16},  {11, OPGRAFT_FLOAT64},
    {12, OPGRAFT_UINT32}, {13, OPGRAFT_UINT64}, {14, OPGRAFT_COMPLEX64}, {16, OPGRAFT_BFLOAT16}, {17, OPGRAFT_FLOAT64}};

}  // namespace

int32_t dtype_of(int64_t data_type) {
  for (auto [wire, dtype] : kWireTypes)
    if (wire == data_type) return dtype;
  return OPGRAFT_UNKNOWN;
}

int32_t data_type_of(int32_t dtype) {
  for (auto [wire, d] : kWireTypes)
    if (d == dtype) return wire;
  return 0;
}

TensorProto parse_tensor(std::string_view bytes) {
  TensorProto t;
  for (Message m(bytes); m.next();) switch (m.tag()) {
      case 1: m.integers(t.dims); break;
      case 2: t.data_type = m.integer(); break;
      case 3: m.singles(t.floats); break;
      case 4:
      case 6:
      case 11: m.integers(t.ints); break;
      case 7: t.name = m.bytes(); break;
      case 9: t.raw = m.bytes(), t.has_raw = true; break;
      case 10: m.reals(t.floats); break;
      case 12:
        t.external = true;
        for (Message e(m.bytes()); e.next();) switch (e.tag()) {
            case 1: t.location = e.bytes(); break;
            case 2: t.offset = e.integer(); break;
            case 3: t.length = e.integer(); break;
            default: e.skip();
          }
        break;
      case 13: t.ref_key = m.bytes(); break;
      case 15: t.compression = m.integer(); break;
      default: m.skip();
    }
  return t;
}

AttributeProto parse_attribute(std::string_view bytes) {
  AttributeProto a;
  for (Message m(bytes); m.next();) switch (m.tag()) {
      case 1: a.name = m.bytes(); break;
      case 2: a.f = m.single(); break;
      case 3: a.i = m.integer(); break;
      case 4: a.d = m.real(); break;
      case 5: a.s = m.bytes(); break;
      case 6:
      case 12: a.tensors.push_back(m.bytes()); break;
      case 8: m.singles(a.floats); break;
      case 9: m.reals(a.floats); break;
      case 10: m.integers(a.ints); break;
      case 11: a.strings.push_back(m.bytes()); break;
      case 16: a.type = m.integer(); break;
      case 17: a.values.push_back(m.bytes()); break;
      default: m.skip();
    }
  return a;
}

NodeProto parse_node(std::string_view bytes) {
  NodeProto n;
  for (Message m(bytes); m.next();) switch (m.tag()) {
      case 1: n.inputs.push_back(m.bytes()); break;
      case 2: n.outputs.push_back(m.bytes()); break;
      case 3: n.name = m.bytes(); break;
      case 4: n.op_type = m.bytes(); break;
      case 5: n.attributes.push_back(m.bytes()); break;
      case 7: n.domain = m.bytes(); break;
      default: m.skip();
    }
  return n;
}

PrimitiveProto parse_primitive(std::string_view bytes) {
  PrimitiveProto p;
  for (Message m(bytes); m.next();) switch (m.tag()) {
      case 1: p.name = m.bytes(); break;
      case 2: p.op_type = m.bytes(); break;
      case 3: p.attributes.push_back(m.bytes()); break;
      default: m.skip();
    }
  return p;
}

ValueInfoProto parse_value_info(std::string_view bytes) {
  ValueInfoProto v;
  for (Message m(bytes); m.next();) switch (m.tag()) {
      case 1: v.name = m.bytes(); break;
      case 2: v.tensors.push_back(m.bytes()); break;
      case 3: v.doc = m.bytes(); break;
      case 4: v.denotation = m.bytes(); break;
      default: m.skip();
    }
  return v;
}

GraphProto parse_graph(std::string_view bytes) {
  GraphProto g;
  for (Message m(bytes); m.next();) switch (m.tag()) {
      case 1: g.nodes.push_back(m.bytes()); break;
      case 2: g.name = m.bytes(); break;
      case 3: g.parameters.push_back(m.bytes()); break;
      case 5: g.inputs.push_back(m.bytes()); break;
      case 6: g.outputs.push_back(m.bytes()); break;
      default: m.skip();
    }
  return g;
}

ModelProto parse_model(std::string_view bytes) {
  ModelProto p;
  for (Message m(bytes); m.next();) switch (m.tag()) {
      case 7: p.graph = m.bytes(), p.has_graph = true; break;
      case 8: p.functions.push_back(m.bytes()); break;
      case 10: p.little_endian = m.integer() != 0; break;
      case 12: p.primitives.push_back(m.bytes()); break;
      case 14: {
        auto &pair = p.user_info.emplace_back();
        for (Message e(m.bytes()); e.next();) switch (e.tag()) {
            case 1: pair.first = e.bytes(); break;
            case 2: pair.second = e.bytes(); break;
            default: e.skip();
          }
        break;
      }
      default: m.skip();
    }
  return p;
}

namespace {

bool number(const Literal &l, double &out) {
  if (l.kind == Literal::kFloat) return out = l.d, true;
  if (l.kind == Literal::kInt || l.kind == Literal::kBool) return out = double(l.i), true;
  return false;
}

bool integer(const Literal &l, int64_t &out) {
  if (l.kind != Literal::kInt && l.kind != Literal::kBool) return false;
  return out = l.i, true;
}

// The elements of an integer or float tensor as literals.
bool elements(const Tensor &t, std::vector<Literal> &out) {
  if (t.dims().size() > 1 || t.size() > (1 << 16)) return false;
  for (int64_t k = 0; k < t.size(); ++k) {
    Literal l;
    l.kind = Literal::kInt;
    switch (t.dtype()) {
      case OPGRAFT_INT64: l.i = t.data<int64_t>()[k]; break;
      case OPGRAFT_INT32: l.i = t.data<int32_t>()[k]; break;
      case OPGRAFT_BOOL:
        l.i = t.data<uint8_t>()[k] != 0;
        l.kind = Literal::kBool;
        break;
      case OPGRAFT_FLOAT32:
        l.d = double(t.data<float>()[k]);
        l.kind = Literal::kFloat;
        break;
      case OPGRAFT_FLOAT64:
        l.d = t.data<double>()[k];
        l.kind = Literal::kFloat;
        break;
      default: return false;
    }
    out.push_back(std::move(l));
  }
  return true;
}

template <class T, class Get> bool list(const std::vector<Literal> &items, Get get, std::vector<T> &out) {
  for (auto &i : items) {
    T v;
    if (!get(i, v)) return false;
    out.push_back(v);
  }
  return true;
}

template <class T, class Get> bool rows(const std::vector<Literal> &items, Get get, AttrValue &out) {
  std::vector<std::vector<T>> r;
  for (auto &i : items) {
    r.emplace_back();
    if (i.kind != Literal::kTuple || !list(i.items, get, r.back())) return false;
  }
  return out = std::move(r), true;
}

}  // namespace

bool to_attr(const Literal &l, int32_t kind, AttrValue &out) {
  if (l.kind == Literal::kTensor) {
    Literal as;
    if (!elements(l.tensor, as.items)) return false;
    if (l.tensor.dims().empty()) return to_attr(Literal(as.items[0]), kind, out);
    as.kind = Literal::kTuple;
    return to_attr(as, kind, out);
  }
  int64_t i = 0;
  double d = 0;
  switch (kind) {
    case OPGRAFT_ATTR_BOOL: return integer(l, i) && (i == 0 || i == 1) && (out = i == 1, true);
    case OPGRAFT_ATTR_INT:
      if (l.kind == Literal::kTuple && l.items.size() == 1) return to_attr(l.items[0], kind, out);
      return integer(l, i) && (out = i, true);
    case OPGRAFT_ATTR_FLOAT: return number(l, d) && (out = d, true);
    case OPGRAFT_ATTR_STRING:
      if (l.kind == Literal::kString) return out = l.s, true;
      // A dtype operand is its TypeId in MindIR and its name in op.yaml.
      if (l.kind == Literal::kInt && dtype_size(int32_t(l.i)) && l.i == int32_t(l.i))
        return out = std::string(dtype_name(int32_t(l.i))), true;
      return false;
    case OPGRAFT_ATTR_INTS: {
      std::vector<int64_t> v;
      bool ok = l.kind == Literal::kTuple ? list(l.items, integer, v) : integer(l, i) && (v.push_back(i), true);
      return ok && (out = std::move(v), true);
    }
    case OPGRAFT_ATTR_FLOATS: {
      std::vector<double> v;
      bool ok = l.kind == Literal::kTuple ? list(l.items, number, v) : number(l, d) && (v.push_back(d), true);
      return ok && (out = std::move(v), true);
    }
    case OPGRAFT_ATTR_INTS2D: return l.kind == Literal::kTuple && rows<int64_t>(l.items, integer, out);
    case OPGRAFT_ATTR_FLOATS2D: return l.kind == Literal::kTuple && rows<double>(l.items, number, out);
    default: return false;
  }
}

bool to_scalar(const Literal &l, int32_t dtype, Tensor &out) {
  double d;
  if (!number(l, d)) return false;
  out = Tensor(dtype, {});
  switch (dtype) {
    case OPGRAFT_FLOAT64: *out.data<double>() = d; return true;
    case OPGRAFT_FLOAT32: *out.data<float>() = float(d); return true;
    case OPGRAFT_FLOAT16: *out.data<float16>() = float16(float(d)); return true;
    case OPGRAFT_BFLOAT16: *out.data<bfloat16>() = bfloat16(float(d)); return true;
    case OPGRAFT_INT32: return l.kind == Literal::kInt && (*out.data<int32_t>() = int32_t(l.i)) == l.i;
    case OPGRAFT_INT64: return l.kind == Literal::kInt && (*out.data<int64_t>() = l.i, true);
    default: return false;
  }
}

bool to_tensor(const Literal &l, Tensor &out) {
  const Literal *begin = &l;
  size_t n = 1;
  Shape dims;
  switch (l.kind) {
    case Literal::kTensor: return out = l.tensor, true;
    case Literal::kBool:
    case Literal::kInt:
    case Literal::kFloat: break;
    case Literal::kTuple:
      begin = l.items.data(), n = l.items.size();
      dims = {int64_t(n)};
      break;
    default: return false;
  }
  int32_t dtype = n == 0 ? OPGRAFT_INT64 : OPGRAFT_UNKNOWN;
  for (size_t k = 0; k < n; ++k) switch (begin[k].kind) {
      case Literal::kBool: dtype = dtype == OPGRAFT_UNKNOWN ? int32_t(OPGRAFT_BOOL) : dtype; break;
      case Literal::kInt: dtype = dtype == OPGRAFT_FLOAT32 ? dtype : int32_t(OPGRAFT_INT64); break;
      case Literal::kFloat: dtype = OPGRAFT_FLOAT32; break;
      default: return false;
    }
  Tensor t(dtype, dims);
  for (size_t k = 0; k < n; ++k) {
    double d = 0;
    number(begin[k], d);
    if (dtype == OPGRAFT_BOOL) t.data<uint8_t>()[k] = begin[k].i != 0;
    else if (dtype == OPGRAFT_INT64) t.data<int64_t>()[k] = begin[k].i;
    else t.data<float>()[k] = float(d);
  }
  return out = std::move(t), true;
}

}  // namespace opgraft::mindir
