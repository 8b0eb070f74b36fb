// A shared object's file read as bytes: what it exports, needs and notes, without running any of it.
// Nothing in the file is trusted: every offset and length is checked against the file.
#pragma once

#include <elf.h>

#include <cstdint>
#include <filesystem>
#include <map>
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
    uint64_t address, size;
    bool is_object;  // data, no function
  };
  struct Import {
    std::string_view name, version;  // version: empty where any will do
    bool weak;                       // may stay undefined
  };
  const std::vector<Symbol> &exports() const { return exports_; }
  const Symbol *find(std::string_view name) const;  // null where it is not exported
  std::string_view machine() const;

  // The description of the note (owner, type); throws where there are two.
  std::optional<std::string_view> note(std::string_view owner, uint32_t type) const;

  // `length` bytes that will lie at a run-time address, before relocation.
  std::string_view bytes(uint64_t address, uint64_t length, const char *what) const;
  // The terminated text there.
  std::string_view text_at(uint64_t address, const char *what) const;
  // What the pointer at `address` will hold once it is relocated, as an address of this file: 0 for null,
  // kElsewhere where another file decides.
  static constexpr uint64_t kElsewhere = ~uint64_t(0);
  uint64_t pointer_at(uint64_t address, const char *what) const;

  std::vector<std::string_view> needed;    // DT_NEEDED
  std::string_view rpath, runpath;         // colon-separated, as written
  std::vector<Import> undefined;           // what it imports
  std::vector<std::string_view> versions;  // of symbols, that it defines

 private:
  template <class T> T read(uint64_t offset, const char *what) const;
  uint64_t offset_of(uint64_t address, uint64_t length, const char *what) const;
  std::string_view text(uint64_t index, const char *what) const;
  bool packed_relative(uint64_t address) const;
  void read_header();
  void read_segments();
  void read_dynamic();
  uint64_t count_symbols(uint64_t hash, uint64_t gnu_hash) const;
  void read_symbols(uint64_t count);
  void read_versions();

  std::span<const char> file_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Phdr> loads_, notes_;
  std::optional<Elf64_Phdr> dynamic_;
  std::map<int64_t, uint64_t> entries_;  // of the dynamic segment, but DT_NEEDED
  std::string_view strings_;
  std::map<uint16_t, std::string_view> wanted_;  // version indices of imports
  std::vector<Symbol> exports_;
};

// A file's bytes, and what they hold. Throws as Elf does, also where the file cannot be read.
class ElfFile {
 public:
  explicit ElfFile(const std::filesystem::path &file);
  ElfFile(const ElfFile &) = delete;
  const Elf *operator->() const { return &elf_; }
  const Elf &operator*() const { return elf_; }

 private:
  std::vector<char> bytes_;
  Elf elf_;
};

}  // namespace opgraft
