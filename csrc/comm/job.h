// A job as one of its processes sees it: which processes live, which generation it is, whether a wait still makes
// sense; gathering by key. Owns the control plane and knows the communicators only as things to be woken.

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

// What wants to know when the state of the job changes.
class Listener {
 public:
  virtual ~Listener() = default;
  // The state changed: look again. Called from any thread; must not block.
  virtual void Poke() = 0;
};

// How long one wait may last, and what ends it before: a process that died, left or ended the generation, a cancelled
// collective, the time limit. Also says on stderr that it lasts.
class Patience {
 public:
  using Missing = std::function<std::string()>;  // "rank 2 of worker 1 (host:port)"

  // `who` waits for `what`. `members` are the processes whose leaving ends the wait. A negative generation means that
  // the end of a generation does not end the wait.
  Patience(Job* job, std::vector<int> members, int64_t generation, std::string who, std::string what);

  void set_cancelled(std::function<bool()> cancelled) { cancelled_ = std::move(cancelled); }
  // The waits of this one count from then.
  void set_start(double start) { start_ = start; }
  // Cheap unless something happened or much time has passed; call it often.
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
  // again. A patience that runs out withdraws the bytes; what was complete by then is given nevertheless.
  Status Gather(const std::string& key, const std::vector<int>& members, const std::string& bytes, Patience* patience,
                std::vector<std::string>* parts);
  Status Exchange(const std::string& key, const std::string& bytes, std::vector<std::string>* parts);
  // The processes whose bytes lack in the exchange under a key that this process waits for. False if process 0, which
  // knows, does not answer within a second.
  bool MissingInExchange(const std::string& key, std::vector<int>* missing);
  // Seconds since each process was heard; 0 for those that are well or have left.
  std::vector<double> Silences();
  // "; nothing was heard of worker 3 (host:port) for 40 s": who is missing may itself wait for that one.
  std::string SilentWords();

  // ---- Generations.
  int64_t generation();
  // Ends `generation`, or the present one if negative; does nothing if that has been ended. Waits until it has ended
  // here (collectives that all have entered are finished first), except in a listener's own thread, which would wait
  // for itself.
  void EndGeneration(int64_t generation, const std::string& reason);
  // Called by a listener when everything that it had in the ending generation has failed. The generation ends for
  // this process with the last of them.
  void Quiesced(Listener* listener);
  // Whether this process is ending its generation; `why` is what to fail its collectives with.
  bool Ending(Status* why);
  // Something was submitted in the present generation.
  void NoteSubmission();
  // The processes that have not ended the generations before `generation` yet.
  std::vector<int> StillIn(int64_t generation);

  void Abort(const std::string& reason);
  // Every wait fails from now on; the listeners stop by themselves.
  void BeginStop();
  void Stop();

  // Why a collective of `members` in `generation` cannot be done any more. OK if it can.
  Status Trouble(const std::vector<int>& members, int64_t generation);
  // Changes when Trouble may have changed.
  uint64_t events() const { return events_.load(std::memory_order_acquire); }

  // This thread is a listener's own.
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
  void OnNews();
  void FinishGeneration();
  void NoteEnd(int process, int64_t generation, const std::string& reason);
  void Fail(const std::string& reason);
  Status TroubleLocked(const std::vector<int>& members, int64_t generation) const;
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
  // The process that was the first to end a generation, as far as is known here, and why: the cause, where the others
  // follow.
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
