#include "registry/elf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>

namespace opgraft {
namespace {

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
constexpr uint32_t kRelative = R_X86_64_RELATIVE, kAbsolute = R_X86_64_64;
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
constexpr uint32_t kRelative = R_AARCH64_RELATIVE, kAbsolute = R_AARCH64_ABS64;
#else
#error "name this machine's ELF number"
#endif
static_assert(std::endian::native == std::endian::little);
constexpr uint16_t kVersionIndex = 0x7fff;  // the top bit says "hidden"

std::string machine_name(uint16_t machine) {
  switch (machine) {
    case EM_X86_64: return "x86-64";
    case EM_AARCH64: return "aarch64";
    case EM_386: return "i386";
    case EM_ARM: return "arm";
    case EM_RISCV: return "risc-v";
    default: return fmt::format("machine {}", machine);
  }
}

[[noreturn]] void fail(std::string what) { throw ElfError(std::move(what)); }

}  // namespace

template <class T> T Elf::read(uint64_t offset, const char *what) const {
  if (offset > file_.size() || file_.size() - offset < sizeof(T))
    fail(fmt::format("truncated: {} ends past the file's {} bytes", what, file_.size()));
  T value;
  std::memcpy(&value, file_.data() + offset, sizeof(T));
  return value;
}

// The place in the file of `length` bytes at a run-time address.
uint64_t Elf::offset_of(uint64_t address, uint64_t length, const char *what) const {
  for (auto &s : loads_)
    if (address >= s.p_vaddr && address - s.p_vaddr <= s.p_filesz && length <= s.p_filesz - (address - s.p_vaddr))
      return s.p_offset + (address - s.p_vaddr);
  fail(fmt::format("malformed: {} ({} bytes at {:#x}) lies in no loaded segment", what, length, address));
}

std::string_view Elf::text(uint64_t index, const char *what) const {
  if (index >= strings_.size()) fail(fmt::format("malformed: {} lies outside the string table", what));
  auto rest = strings_.substr(index);
  auto end = rest.find('\0');
  if (end == rest.npos) fail(fmt::format("malformed: {} is not terminated", what));
  return rest.substr(0, end);
}

Elf::Elf(std::span<const char> file) : file_(file) {
  read_header();
  read_segments();
  read_dynamic();
}

void Elf::read_header() {
  if (file_.size() < SELFMAG || std::memcmp(file_.data(), ELFMAG, SELFMAG) != 0)
    fail(file_.empty() ? "not a shared object: the file is empty" : "not a shared object: no ELF magic at its start");
  header_ = read<Elf64_Ehdr>(0, "the ELF header");
  if (header_.e_ident[EI_CLASS] != ELFCLASS64) fail("must be a 64-bit ELF file");
  if (header_.e_ident[EI_DATA] != ELFDATA2LSB) fail("must be a little-endian ELF file");
  if (header_.e_machine != kMachine)
    fail(fmt::format("built for {}, this machine is {}", machine_name(header_.e_machine), machine_name(kMachine)));
  if (header_.e_type != ET_DYN)
    fail(fmt::format("must be a shared object (ELF type 3), got ELF type {}", header_.e_type));
  if (header_.e_phentsize != sizeof(Elf64_Phdr) || header_.e_phnum == 0) fail("malformed: no program headers");
  // Sections are not used, but a file cut short has usually lost the end of their table.
  uint64_t sections = uint64_t(header_.e_shnum) * header_.e_shentsize;
  if (sections && (header_.e_shoff > file_.size() || file_.size() - header_.e_shoff < sections))
    fail(fmt::format("truncated: the section table ends past the file's {} bytes", file_.size()));
}

void Elf::read_segments() {
  for (unsigned i = 0; i < header_.e_phnum; ++i) {
    uint64_t at = uint64_t(i) * sizeof(Elf64_Phdr);
    if (header_.e_phoff > file_.size()) fail("truncated: the program headers start past the file's end");
    auto s = read<Elf64_Phdr>(header_.e_phoff + at, "the program headers");
    if (s.p_type != PT_LOAD && s.p_type != PT_NOTE && s.p_type != PT_DYNAMIC) continue;
    if (s.p_offset > file_.size() || file_.size() - s.p_offset < s.p_filesz)
      fail(fmt::format("truncated: segment {} ends past the file's {} bytes", i, file_.size()));
    if (s.p_type == PT_NOTE) notes_.push_back(s);
    if (s.p_type == PT_DYNAMIC) dynamic_ = s;
    if (s.p_type != PT_LOAD) continue;
    bool aligned = s.p_align <= 1 || (std::has_single_bit(s.p_align) && (s.p_vaddr - s.p_offset) % s.p_align == 0);
    bool ordered = loads_.empty() || s.p_vaddr >= loads_.back().p_vaddr + loads_.back().p_memsz;
    if (!aligned || !ordered || s.p_memsz < s.p_filesz || s.p_vaddr + s.p_memsz < s.p_vaddr)
      fail(fmt::format("malformed: segment {} has an impossible address, size or alignment", i));
    loads_.push_back(s);
  }
  if (loads_.empty()) fail("malformed: no loaded segment");
  if (!dynamic_) fail("malformed: no dynamic segment");
}

void Elf::read_dynamic() {
  auto &entries = entries_;
  std::vector<uint64_t> needed_at;
  uint64_t at = 0;
  for (;; at += sizeof(Elf64_Dyn)) {
    // The dynamic linker reads on until DT_NULL, wherever that is.
    if (at + sizeof(Elf64_Dyn) > dynamic_->p_filesz) fail("malformed: the dynamic segment has no end mark");
    auto d = read<Elf64_Dyn>(dynamic_->p_offset + at, "the dynamic segment");
    if (d.d_tag == DT_NULL) break;
    if (d.d_tag == DT_NEEDED) needed_at.push_back(d.d_un.d_val);
    else entries[d.d_tag] = d.d_un.d_val;
  }
  offset_of(dynamic_->p_vaddr, at, "the dynamic segment");
  auto get = [&](int64_t tag) { return entries.count(tag) ? entries[tag] : 0; };
  auto entry_size = [&](int64_t tag, uint64_t bytes, const char *what) {
    if (entries.count(tag) && get(tag) != bytes)
      fail(fmt::format("malformed: entries of {} must have {} bytes, got {}", what, bytes, get(tag)));
  };
  entry_size(DT_SYMENT, sizeof(Elf64_Sym), "the symbol table");
  entry_size(DT_RELAENT, sizeof(Elf64_Rela), "the relocation table");
  if (!get(DT_STRTAB) || !get(DT_SYMTAB)) fail("malformed: no dynamic symbols");
  strings_ = {file_.data() + offset_of(get(DT_STRTAB), get(DT_STRSZ), "the string table"), get(DT_STRSZ)};
  // Tables the dynamic linker will walk.
  for (auto [table, bytes, what] : {std::tuple{DT_RELA, DT_RELASZ, "the relocation table"},
                                    {DT_RELR, DT_RELRSZ, "the packed relocation table"},
                                    {DT_JMPREL, DT_PLTRELSZ, "the call relocation table"},
                                    {DT_INIT_ARRAY, DT_INIT_ARRAYSZ, "the constructor list"},
                                    {DT_FINI_ARRAY, DT_FINI_ARRAYSZ, "the destructor list"}})
    if (entries.count(table)) offset_of(get(table), get(bytes), what);
  for (auto n : needed_at) needed.push_back(text(n, "a needed library's name"));
  if (entries.count(DT_RPATH)) rpath = text(get(DT_RPATH), "the rpath");
  if (entries.count(DT_RUNPATH)) runpath = text(get(DT_RUNPATH), "the runpath");
  auto count = count_symbols(get(DT_HASH), get(DT_GNU_HASH));
  if (entries.count(DT_VERSYM)) offset_of(get(DT_VERSYM), count * 2, "the symbol version table");
  read_versions();
  read_symbols(count);
}

// Two chains of records, each with a chain of names: what other files' symbols must have, and what its own have.
void Elf::read_versions() {
  constexpr const char *kTable = "the symbol version table";
  uint64_t records = 0;
  auto count = [&] {  // records may overlap: without a limit a short file could ask for hours
    if (++records > file_.size() / sizeof(Elf64_Vernaux)) fail("malformed: the symbol version table has no end");
  };
  auto at = entries_.count(DT_VERNEED) ? entries_[DT_VERNEED] : 0;
  for (uint64_t n = at ? entries_[DT_VERNEEDNUM] : 0; n; --n) {
    count();
    auto need = read<Elf64_Verneed>(offset_of(at, sizeof(Elf64_Verneed), kTable), kTable);
    for (uint64_t aux = at + need.vn_aux, k = need.vn_cnt; k; --k) {
      count();
      auto one = read<Elf64_Vernaux>(offset_of(aux, sizeof(Elf64_Vernaux), kTable), kTable);
      wanted_[one.vna_other & kVersionIndex] = text(one.vna_name, "a symbol version's name");
      if (!one.vna_next) break;
      aux += one.vna_next;
    }
    if (!need.vn_next) break;
    at += need.vn_next;
  }
  at = entries_.count(DT_VERDEF) ? entries_[DT_VERDEF] : 0;
  for (uint64_t n = at ? entries_[DT_VERDEFNUM] : 0; n; --n) {
    count();
    auto def = read<Elf64_Verdef>(offset_of(at, sizeof(Elf64_Verdef), kTable), kTable);
    auto aux = read<Elf64_Verdaux>(offset_of(at + def.vd_aux, sizeof(Elf64_Verdaux), kTable), kTable);
    versions.push_back(text(aux.vda_name, "a symbol version's name"));
    if (!def.vd_next) break;
    at += def.vd_next;
  }
}

// The dynamic symbol table states no length of its own; the hash tables do.
uint64_t Elf::count_symbols(uint64_t hash, uint64_t gnu_hash) const {
  constexpr const char *kHash = "the symbol hash table";
  if (!gnu_hash && !hash) fail("malformed: no symbol hash table");
  uint64_t count = 0;
  if (hash) {
    auto at = offset_of(hash, 8, kHash);
    uint64_t buckets = read<uint32_t>(at, kHash);
    count = read<uint32_t>(at + 4, kHash);
    if (!buckets) fail("malformed: the symbol hash table has no buckets");
    offset_of(hash, 8 + 4 * (buckets + count), kHash);
  }
  if (!gnu_hash) return count;
  auto at = offset_of(gnu_hash, 16, kHash);
  uint64_t buckets = read<uint32_t>(at, kHash), first = read<uint32_t>(at + 4, kHash),
           bloom = read<uint32_t>(at + 8, kHash);
  if (!buckets || !std::has_single_bit(bloom)) fail("malformed: the symbol hash table has impossible sizes");
  uint64_t bucket_address = gnu_hash + 16 + 8 * bloom, chains = bucket_address + 4 * buckets, last = 0;
  auto bucket_at = offset_of(bucket_address, 4 * buckets, kHash);
  offset_of(gnu_hash, 16 + 8 * bloom, kHash);
  for (uint64_t i = 0; i < buckets; ++i) last = std::max<uint64_t>(last, read<uint32_t>(bucket_at + 4 * i, kHash));
  if (!last) return std::max(count, first);
  if (last < first) fail("malformed: the symbol hash table contradicts itself");
  // A chain ends at the first odd hash.
  while (!(read<uint32_t>(offset_of(chains + 4 * (last - first), 4, kHash), kHash) & 1)) ++last;
  return std::max(count, last + 1);
}

void Elf::read_symbols(uint64_t count) {
  auto at = offset_of(entries_[DT_SYMTAB], count * sizeof(Elf64_Sym), "the symbol table");
  const bool versioned = entries_.count(DT_VERSYM);
  const auto version_at = versioned ? offset_of(entries_[DT_VERSYM], count * 2, "the symbol version table") : 0;
  for (uint64_t i = 1; i < count; ++i) {
    auto s = read<Elf64_Sym>(at + i * sizeof(Elf64_Sym), "the symbol table");
    auto name = text(s.st_name, "a symbol's name");
    int bind = ELF64_ST_BIND(s.st_info), visibility = ELF64_ST_VISIBILITY(s.st_other), type = ELF64_ST_TYPE(s.st_info);
    if (s.st_shndx == SHN_UNDEF) {
      auto index = versioned ? read<uint16_t>(version_at + 2 * i, "the symbol version table") & kVersionIndex : 0;
      auto version = wanted_.find(uint16_t(index));
      undefined.push_back({name, version == wanted_.end() ? "" : version->second, bind == STB_WEAK});
    } else if (bind != STB_LOCAL && (visibility == STV_DEFAULT || visibility == STV_PROTECTED)) {
      exports_.push_back({name, s.st_value, s.st_size, type == STT_OBJECT});
    }
  }
}

const Elf::Symbol *Elf::find(std::string_view name) const {
  for (auto &s : exports_)
    if (s.name == name) return &s;
  return nullptr;
}

std::string_view Elf::bytes(uint64_t address, uint64_t length, const char *what) const {
  return {file_.data() + offset_of(address, length, what), length};
}

std::string_view Elf::text_at(uint64_t address, const char *what) const {
  auto at = offset_of(address, 1, what);
  std::string_view rest(file_.data() + at, file_.size() - at);
  auto end = rest.find('\0');
  if (end == rest.npos) fail(fmt::format("malformed: {} is not terminated", what));
  return bytes(address, end, what);
}

// Whether DT_RELR names the word at `address`: an even entry is an address, an odd one tells by its bits which
// of the 63 words after the last are meant too.
bool Elf::packed_relative(uint64_t address) const {
  if (!entries_.count(DT_RELR)) return false;
  constexpr const char *kTable = "the packed relocation table";
  auto size = entries_.count(DT_RELRSZ) ? entries_.at(DT_RELRSZ) : 0;
  auto at = offset_of(entries_.at(DT_RELR), size, kTable);
  uint64_t next = 0;
  for (uint64_t i = 0; i + 8 <= size; i += 8) {
    auto entry = read<uint64_t>(at + i, kTable);
    if (!(entry & 1)) {
      if (entry == address) return true;
      next = entry + 8;
      continue;
    }
    auto word = (address - next) / 8;
    if (address >= next && (address - next) % 8 == 0 && word < 63 && entry >> (word + 1) & 1) return true;
    next += 63 * 8;
  }
  return false;
}

uint64_t Elf::pointer_at(uint64_t address, const char *what) const {
  constexpr const char *kTable = "the relocation table";
  auto in_place = read<uint64_t>(offset_of(address, 8, what), what);
  if (entries_.count(DT_RELA)) {
    auto size = entries_.count(DT_RELASZ) ? entries_.at(DT_RELASZ) : 0;
    auto at = offset_of(entries_.at(DT_RELA), size, kTable);
    for (uint64_t i = 0; i + sizeof(Elf64_Rela) <= size; i += sizeof(Elf64_Rela)) {
      auto r = read<Elf64_Rela>(at + i, kTable);
      if (r.r_offset != address) continue;
      auto type = ELF64_R_TYPE(r.r_info);
      if (type == kRelative) return uint64_t(r.r_addend);
      if (type != kAbsolute) return kElsewhere;
      auto symbols = entries_.at(DT_SYMTAB) + ELF64_R_SYM(r.r_info) * sizeof(Elf64_Sym);
      auto s = read<Elf64_Sym>(offset_of(symbols, sizeof(Elf64_Sym), "the symbol table"), "the symbol table");
      return s.st_shndx == SHN_UNDEF ? kElsewhere : s.st_value + uint64_t(r.r_addend);
    }
  }
  if (in_place && !packed_relative(address))
    fail(fmt::format("malformed: {} is a pointer that is not relocated", what));
  return in_place;
}

std::string_view Elf::machine() const { return kMachine == EM_X86_64 ? "x86-64" : "aarch64"; }

std::optional<std::string_view> Elf::note(std::string_view owner, uint32_t type) const {
  std::optional<std::string_view> found;
  for (auto &s : notes_) {
    const uint64_t align = s.p_align == 8 ? 8 : 4;
    auto padded = [&](uint64_t n) { return (n + align - 1) / align * align; };
    uint64_t at = 0;
    while (s.p_filesz - at >= sizeof(Elf64_Nhdr)) {
      auto h = read<Elf64_Nhdr>(s.p_offset + at, "a note");
      uint64_t name = at + sizeof h, text = padded(name + h.n_namesz), end = text + h.n_descsz;
      if (end > s.p_filesz) fail("malformed: a note ends past its segment");
      std::string_view who(file_.data() + s.p_offset + name, h.n_namesz);
      if (!who.empty() && who.back() == '\0') who.remove_suffix(1);
      if (who == owner && h.n_type == type) {
        if (found) fail(fmt::format("holds two {} notes", owner));
        found = std::string_view(file_.data() + s.p_offset + text, h.n_descsz);
      }
      at = std::min<uint64_t>(padded(end), s.p_filesz);
    }
  }
  return found;
}

namespace {

std::vector<char> bytes_of(const std::filesystem::path &file) {
  std::ifstream in(file, std::ios::binary);
  std::vector<char> bytes, block(1 << 16);
  while (in.read(block.data(), std::streamsize(block.size())), in.gcount() > 0)
    bytes.insert(bytes.end(), block.begin(), block.begin() + in.gcount());
  return bytes;
}

}  // namespace

ElfFile::ElfFile(const std::filesystem::path &file) : bytes_(bytes_of(file)), elf_(bytes_) {}

}  // namespace opgraft
