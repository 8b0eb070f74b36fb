// One test per way a file is refused, then what a loaded operator promises.
#include "registry/registry.h"

#include <dlfcn.h>
#include <elf.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <thread>

#include "registry/elf.h"

namespace opgraft {
namespace {

namespace fs = std::filesystem;
const fs::path kOps = OPGRAFT_OPS_DIR, kBad = OPGRAFT_BAD_OPS_DIR;

std::string read(const fs::path &file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class Loading : public testing::Test {
 protected:
  void SetUp() override {
    unsetenv("OPGRAFT_PROBE_RAN");
    unsetenv("MS_CUSTOM_AOT_WHITE_LIST");
    std::string name = (fs::temp_directory_path() / "opgraft_registry_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = fs::canonical(name);
  }
  void TearDown() override {
    unsetenv("MS_CUSTOM_AOT_WHITE_LIST");
    fs::remove_all(dir_);
  }
  fs::path write(const std::string &name, const std::string &bytes) {
    std::ofstream(dir_ / name, std::ios::binary) << bytes;
    return dir_ / name;
  }
  fs::path copy(const fs::path &from, const std::string &name) {
    fs::copy_file(from, dir_ / name);
    return dir_ / name;
  }
  // Expects a refusal at `step` whose message names the path and holds `cause`; examine() must agree.
  void refused(const fs::path &file, const std::string &step, const std::string &cause) {
    auto before = registry_.list().size();
    try {
      registry_.load(file);
      FAIL() << file << " was loaded";
    } catch (const LoadError &e) {
      std::string what = e.what();
      EXPECT_EQ(e.step, step) << what;
      EXPECT_EQ(e.path, file.string());
      EXPECT_EQ(what.find(file.string() + ": "), 0u) << what;
      EXPECT_NE(what.find(cause), what.npos) << what;
      if (step != "registered") {
        auto report = examine(file, whitelist_);
        ASSERT_FALSE(report.empty());
        EXPECT_EQ(report.back().step, step);
        EXPECT_FALSE(report.back().ok);
        EXPECT_EQ(file.string() + ": " + report.back().detail, what);
        for (size_t i = 0; i + 1 < report.size(); ++i) EXPECT_TRUE(report[i].ok) << report[i].step;
      }
    }
    EXPECT_EQ(registry_.list().size(), before);
  }
  static bool code_ran() { return std::getenv("OPGRAFT_PROBE_RAN") != nullptr; }

  Registry registry_;
  std::vector<fs::path> whitelist_;
  fs::path dir_;
};

TEST_F(Loading, MissingFile) {
  refused(dir_ / "none.so", "file", "no such file");
  EXPECT_THROW(registry_.load(dir_ / "none.so"), FileMissing);
}
TEST_F(Loading, Directory) { refused(dir_, "file", "not a regular file"); }
TEST_F(Loading, DanglingLink) {
  fs::create_symlink(dir_ / "nowhere", dir_ / "link.so");
  EXPECT_THROW(registry_.load(dir_ / "link.so"), FileMissing);
}
TEST_F(Loading, EmptyFile) { refused(write("empty.so", ""), "elf", "the file is empty"); }
TEST_F(Loading, NotAnElf) { refused(write("text.so", "name: not an object\n"), "elf", "no ELF magic"); }

TEST_F(Loading, TruncatedAnywhere) {
  auto whole = read(kBad / "probe_1_0.so");
  std::set<size_t> lengths{1, 3, 4, 16, 63, 64, 65, whole.size() - 1};
  for (size_t n = 0; n < whole.size(); n += 101) lengths.insert(n);
  for (auto n : lengths) {
    auto file = write("cut.so", whole.substr(0, n));
    EXPECT_THROW(registry_.load(file), LoadError) << n << " bytes";
  }
  EXPECT_FALSE(code_ran());
  EXPECT_NO_THROW(registry_.load(write("whole.so", whole)));
}
TEST_F(Loading, TruncatedSwiGLU) {
  auto whole = read(kOps / "swiglu.so");
  for (size_t n = 0; n < whole.size(); n += 4099) {
    auto report = examine(write("cut.so", whole.substr(0, n)));
    EXPECT_EQ(report.back().step, "elf") << n << " bytes: " << report.back().detail;
  }
}
TEST_F(Loading, DamagedTablesAreReadOrRefused) {
  // Every byte of the headers and of the first page, which holds the note and the symbol tables, set
  // to all ones: the steps before dlopen must neither crash nor hang.
  auto whole = read(kBad / "no_note.so");  // refused before dlopen in any case
  for (size_t at = 0; at < std::min<size_t>(whole.size(), 4096); ++at) {
    auto bytes = whole;
    bytes[at] = char(bytes[at] == '\xff' ? 0 : 0xff);
    EXPECT_FALSE(examine(write("damaged.so", bytes)).back().ok) << "byte " << at;
  }
  EXPECT_FALSE(code_ran());
}
TEST_F(Loading, DamagedRelocationsAndDescriptorsAreReadOrRefused) {
  // Every third byte behind the first page of an operator: the steps before dlopen must neither
  // crash nor hang on any of them. What they let pass is not opened: the file needs a library that is not there.
  auto whole = read(kBad / "missing_dependency.so");
  for (size_t at = 4096; at < whole.size(); at += 3) {
    auto bytes = whole;
    bytes[at] = char(bytes[at] == '\xff' ? 0 : 0xff);
    EXPECT_FALSE(examine(write("damaged.so", bytes)).back().ok) << "byte " << at;
  }
  EXPECT_FALSE(code_ran());
}
TEST_F(Loading, OtherArchitecture) {
  auto bytes = read(kOps / "swiglu.so");
  uint16_t machine;
  std::memcpy(&machine, &bytes[offsetof(Elf64_Ehdr, e_machine)], 2);
  machine = machine == EM_AARCH64 ? EM_X86_64 : EM_AARCH64;
  std::memcpy(&bytes[offsetof(Elf64_Ehdr, e_machine)], &machine, 2);
  refused(write("other.so", bytes), "elf", "built for");
  bytes[EI_CLASS] = ELFCLASS32;
  refused(write("small.so", bytes), "elf", "64-bit");
}
TEST_F(Loading, Executable) {
  auto bytes = read(kOps / "swiglu.so");
  bytes[offsetof(Elf64_Ehdr, e_type)] = ET_EXEC;
  refused(write("program.so", bytes), "elf", "must be a shared object");
}
TEST_F(Loading, NoNote) { refused(kBad / "no_note.so", "abi", "no opgraft note"); }
TEST_F(Loading, NewerAbiInNote) { refused(kBad / "abi_newer.so", "abi", "opgraft ABI 2.3, this opgraft has ABI 1."); }
TEST_F(Loading, MalformedYaml) { refused(kBad / "malformed_yaml.so", "manifest", "op.yaml:"); }
TEST_F(Loading, MissingSymbol) { refused(kBad / "missing_symbol.so", "symbols", "opgraft_op_Absent is missing"); }
TEST_F(Loading, ExtraExport) { refused(kBad / "extra_export.so", "symbols", "manifest disagrees with exports"); }
TEST_F(Loading, MissingDependency) { refused(kBad / "missing_dependency.so", "dependencies", "libvanished.so"); }
TEST_F(Loading, UndefinedSymbol) {
  refused(kBad / "undefined_symbol.so", "dependencies", "undefined symbol: opgraft_test_defined_nowhere");
}
TEST_F(Loading, NeededLibraryWithoutTheSymbol) {
  refused(kBad / "lacking_dependency.so", "dependencies", "undefined symbol: vanished");
}
TEST_F(Loading, NeededLibraryWithoutTheSymbolVersion) {
  refused(kBad / "older_dependency.so", "dependencies", "undefined symbol: vanished@LIBVERSIONED_2");
}
TEST_F(Loading, NeededLibraryThatNeedsAMissingOne) {
  refused(kBad / "indirect_dependency.so", "dependencies",
          "libindirect.so needs the library libvanished.so, which is not found");
}
TEST_F(Loading, NeededLibrariesThatAreThere) {
  for (auto name : {"present_dependency.so", "newer_dependency.so", "inherited_rpath.so"}) {
    EXPECT_FALSE(::dlopen("libpresent.so", RTLD_LAZY | RTLD_NOLOAD));
    EXPECT_NO_THROW(Registry().load(kBad / name)) << name;
  }
}
TEST_F(Loading, NoCodeRunsBeforeAllChecksButTheScoreHavePassed) {
  for (auto name : {"no_note", "abi_newer", "malformed_yaml", "missing_symbol", "extra_export", "descriptor_newer",
                    "descriptor_short", "descriptor_name", "null_kernel", "missing_dependency", "undefined_symbol",
                    "lacking_dependency", "older_dependency", "indirect_dependency"})
    EXPECT_FALSE(examine(kBad / (std::string(name) + ".so")).back().ok) << name;
  EXPECT_FALSE(code_ran());
  registry_.load(kBad / "probe_1_0.so");
  EXPECT_TRUE(code_ran());  // the constructor is there and would have told
  unsetenv("OPGRAFT_PROBE_RAN");
  EXPECT_THROW(registry_.load(kBad / "duplicate.so"), LoadError);
  EXPECT_FALSE(code_ran());
  EXPECT_FALSE(examine(kBad / "score_zero.so").back().ok);
  EXPECT_TRUE(code_ran());  // its score is a function
}
TEST_F(Loading, NewerAbiInDescriptorOnly) { refused(kBad / "descriptor_newer.so", "descriptor", "opgraft ABI 2.0"); }
TEST_F(Loading, ShortDescriptor) { refused(kBad / "descriptor_short.so", "descriptor", "struct_size must be"); }
TEST_F(Loading, DescriptorOfAnotherName) { refused(kBad / "descriptor_name.so", "descriptor", "must be 'Probe'"); }
TEST_F(Loading, NullKernel) { refused(kBad / "null_kernel.so", "descriptor", "kernel must not be null"); }
TEST_F(Loading, ScoreZero) { refused(kBad / "score_zero.so", "score", "cannot run on this machine"); }
TEST_F(Loading, DuplicateNameAndVersion) {
  registry_.load(kBad / "probe_1_0.so");
  refused(kBad / "duplicate.so", "registered",
          "Probe@1.0.0 is registered already, from " + (kBad / "probe_1_0.so").string());
}
TEST_F(Loading, ChangedFileOfTheSameVersion) {
  auto file = copy(kBad / "probe_1_0.so", "probe.so");
  registry_.load(file);
  fs::rename(copy(kBad / "probe_1_0.so", "new.so"), file);
  refused(file, "registered", "earlier state of this file");
}

TEST_F(Loading, OutsideWhitelist) {
  auto inside = copy(kBad / "probe_1_0.so", "probe.so");
  registry_.set_whitelist(whitelist_ = {dir_});
  refused(kBad / "probe_1_2.so", "whitelist", "outside the white list");
  fs::create_symlink(kBad / "probe_1_2.so", dir_ / "link.so");
  refused(dir_ / "link.so", "whitelist", "its real path is");
  refused(dir_ / ".." / dir_.filename() / "link.so", "whitelist", "its real path is");
  EXPECT_FALSE(code_ran());
  EXPECT_NO_THROW(registry_.load(inside));
  // The folder's name as a mere prefix does not allow its neighbour.
  auto neighbour = fs::path(dir_.string() + "_neighbour");
  fs::create_directory(neighbour);
  fs::copy_file(kBad / "probe_1_2.so", neighbour / "probe.so");
  refused(neighbour / "probe.so", "whitelist", "outside the white list");
  fs::remove_all(neighbour);
}
TEST_F(Loading, WhitelistOfMindSpore) {
  setenv("MS_CUSTOM_AOT_WHITE_LIST", dir_.c_str(), 1);
  refused(kBad / "probe_1_0.so", "whitelist", dir_.string());
  fs::create_directory_symlink(dir_, dir_ / "again");
  setenv("MS_CUSTOM_AOT_WHITE_LIST", (dir_ / "again").c_str(), 1);
  EXPECT_NO_THROW(registry_.load(copy(kBad / "probe_1_0.so", "probe.so")));
  EXPECT_NO_THROW(registry_.load(kOps / "swiglu.so"));  // opgraft's own folder
  setenv("MS_CUSTOM_AOT_WHITE_LIST", (dir_ / "absent").c_str(), 1);
  refused(kBad / "probe_1_2.so", "whitelist", "outside the white list");
}

TEST_F(Loading, NewerMinorAndLeastDescriptor) {
  EXPECT_NO_THROW(Registry().load(kBad / "descriptor_minor.so"));
  auto op = registry_.load(kBad / "descriptor_least.so").at(0);
  EXPECT_NE(op->native->kernel, nullptr);
  EXPECT_EQ(op->native->last_error, nullptr);  // the file has it, its struct_size does not reach it
  EXPECT_EQ(op->native->score, nullptr);
  EXPECT_EQ(op->score, 1);
}
TEST_F(Loading, PackedRelocations) {
  auto bytes = read(kBad / "packed_relocations.so");
  std::vector<char> file(bytes.begin(), bytes.end());
  Elf elf(file);
  auto *s = elf.find("opgraft_op_Probe");
  ASSERT_NE(s, nullptr);
  auto at = elf.bytes(s->address + offsetof(opgraft_op, name), 8, "name");
  EXPECT_NE(at, std::string_view("\0\0\0\0\0\0\0\0", 8));  // the address lies in place: it is packed
  EXPECT_EQ(elf.text_at(elf.pointer_at(s->address + offsetof(opgraft_op, name), "name"), "name"), "Probe");
  EXPECT_NO_THROW(registry_.load(kBad / "packed_relocations.so"));
}
constexpr size_t kSwiglus = 6;  // operators in swiglu.so: three forms and their gradients
TEST_F(Loading, StrippedFile) {
  auto file = copy(kOps / "swiglu.so", "swiglu.so");
  ASSERT_EQ(std::system(("strip -s " + file.string()).c_str()), 0) << "strip comes with the compiler's binutils";
  EXPECT_EQ(registry_.load(file).size(), kSwiglus);
}
TEST_F(Loading, FileWithoutSections) {
  auto bytes = read(kOps / "swiglu.so");
  Elf64_Ehdr h;
  std::memcpy(&h, bytes.data(), sizeof h);
  bytes.resize(h.e_shoff);
  h.e_shoff = h.e_shnum = h.e_shstrndx = 0;
  std::memcpy(bytes.data(), &h, sizeof h);
  EXPECT_EQ(registry_.load(write("bare.so", bytes)).size(), kSwiglus);
}
TEST_F(Loading, ReportOfAGoodFile) {
  auto report = examine(kOps / "swiglu.so");
  std::vector<std::string> steps;
  for (auto &c : report) {
    steps.push_back(c.step);
    EXPECT_TRUE(c.ok && !c.detail.empty()) << c.step;
  }
  EXPECT_EQ(steps, (std::vector<std::string>{"file", "whitelist", "elf", "digest", "abi", "manifest", "symbols",
                                             "descriptor", "dependencies", "dlopen", "score"}));
}
TEST_F(Loading, SameFileAgainGivesItsOpsAgain) {
  auto first = registry_.load(kBad / "probe_1_0.so");
  fs::create_symlink(kBad / "probe_1_0.so", dir_ / "link.so");
  EXPECT_EQ(registry_.load(dir_ / "link.so"), first);
  EXPECT_EQ(registry_.list().size(), 1u);
}
TEST_F(Loading, DirectoryReturnsRefusals) {
  copy(kBad / "probe_1_0.so", "a.so");
  copy(kBad / "probe_1_2.so", "b.so");
  copy(kBad / "no_note.so", "c.so");
  copy(kBad / "no_note.so", "libhelper.so");
  write("notes.txt", "");
  auto refusals = registry_.load_directory(dir_);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].path, (dir_ / "c.so").string());
  EXPECT_EQ(registry_.list().size(), 2u);
  EXPECT_EQ(registry_.load_directory(dir_ / "absent").size(), 1u);
}

TEST_F(Loading, VersionsSideBySide) {
  for (auto name : {"probe_1_0.so", "probe_2_0.so", "probe_1_2.so"}) registry_.load(kBad / name);
  auto version = [&](const char *spec) { return registry_.resolve(spec)->manifest.version; };
  EXPECT_EQ(version("Probe"), "2.0.0");
  EXPECT_EQ(version("Probe@1.0.0"), "1.0.0");
  EXPECT_EQ(version("Probe@^1"), "1.2.0");
  EXPECT_EQ(version("Probe@^1.1"), "1.2.0");
  EXPECT_EQ(version("Probe@^1.2.0"), "1.2.0");
  EXPECT_EQ(version("Probe@^2"), "2.0.0");
  for (auto none : {"Probe@1.0.1", "Probe@^1.3", "Probe@^3", "Prob", "", "Probe@", "Probe@^", "Probe@1", "Probe@1.2",
                    "Probe@^1.2.0.0", "Probe@^1.", "Probe@x", "Probe@^-1", "Probe@^99999999999"}) {
    EXPECT_EQ(registry_.find(none), nullptr) << none;
    EXPECT_THROW(registry_.resolve(none), UnknownOp) << none;
  }
  auto all = registry_.list();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0]->spec(), "Probe@1.0.0");
  EXPECT_EQ(all[2]->spec(), "Probe@2.0.0");
}

