// The fuzzers' seeds through the readers, with operators that the sanitizer builds instrument (a fuzzer's are not).
// OPGRAFT_CORPUS names another folder with mindir/, npy/, checkpoint/, manifest/ and elf/.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "infer/checkpoint.h"
#include "infer/mindir.h"
#include "infer/npy.h"
#include "opgraft/abi.h"
#include "registry/descriptor.h"
#include "registry/elf.h"

namespace opgraft {
namespace {

namespace fs = std::filesystem;

struct Count {
  int read = 0, refused = 0;
};

template <class Refusal, class Read> Count each(const std::string &name, Read read) {
  const char *other = std::getenv("OPGRAFT_CORPUS");
  Count count;
  for (auto &entry : fs::directory_iterator(fs::path(other ? other : OPGRAFT_CORPUS_DIR) / name)) {
    SCOPED_TRACE(entry.path().string());
    try {
      read(entry.path());
      ++count.read;
    } catch (const Refusal &e) {
      EXPECT_NE(std::string(e.what()), "");
      ++count.refused;
    } catch (const std::exception &e) {
      ADD_FAILURE() << "an error of another kind: " << e.what();
    }
  }
  EXPECT_GT(count.read, 0);
  EXPECT_GT(count.refused, 0);
  return count;
}

std::string bytes(const fs::path &file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Corpus, Models) {
  auto &registry = Registry::global();
  Count c = each<MindirError>("mindir", [&](const fs::path &file) { read_mindir(file, registry); });
  if (!std::getenv("OPGRAFT_CORPUS")) {
    EXPECT_GT(c.read, c.refused / 4) << "do the models still mean what they say?";
  }
}

TEST(Corpus, Arrays) { each<Error>("npy", read_npy); }

TEST(Corpus, Checkpoints) { each<MindirError>("checkpoint", read_checkpoint); }

TEST(Corpus, Manifests) {
  each<ManifestError>("manifest", [](const fs::path &file) { parse_manifests(bytes(file), file.string()); });
}

TEST(Corpus, SharedObjects) {
  each<ElfError>("elf", [](const fs::path &file) {
    std::string data = bytes(file);
    Elf elf(data);
    elf.note(OPGRAFT_NOTE_OWNER, OPGRAFT_NOTE_TYPE);
    Manifest seeds;
    seeds.name = seeds.version = "fuzz";
    if (auto *s = elf.find("opgraft_op_Probe")) descriptor_in(elf, *s, seeds);
  });
}

}  // namespace
}  // namespace opgraft
