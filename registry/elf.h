// A shared object's file read as bytes: what it exports, needs and notes, without running any of it.
// Nothing in the file is trusted: every offset and length is checked against the file.
#pragma once

#include <elf.h>

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace opgraft {

struct ElfError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Elf {
 public:
  // `file` must outlive this. Throws ElfError unless it is a whole, well-formed 64-bit shared object
  // for this machine.
  explicit Elf(std::span<const char> file);

  struct Symbol {
    std::string_view name;
    uint64_t size;
    bool is_object;  // data, no function
  };
  const std::vector<Symbol> &exports() const { return exports_; }
  const Symbol *find(std::string_view name) const;  // null where it is not exported
  std::string_view machine() const;

  // The description of the note (owner, type); throws where there are two.
  std::optional<std::string_view> note(std::string_view owner, uint32_t type) const;

  std::vector<std::string_view> needed;     // DT_NEEDED
  std::string_view rpath, runpath;          // colon-separated, as written
  std::vector<std::string_view> undefined;  // names it imports

 private:
  template <class T> T read(uint64_t offset, const char *what) const;
  uint64_t offset_of(uint64_t address, uint64_t length, const char *what) const;
  std::string_view text(uint64_t index, const char *what) const;
  void read_header();
  void read_segments();
  void read_dynamic();
  uint64_t count_symbols(uint64_t hash, uint64_t gnu_hash) const;
  void read_symbols(uint64_t table, uint64_t count);

  std::span<const char> file_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Phdr> loads_, notes_;
  std::optional<Elf64_Phdr> dynamic_;
  std::string_view strings_;
  std::vector<Symbol> exports_;
};

}  // namespace opgraft