float run(const OpPtr &op, float x) {
  float y = 0;
  int64_t shape[] = {1};
  opgraft_tensor in{&x, shape, 1, OPGRAFT_FLOAT32, 1}, out{&y, shape, 1, OPGRAFT_FLOAT32, 1};
  opgraft_call call{};
  call.struct_size = sizeof call;
  call.n_inputs = call.n_outputs = 1;
  call.inputs = &in;
  call.outputs = &out;
  EXPECT_EQ(op->native->kernel(&call), OPGRAFT_OK);
  return y;
}

TEST_F(Loading, ResolvedOpOutlivesRegistryAndFile) {
  OpPtr op;
  {
    Registry registry;
    registry.load(copy(kBad / "probe_1_0.so", "probe.so"));
    op = registry.resolve("Probe");
  }
  fs::remove(dir_ / "probe.so");
  EXPECT_EQ(run(op, 41), 42);
}
TEST_F(Loading, ManyThreadsLoadAndResolve) {
  registry_.load(kBad / "probe_1_0.so");
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 30; ++i) {
        EXPECT_EQ(registry_.load(kBad / (i % 2 ? "probe_1_2.so" : "probe_2_0.so")).size(), 1u);
        EXPECT_EQ(run(registry_.resolve("Probe@^1"), float(i)), float(i + 1));
        EXPECT_THROW(registry_.load(kBad / "no_note.so"), LoadError);
        EXPECT_GE(registry_.list().size(), 2u);
      }
    });
  for (auto &t : threads) t.join();
  EXPECT_EQ(registry_.list().size(), 3u);
}
TEST(GlobalRegistry, HoldsTheOperatorsBesideTheLibrary) {
  EXPECT_EQ(Registry::global().resolve("SwiGLU@^1")->name(), "SwiGLU");
  EXPECT_EQ(&Registry::global(), &Registry::global());
}

}  // namespace
}  // namespace opgraft
