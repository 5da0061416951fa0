// The messages of a running job: what may be said, and the one place where bytes that came over the wire are taken
// apart and checked. Who is told what is coordinator.h's and job.h's business.

#ifndef EPL_COMM_MESSAGES_H_
#define EPL_COMM_MESSAGES_H_

#include <stdint.h>

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

// A message to the coordinator; the fields that its kind does not have are empty.
struct ToCoordinator {
  Message kind = Message::kGoodbye;
  std::string key;
  std::vector<int> members;
  std::string bytes;
  int64_t generation = 0;
  std::string reason;
};

// A message of the coordinator.
struct FromCoordinator {
  Message kind = Message::kLeft;
  std::string key;
  std::vector<std::string> parts;
  std::vector<int> missing;
  int process = 0;
  int64_t generation = 0;
  std::string reason;
  std::vector<double> silences;  // of kSilent: seconds by process, 0 for those that it does not name
};

// Takes a message apart. False if it is none of a job of `num_processes`: another number of bytes than its counts and
// lengths say, a process, a generation or a silence that cannot be, a process named twice.
bool Parse(std::string_view message, int num_processes, ToCoordinator* parsed);
bool Parse(std::string_view message, int num_processes, FromCoordinator* parsed);

}  // namespace epl

#endif  // EPL_COMM_MESSAGES_H_
