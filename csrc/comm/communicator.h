// A communicator in one process: it collects what the local ranks submit, starts the k-th collective once all of them
// have submitted it, and runs one after the other in a thread of its own.

#ifndef EPL_COMM_COMMUNICATOR_H_
#define EPL_COMM_COMMUNICATOR_H_

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/collective.h"
#include "comm/job.h"
#include "comm/transport.h"

namespace epl {

class Communicator : public Listener {
 public:
  static Status Create(Job* job, const std::string& name, const std::vector<int>& rank_process,
                       const std::string& wanted, std::unique_ptr<Communicator>* communicator);
  ~Communicator() override;

  const std::string& name() const { return name_; }
  const Members& members() const { return members_; }
  const std::string& transport() const { return transport_name_; }
  Job* job() const { return job_; }

  int64_t Submit(int rank, const epl_collective& args, epl_allocate_fn allocate, epl_done_fn done, void* context);
  void Cancel(int64_t ticket);
  // Fails what is pending, ends the thread, frees the transport. Later submissions fail. The communicator itself must
  // outlive every caller that may still know it.
  void Close();

  void Wake() override;

 private:
  using Requests = std::vector<std::unique_ptr<Request>>;

  Communicator(Job* job, const std::string& name) : job_(job), name_(name) {}

  void Run();
  // All in the lock.
  bool OpIsComplete() const;
  void TakeAll(Requests* requests);

  void Finish(Requests requests, const Status& status);
  Status AwaitNewGeneration();
  std::string MissingRanks();
  void RunOp(Requests requests);
  Status Pass(const Op& op, const std::string& announcement, std::vector<std::string>* all);
  Status Move(const Op& op, Program* program);
  Status CauseOf(const Status& failure);
  void Allocate(const Op& op, Program* program, std::vector<Status>* results);
  std::string Who() const;
  std::string What(const epl_collective& args) const;

  Job* const job_;
  const std::string name_;
  Members members_;
  std::string transport_name_;
  Transport transport_;
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  // After a cancel or a timeout the ranks are out of step with each other: nothing is started before the generation
  // ends.
  std::string broken_by_;
  int64_t last_ticket_ = 0;
  std::vector<std::deque<std::unique_ptr<Request>>> queues_;  // by local rank
  std::vector<Request*> running_;

  // The thread's own.
  int64_t generation_ = 0;         // of what is being waited for
  int64_t joined_generation_ = 0;  // all processes have ended the ones before it
  uint64_t step_ = 0;
};

}  // namespace epl

#endif  // EPL_COMM_COMMUNICATOR_H_
