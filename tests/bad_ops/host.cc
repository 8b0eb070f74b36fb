// MindSpore's side of the contract: an AotExtra with real std::strings of the ABI this file is built with.
#include <map>
#include <stdexcept>

#include "opgraft/custom_aot_extra.h"

namespace {

struct Host final : AotExtra {
  std::map<std::string, std::string> texts;
  std::map<std::string, std::vector<float>> numbers;

  bool HasAttr(std::string name) override { return texts.count(name) || numbers.count(name); }

 private:
  // A primitive's getter takes the name by reference and copies it, as MindSpore's does.
  template <class T> static T find(const std::map<std::string, T> &all, const std::string &name) {
    auto it = all.find(name);
    if (it == all.end()) throw std::runtime_error("no attribute " + name);
    return it->second;
  }
  bool GetAttrBool(std::string name) override { return find(numbers, name)[0] != 0; }
  int64_t GetAttrInt(std::string name) override { return int64_t(find(numbers, name)[0]); }
  float GetAttrFloat(std::string name) override { return find(numbers, name)[0]; }
  std::string GetAttrStr(std::string name) override { return find(texts, name); }
  std::vector<int64_t> GetAttrIntVec(std::string name) override {
    auto v = find(numbers, name);
    return {v.begin(), v.end()};
  }
  std::vector<float> GetAttrFloatVec(std::string name) override { return find(numbers, name); }
  std::vector<std::vector<int64_t>> GetAttrInt2DVec(std::string) override { return {}; }
  std::vector<std::vector<float>> GetAttrFloat2DVec(std::string) override { return {}; }
};

}  // namespace

extern "C" void *host_new() { return static_cast<AotExtra *>(new Host); }
extern "C" void host_delete(void *extra) { delete static_cast<Host *>(static_cast<AotExtra *>(extra)); }
extern "C" void host_text(void *extra, const char *name, const char *value) {
  static_cast<Host *>(static_cast<AotExtra *>(extra))->texts[name] = value;
}
extern "C" void host_numbers(void *extra, const char *name, const float *values, int n) {
  static_cast<Host *>(static_cast<AotExtra *>(extra))->numbers[name].assign(values, values + n);
}
