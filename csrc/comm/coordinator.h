// What process 0 does for the job: it relays events (which process ended, left, died or aborted) and gathers bytes by
// key. It turns messages into messages, and owns no socket and no thread.

#ifndef EPL_COMM_COORDINATOR_H_
#define EPL_COMM_COORDINATOR_H_

#include <stdint.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "comm/messages.h"

namespace epl {

class Coordinator {
 public:
  using Emit = std::function<void(int to, const std::string& message)>;

  Coordinator(int num_processes, Emit emit);

  // Handles a message of process `from`. Returns what is wrong with it, in words; empty if it makes sense.
  std::string Handle(int from, std::string_view message);
  // The connection to `process` is gone.
  void Lost(int process, const std::string& reason);
  bool gone(int process) const { return gone_[process]; }

 private:
  struct Gathering {
    std::vector<int> members;
    std::map<int, std::string> parts;
    std::set<int> gave_up;  // came and gave up after their time limit: not the processes that others wait for
  };

  void Broadcast(int except, const std::string& message);
  std::string HandleGather(int from, ToCoordinator message);
  void HandleWithdraw(int from, const std::string& key);
  void HandleQuery(int from, const std::string& key);

  const int num_processes_;
  const Emit emit_;
  std::vector<bool> gone_;  // left or died
  std::map<std::string, Gathering> gatherings_;
};

}  // namespace epl

#endif  // EPL_COMM_COORDINATOR_H_
