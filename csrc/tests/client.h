// The core's C ABI as the tests use it: a job and communicators that free themselves, and collectives that are waited
// for.

#ifndef EPL_TESTS_CLIENT_H_
#define EPL_TESTS_CLIENT_H_

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/epl_comm.h"
#include "comm/handshake.h"

namespace epl_test {

struct Options {
  int processes = 1;
  std::vector<std::string> hosts;  // by process
  int listen_fd = -1;
  double start_timeout = 20;
  double stall = 0;
  double timeout = 40;
  std::string job_name;
  std::string secret;  // empty: none
};
// hosts[0] is a free port on which `listen_fd` listens; the others have names nobody connects to.
Options MakeOptions(int processes);
// Gives process p the host 127.0.0.<hosts[p]>, so that the core takes equal ones for a machine; process 0 has 1.
void SetMachines(const std::vector<int>& hosts, Options* options);

// One rank's submission, to be waited for.
class Call {
 public:
  Call() = default;
  ~Call();
  Call(const Call&) = delete;

  // Buffers of each kind of output. For the kinds that allocate, `allocated` is the output.
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::vector<int64_t> counts;
  std::vector<int64_t> splits;
  std::vector<uint8_t> allocated;
  std::vector<int64_t> rows;
  bool refuse_allocation = false;
  int element_size = 4;
  std::string key;
  epl_collective args = {};

  // On GPUs, without a stream of the test's own: on one that the rank keeps.
  void Submit(epl_communicator* communicator, int rank);
  // Waits for `done`. Fails the test after `limit` seconds.
  int Wait(double limit = 30);
  bool WaitFor(double seconds);
  int code = -1;
  std::string message;
  int64_t ticket = 0;

 private:
  static void* Allocate(void* context, const int64_t* rows, int num_rows);
  static void Done(void* context, int code, const char* message);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool submitted_ = false;
  bool done_ = false;
};

class Job {
 public:
  // Fails the test if the job does not start.
  Job(const Options& options, int process);
  ~Job();
  void Stop();

  epl_communicator* Make(const std::string& name, const std::vector<int>& rank_process,
                         const std::string& transport = "auto");
  int TryMake(const std::string& name, const std::vector<int>& rank_process, const std::string& transport,
              std::string* message);
  epl_job* get() const { return job_; }

 private:
  epl_job* job_ = nullptr;
};

// What MACs of the tests are made with, in place of the HMAC that the core is given by its caller.
epl::Mac MacUnder(const std::string& secret);

int TryStart(const Options& options, int process, epl_job** job, std::string* message);

// An all_reduce (sum) of float32.
std::unique_ptr<Call> Sum(const std::string& key, std::vector<float>* data);
// Does one and checks that the sum is `expected` everywhere; for tests of something else.
int SumOnce(epl_communicator* communicator, const std::vector<int>& ranks, const std::string& key, int64_t count,
            std::string* message = nullptr);

// rank_process of `processes` with `each` ranks.
std::vector<int> Even(int processes, int each);
std::vector<int> RanksOf(const std::vector<int>& rank_process, int process);

}  // namespace epl_test

#endif  // EPL_TESTS_CLIENT_H_
