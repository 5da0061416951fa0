// The control plane: the TCP connections between process 0 and the others, and the thread that serves them.
// rendezvous.h makes the connections; coordinator.h and job.h know what the messages mean.
//
//     process 1 ----+
//     process 2 ----+---- process 0 (listens at hosts[0], coordinates)
//     process 3 ----+

#ifndef EPL_COMM_CONTROL_H_
#define EPL_COMM_CONTROL_H_

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/coordinator.h"
#include "comm/pulse.h"
#include "comm/rendezvous.h"
#include "comm/wire.h"

namespace epl {

class ControlPlane {
 public:
  // Called in the control thread, in the order of arrival.
  using Handler = std::function<void(std::string_view message)>;

  // Connects all processes of the job; blocks until all have appeared.
  static Status Start(const RendezvousOptions& options, Handler handler, std::unique_ptr<ControlPlane>* control);
  ~ControlPlane();

  // To the coordinator. Never blocks.
  void Send(const std::string& message);
  // Says goodbye, and waits a short time until the coordinator has heard it.
  void Leave();
  // The same number in every process of the job, and a different one in every job.
  uint64_t job_id() const { return job_id_; }
  // Seconds since each process was last heard; 0 for a process that is well or has left.
  std::vector<double> Silences();

 private:
  ControlPlane(Meeting meeting, int process, Handler handler);

  // Handles a message of `from` for the coordinator. False if it makes no sense; the other processes are told already.
  bool Coordinate(int from, std::string_view message);
  void Serve();      // the control thread
  void ServeOnce();  // one round of it
  bool TakePulse(size_t process, const std::string& frame, bool* sane);
  void Wake();
  bool AllHeardGoodbye();

  const Handler handler_;
  const uint64_t job_id_;
  int wake_fd_ = -1;
  std::atomic<bool> stop_{false};
  std::thread thread_;

  std::mutex mutex_;
  std::vector<std::unique_ptr<Connection>> connections_;  // by process; the others have one, to process 0
  std::unique_ptr<Coordinator> coordinator_;              // in process 0
  std::deque<std::string> inbox_;                         // messages for this process, to be handled by the thread
  Pulse pulse_;
  bool leaving_ = false;
  bool left_by_coordinator_ = false;
};

}  // namespace epl

#endif  // EPL_COMM_CONTROL_H_
