// Memory that the processes of one communicator on one machine share: how it is made and opened, and how one waits for
// a word in it. What lies in it is exchange_shm.cc's business.

#ifndef EPL_COMM_SHM_SEGMENT_H_
#define EPL_COMM_SHM_SEGMENT_H_

#include <stdint.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "comm/status.h"

namespace epl {

// Anonymous from its birth: it has no name in /dev/shm, so nothing is left over whenever and however a process ends.
// Another process opens it through /proc/<pid>/fd of its maker.
class ShmSegment {
 public:
  static Status Create(int64_t size, std::unique_ptr<ShmSegment>* segment);
  static Status Open(const std::string& path, int64_t size, std::unique_ptr<ShmSegment>* segment);
  ~ShmSegment();

  uint8_t* data() const { return data_; }
  // Where the other processes of this machine can open it, until Seal.
  std::string path() const;
  // Everyone has it.
  void Seal();

 private:
  ShmSegment(int fd, int64_t size) : fd_(fd), size_(size) {}
  Status Map();

  int fd_;
  const int64_t size_;
  uint8_t* data_ = nullptr;
};

// Identifies the running machine; the same in all containers on it.
std::string BootId();

// A counter in shared memory that can be waited for. Lies in a cache line of its own.
struct alignas(128) ShmWord {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;

  void Publish(uint32_t next);
  void Wake();
};

// Spins for `spin_s`, then sleeps, until ready() or until give_up() says so; then ready() once more. `word` is what
// changes before ready() turns true. Returns ready().
bool WaitFor(ShmWord* word, double spin_s, const std::function<bool()>& ready, const std::function<bool()>& give_up);

}  // namespace epl

#endif  // EPL_COMM_SHM_SEGMENT_H_
