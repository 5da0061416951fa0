// Shared memory and futexes.

#include "comm/shm_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace epl {
namespace {

int OpenAnonymous() {
#ifdef SYS_memfd_create
  int fd = static_cast<int>(syscall(SYS_memfd_create, "epl", 1u /* MFD_CLOEXEC */));
  if (fd >= 0) return fd;
#endif
  // A kernel before 3.17: a name for the blink of an eye.
  std::string name = Format("/epl-%d-%lld", getpid(), static_cast<long long>(Now() * 1e9));
  int named = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (named >= 0) shm_unlink(name.c_str());
  return named;
}

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void Futex(std::atomic<uint32_t>* word, int op, uint32_t value, const timespec* timeout) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), op, value, timeout, nullptr, 0);
}

}  // namespace

Status ShmSegment::Create(int64_t size, std::unique_ptr<ShmSegment>* segment) {
  int fd = OpenAnonymous();
  if (fd < 0) return Status(EPL_INTERNAL, Format("cannot make shared memory: %s", strerror(errno)));
  std::unique_ptr<ShmSegment> made(new ShmSegment(fd, size));
  if (ftruncate(fd, size) != 0) {
    return Status(EPL_INTERNAL,
                  Format("cannot make %lld bytes of shared memory: %s", static_cast<long long>(size), strerror(errno)));
  }
  // Taken now, so that a full machine is an error here and not a crash later.
  int error = posix_fallocate(fd, 0, size);
  if (error != 0 && error != EOPNOTSUPP && error != EINVAL) {
    return Status(EPL_INTERNAL,
                  Format("cannot take %lld bytes of shared memory: %s", static_cast<long long>(size), strerror(error)));
  }
  Status status = made->Map();
  if (status.ok()) *segment = std::move(made);
  return status;
}

Status ShmSegment::Open(const std::string& path, int64_t size, std::unique_ptr<ShmSegment>* segment) {
  int maker = 0, number = 0, end = 0;
  if (sscanf(path.c_str(), "/proc/%d/fd/%d%n", &maker, &number, &end) != 2 || path.size() != static_cast<size_t>(end)) {
    return Status(EPL_FAILED_PRECONDITION, "'" + path + "' is no path of shared memory");
  }
  int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    return Status(EPL_FAILED_PRECONDITION, Format("cannot open shared memory %s: %s", path.c_str(), strerror(errno)));
  }
  std::unique_ptr<ShmSegment> opened(new ShmSegment(fd, size));
  if (lseek(fd, 0, SEEK_END) != size) {
    return Status(EPL_FAILED_PRECONDITION, path + " is not the shared memory of this job (another pid namespace?)");
  }
  Status status = opened->Map();
  if (!status.ok()) return status;
  opened->Seal();
  *segment = std::move(opened);
  return Status();
}

Status ShmSegment::Map() {
  void* data = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, 0);
  if (data == MAP_FAILED) return Status(EPL_INTERNAL, Format("cannot map shared memory: %s", strerror(errno)));
  data_ = static_cast<uint8_t*>(data);
  return Status();
}

ShmSegment::~ShmSegment() {
  if (data_ != nullptr) munmap(data_, size_);
  Seal();
}

std::string ShmSegment::path() const { return Format("/proc/%d/fd/%d", getpid(), fd_); }

void ShmSegment::Seal() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

std::string BootId() {
  char id[64] = "";
  FILE* file = fopen("/proc/sys/kernel/random/boot_id", "r");
  if (file == nullptr) return id;
  size_t size = fread(id, 1, sizeof(id) - 1, file);
  fclose(file);
  id[size] = '\0';
  return id;
}

void ShmWord::Publish(uint32_t next) {
  value.store(next, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) != 0) Wake();
}

void ShmWord::Wake() { Futex(&value, FUTEX_WAKE, INT_MAX, nullptr); }

bool WaitFor(ShmWord* word, double spin_s, const std::function<bool()>& ready, const std::function<bool()>& give_up) {
  if (ready()) return true;
  for (double end = Now() + spin_s; Now() < end;) {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      Relax();
    }
  }
  for (int i = 0; i < 2; ++i) {
    sched_yield();
    if (ready()) return true;
  }
  const timespec nap = {0, 50 * 1000 * 1000};
  for (;;) {
    if (give_up()) return ready();
    uint32_t seen = word->value.load(std::memory_order_seq_cst);
    word->sleepers.fetch_add(1, std::memory_order_seq_cst);
    if (!ready() && word->value.load(std::memory_order_seq_cst) == seen) Futex(&word->value, FUTEX_WAIT, seen, &nap);
    word->sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (ready()) return true;
  }
}

}  // namespace epl
