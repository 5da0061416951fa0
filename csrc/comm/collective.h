// One collective as the ranks of one process describe it: what a rank submitted, what all its ranks submitted together,
// and how descriptions are compared, within a process and between processes.

#ifndef EPL_COMM_COLLECTIVE_H_
#define EPL_COMM_COLLECTIVE_H_

#include <stdint.h>

#include <string>
#include <vector>

#include "comm/epl_comm.h"
#include "comm/status.h"

namespace epl {

// Which process owns which rank, seen from one of the processes.
struct Members {
  std::vector<int> rank_process;           // by rank: index in the job
  std::vector<int> processes;              // the members, in the order of their first rank
  std::vector<std::vector<int>> ranks_of;  // by member: its ranks, ascending
  int self = 0;                            // this process among the members

  int size() const { return static_cast<int>(rank_process.size()); }
  int num_members() const { return static_cast<int>(processes.size()); }
  const std::vector<int>& local_ranks() const { return ranks_of[self]; }
  // The member that owns `rank`.
  int member_of(int rank) const;
};

// What one rank submitted.
struct Request {
  int64_t ticket = 0;
  int rank = 0;
  epl_collective args = {};
  epl_allocate_fn allocate = nullptr;
  epl_done_fn done = nullptr;
  void* context = nullptr;
  double since = 0;
  bool cancelled = false;
  Status error;           // the description makes no sense
  void* event = nullptr;  // nccl: marks the point of args.stream at which the buffers are ready

  // The error of a description that makes no sense by itself.
  Status Check(const Members& members) const;
};

// The submissions that this process's ranks made for one collective.
struct Op {
  std::vector<Request*> requests;  // by local rank

  const epl_collective& args() const { return requests[0]->args; }
};

const char* NameOf(epl_kind kind);
const char* NameOf(epl_dtype dtype);
// "'grads/0' (all_reduce)"
std::string Label(const epl_collective& args);

// What a process tells the others about an op: enough to see whether they mean the same, to name the difference, and to
// size the outputs.
struct Announcement {
  Status error;  // the ranks of that process do not fit together already
  int rank = 0;  // its first rank, which speaks for the others
  std::string key;
  int32_t kind = 0, dtype = 0, reduce_op = 0, root = 0;
  int64_t row_elements = 0;
  int32_t num_buffers = 0;
  int64_t total = 0;
  uint64_t fingerprint = 0;     // of all counts
  std::vector<int64_t> counts;  // the first kMaxCounts of them
  std::vector<int64_t> rows;    // by local rank; all_to_all: by local rank and target rank

  static constexpr int kMaxCounts = 200;
  static constexpr int kMaxText = 1024;
  // How long Pack's result can be.
  static int64_t MaxSize(const Members& members);

  std::string Pack() const;
  static Announcement Unpack(const std::string& bytes);
};

// Compares the local requests with each other and describes them.
Announcement Announce(const Op& op, const Members& members);
// The error that every process reports if the processes do not mean the same. `all` is by member.
Status CheckSame(const std::vector<Announcement>& all, const Members& members, const std::string& communicator);

}  // namespace epl

#endif  // EPL_COMM_COLLECTIVE_H_
