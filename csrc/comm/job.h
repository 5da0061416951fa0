// A job as one of its processes sees it: which processes live, which generation runs, and whether a wait can still
// succeed. Processes also gather bytes by key here. The job owns the control plane; it knows communicators only as
// listeners that it wakes.

#ifndef EPL_COMM_JOB_H_
#define EPL_COMM_JOB_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/control.h"
#include "comm/status.h"

namespace epl {

class Job;

// An object that the job wakes when its state changes.
class Listener {
 public:
  virtual ~Listener() = default;
  // The state of the job changed: read it again. Any thread may call this; it must not block.
  virtual void Wake() = 0;
};

// Watches one wait and says when it must end: at the time limit, or earlier when a process died, left or ended the
// generation, or when the collective was cancelled. Reports a wait that stalls on stderr.
class StallWatch {
 public:
  using Missing = std::function<std::string()>;  // "rank 2 of worker 1 (host:port)"

  // `who` waits for `what`. `members` are the processes whose leaving ends the wait. A negative generation means that
  // the end of a generation does not end the wait.
  StallWatch(Job* job, std::vector<int> members, int64_t generation, std::string who, std::string what);

  void set_cancelled(std::function<bool()> cancelled) { cancelled_ = std::move(cancelled); }
  // The wait began at `start`: the warning and the time limit count from there.
  void set_start(double start) { start_ = start; }
  // Returns an error if the wait must end. Cheap unless something happened or much time has passed; call it often.
  Status Check(const Missing& missing);

 private:
  Job* const job_;
  const std::vector<int> members_;
  const int64_t generation_;
  const std::string who_;
  const std::string what_;
  std::function<bool()> cancelled_;
  double start_;
  double next_look_ = 0;
  double next_warning_ = 0;
  uint64_t seen_events_ = ~uint64_t{0};
};

class Job {
 public:
  static Status Start(const epl_job_options& options, std::unique_ptr<Job>* job);
  ~Job();

  int process() const { return process_; }
  int num_processes() const { return static_cast<int>(hosts_.size()); }
  std::string NameOf(int process) const;
  // The host part of its address.
  std::string HostOf(int process) const;
  uint64_t id() const { return control_ == nullptr ? 0 : control_->job_id(); }
  double stall_warning_s() const { return stall_warning_s_; }
  double timeout_s() const { return timeout_s_; }

  // Every member gives bytes under the same key and gets those of all, in the order of `members`. Keys may be used
  // again. When `watch` ends the wait, the job withdraws this process's bytes, but still returns a gathering that is
  // complete by then.
  Status Gather(const std::string& key, const std::vector<int>& members, const std::string& bytes, StallWatch* watch,
                std::vector<std::string>* parts);
  Status Exchange(const std::string& key, const std::string& bytes, std::vector<std::string>* parts);
  // The processes that have not given their bytes yet in the exchange `key`, which this process waits for. False if
  // process 0, which knows them, does not answer within a second.
  bool MissingInExchange(const std::string& key, std::vector<int>* missing);
  // Seconds since each process was last heard; 0 for a process that is well or has left.
  std::vector<double> Silences();
  // "; nothing was heard of worker 3 (host:port) for 40 s". A missing process may itself be waiting for that worker.
  std::string SilentWords();

  // ---- Generations.
  int64_t generation();
  // Ends `generation`, or the present one if it is negative; does nothing if that generation has ended. Waits until it
  // has ended in this process; collectives that all processes have entered finish first. A listener's own thread does
  // not wait: it would wait for itself.
  void EndGeneration(int64_t generation, const std::string& reason);
  // A listener calls this when all its collectives of the ending generation have failed. The generation ends in this
  // process when the last listener has called.
  void Quiesced(Listener* listener);
  // Whether this process is ending its generation; `why` becomes the error of its collectives.
  bool Ending(Status* why);
  // Something was submitted in the present generation.
  void NoteSubmission();
  // The processes that have not ended the generations before `generation` yet.
  std::vector<int> StillIn(int64_t generation);

  void Abort(const std::string& reason);
  // Every wait fails from now on; the listeners then stop by themselves.
  void BeginStop();
  void Stop();

  // Why a collective of `members` in `generation` can no longer be done; OK if it can.
  Status Failure(const std::vector<int>& members, int64_t generation);
  // The number of events so far. The result of Failure changes only when this number does.
  uint64_t events() const { return events_.load(std::memory_order_acquire); }

  // Declares that the calling thread belongs to a listener.
  static void MarkListenerThread();

  void AddListener(Listener* listener);
  void RemoveListener(Listener* listener);

 private:
  enum class Life { kHere, kLeft };
  struct Answer {
    bool withdrawn = false;
    std::vector<std::string> parts;
  };

  explicit Job(const epl_job_options& options);

  void OnMessage(std::string_view message);
  void OnEvent();
  void FinishGeneration();
  void NoteEnd(int process, int64_t generation, const std::string& reason);
  void Fail(const std::string& reason);
  Status FailureLocked(const std::vector<int>& members, int64_t generation) const;
  bool AskMissing(const std::string& key, std::vector<int>* missing);
  std::string QueryMissing(const std::string& key);

  const int process_;
  std::vector<std::string> hosts_;
  const double stall_warning_s_;
  const double timeout_s_;
  std::unique_ptr<ControlPlane> control_;  // none in a job of one process

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<uint64_t> events_{0};
  bool stopping_ = false;
  bool control_lost_ = false;
  std::string fatal_;
  std::vector<Life> lives_;
  std::vector<int64_t> ended_;  // how many generations each process has ended
  // By generation: the first process that ended it, as far as this process knows, and the reason. The other processes
  // only followed.
  std::map<int64_t, std::pair<int, std::string>> first_ends_;
  bool submitted_ = true;
  bool ending_ = false;
  std::string ending_reason_;
  std::vector<Listener*> unquiet_;
  std::map<std::string, Answer> answers_;
  std::map<std::string, std::vector<int>> missing_;
  std::map<std::string, int64_t> uses_;

  std::mutex listeners_mutex_;
  std::vector<Listener*> listeners_;
};

}  // namespace epl

#endif  // EPL_COMM_JOB_H_
