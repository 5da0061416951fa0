// How the processes of a job find each other: process 0 listens and admits whoever proves to be of the job; the others
// connect to it until they are admitted. Both say every 10 s whom they wait for, and why. The result are the
// connections of the control plane. What is said before is handshake.h's business.

#ifndef EPL_COMM_RENDEZVOUS_H_
#define EPL_COMM_RENDEZVOUS_H_

#include <memory>
#include <string>
#include <vector>

#include "comm/handshake.h"
#include "comm/status.h"
#include "comm/wire.h"

namespace epl {

struct RendezvousOptions {
  Identity identity;
  std::vector<std::string> hosts;
  int listen_fd = -1;
  double start_timeout_s = 300;

  // "worker 1 (127.0.0.1:2222)": how every message names a process.
  std::string NameOf(int process) const;
};

struct Meeting {
  uint64_t job_id = 0;                                   // the same in every process, another one in every start
  std::vector<std::unique_ptr<Connection>> connections;  // by process; the others have one, to process 0
};

// Connects this process with the others; blocks until all have appeared.
Status Meet(const RendezvousOptions& options, Meeting* meeting);

}  // namespace epl

#endif  // EPL_COMM_RENDEZVOUS_H_
