#include "infer/mindir_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace opgraft::mindir {

namespace fs = std::filesystem;

Mapping::~Mapping() {
  if (data) munmap(data, size);
}

std::shared_ptr<Mapping> map_file(const fs::path &file) {
  auto fail = [&](const std::string &why) { throw MindirError(fmt::format("{}: {}", file.string(), why)); };
  int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail(fmt::format("cannot open: {}", std::strerror(errno)));
  struct stat st {};
  bool regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
  auto m = std::make_shared<Mapping>();
  m->size = regular ? size_t(st.st_size) : 0;
  if (m->size) m->data = mmap(nullptr, m->size, PROT_READ, MAP_PRIVATE, fd, 0);
  int error = errno;
  close(fd);
  if (!regular) fail("not a regular file");
  if (m->data == MAP_FAILED) {
    m->data = nullptr;
    fail(fmt::format("cannot map: {}", std::strerror(error)));
  }
  return m;
}

Replacement::Replacement(fs::path target) : target_(std::move(target)), temporary_(target_.string() + ".XXXXXX") {
  fd_ = mkostemp(temporary_.data(), O_CLOEXEC);
  if (fd_ < 0) fail("cannot create");
}

Replacement::~Replacement() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void Replacement::write(const void *data, size_t size) {
  for (auto *p = static_cast<const char *>(data); size;) {
    ssize_t n = ::write(fd_, p, std::min(size, size_t(1) << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("cannot write");
    p += n, size -= size_t(n);
  }
}

void Replacement::skip(size_t size) {
  if (lseek(fd_, off_t(size), SEEK_CUR) < 0) fail("cannot write");
}

void Replacement::finish() {
  const off_t end = lseek(fd_, 0, SEEK_CUR);  // after what was skipped last
  if (end < 0 || ftruncate(fd_, end) != 0) fail("cannot write");
  if (fchmod(fd_, 0644) != 0 || fsync(fd_) != 0) fail("cannot write");
}

void Replacement::commit() {
  if (rename(temporary_.c_str(), target_.c_str()) != 0) fail("cannot replace");
  temporary_.clear();
}

void Replacement::fail(const char *what) {
  throw MindirError(fmt::format("{}: {}: {}", target_.string(), what, std::strerror(errno)));
}

}  // namespace opgraft::mindir
