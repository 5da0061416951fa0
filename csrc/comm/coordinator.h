// What process 0 does for the job: it relays news (who ended, left, died, aborted) and gathers bytes by key. A value
// that turns messages into messages; it owns no socket and no thread.

#ifndef EPL_COMM_COORDINATOR_H_
#define EPL_COMM_COORDINATOR_H_

#include <stdint.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace epl {

// The first byte of every message of a running job.
enum class Message : uint8_t {
  // To the coordinator.
  kGather,         // key, members, bytes: answered by kGathered once every member has given its bytes
  kWithdraw,       // key: answered by kWithdrawn, unless kGathered is on its way
  kQuery,          // key: answered by kMissing
  kEndGeneration,  // generation, reason
  kAbort,          // reason
  kGoodbye,
  // From the coordinator.
  kGathered,   // key, number of parts, the parts in the order of the members
  kWithdrawn,  // key
  kMissing,    // key, number, processes
  kEnded,      // process, generation, reason
  kAborted,    // process, reason
  kLeft,       // process
  kDied,       // process, reason
  // Between the control planes, see pulse.h.
  kPulse,
  kSilent,  // number, then process and seconds of each
};

class Coordinator {
 public:
  using Emit = std::function<void(int to, const std::string& message)>;

  Coordinator(int num_processes, Emit emit);

  // A message of process `from`. False if it makes no sense.
  bool Handle(int from, std::string_view message);
  // The connection to `process` is gone.
  void Lost(int process, const std::string& reason);
  bool gone(int process) const { return gone_[process]; }

 private:
  struct Gathering {
    std::vector<int> members;
    std::map<int, std::string> parts;
    std::set<int> gave_up;  // were here and waited long enough: not the ones to be looked for
  };

  void Broadcast(int except, const std::string& message);
  bool HandleGather(int from, std::string_view message);

  const int num_processes_;
  const Emit emit_;
  std::vector<bool> gone_;  // left or died
  std::map<std::string, Gathering> gatherings_;
};

}  // namespace epl

#endif  // EPL_COMM_COORDINATOR_H_
