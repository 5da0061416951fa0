// The state of the job, and what ends a wait.

#include "comm/job.h"

#include <stdio.h>

#include <algorithm>
#include <chrono>

#include "comm/wire.h"

namespace epl {
namespace {

thread_local bool is_listener_thread = false;

Mac MacOf(const epl_job_options& options) {
  return [mac = options.mac, context = options.mac_context](std::string_view text) {
    std::string digest(32, '\0');
    const int made =
        mac(context, text.data(), static_cast<int64_t>(text.size()), reinterpret_cast<uint8_t*>(&digest[0]));
    return made != 0 ? digest : std::string();
  };
}

}  // namespace

// ---- StallWatch.

StallWatch::StallWatch(Job* job, std::vector<int> members, int64_t generation, std::string who, std::string what)
    : job_(job),
      members_(std::move(members)),
      generation_(generation),
      who_(std::move(who)),
      what_(std::move(what)),
      start_(Now()) {}

Status StallWatch::Check(const Missing& missing) {
  const uint64_t events = job_->events();
  if (events != seen_events_) {
    seen_events_ = events;
    Status failed = job_->Failure(members_, generation_);
    if (!failed.ok()) return Status(failed.code(), failed.message() + " while " + who_ + " waits for " + what_);
  }
  if (cancelled_ && cancelled_()) return Status(EPL_CANCELLED, what_ + " was cancelled");
  const double now = Now();
  if (now < next_look_) return Status();
  next_look_ = now + 0.01;
  const double waited = now - start_;
  const double warn = job_->stall_warning_s();
  if (next_warning_ == 0) next_warning_ = warn;
  if (job_->timeout_s() > 0 && waited > job_->timeout_s()) {
    return Status(EPL_DEADLINE_EXCEEDED,
                  Format("%s waited for %s and gave up after %s s; missing: %s%s", who_.c_str(), what_.c_str(),
                         Seconds(waited).c_str(), missing().c_str(), job_->SilentWords().c_str()));
  }
  if (warn > 0 && waited > next_warning_) {
    next_warning_ += warn;
    fprintf(stderr, "EPL: stalled: %s waiting for %s for %s s; missing: %s%s\n", who_.c_str(), what_.c_str(),
            Seconds(waited).c_str(), missing().c_str(), job_->SilentWords().c_str());
  }
  return Status();
}

// ---- Start and stop.

Job::Job(const epl_job_options& options)
    : process_(options.process),
      hosts_(options.hosts, options.hosts + options.num_processes),
      stall_warning_s_(options.stall_warning_s),
      timeout_s_(options.timeout_s),
      lives_(options.num_processes, Life::kHere),
      ended_(options.num_processes) {}

Status Job::Start(const epl_job_options& options, std::unique_ptr<Job>* job) {
  if (options.num_processes < 1 || options.process < 0 || options.process >= options.num_processes) {
    return Status(EPL_INVALID_ARGUMENT, Format("process %d of %d: expected 0 <= process < num_processes",
                                               options.process, options.num_processes));
  }
  if (options.hosts == nullptr)
    return Status(EPL_INVALID_ARGUMENT, "hosts is NULL: expected host:port of each process");
  std::unique_ptr<Job> made(new Job(options));
  if (options.num_processes > 1) {
    RendezvousOptions control;
    control.identity.job = options.job_name == nullptr ? "" : options.job_name;
    if (control.identity.job.size() > kMostJobName) {
      return Status(EPL_INVALID_ARGUMENT,
                    Format("the name of the job (EPL_JOB_ID) has %d bytes, and may have %d",
                           static_cast<int>(control.identity.job.size()), static_cast<int>(kMostJobName)));
    }
    control.identity.num_processes = options.num_processes;
    control.identity.process = options.process;
    if (options.mac != nullptr) control.identity.mac = MacOf(options);
    control.hosts = made->hosts_;
    control.listen_fd = options.listen_fd;
    control.start_timeout_s = options.start_timeout_s > 0 ? options.start_timeout_s : 300;
    Job* raw = made.get();
    Status status = ControlPlane::Start(
        control, [raw](std::string_view message) { raw->OnMessage(message); }, &made->control_);
    if (!status.ok()) return status;
  }
  *job = std::move(made);
  return Status();
}

Job::~Job() { Stop(); }

void Job::BeginStop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  OnEvent();
}

void Job::Stop() {
  BeginStop();
  if (control_ != nullptr) control_->Leave();
}

std::string Job::NameOf(int process) const { return Format("worker %d (%s)", process, hosts_[process].c_str()); }

std::string Job::HostOf(int process) const {
  std::string host = hosts_[process].substr(0, hosts_[process].rfind(':'));
  return host.size() > 2 && host.front() == '[' ? host.substr(1, host.size() - 2) : host;
}

void Job::AddListener(Listener* listener) {
  std::lock_guard<std::mutex> lock(listeners_mutex_);
  listeners_.push_back(listener);
}

void Job::RemoveListener(Listener* listener) {
  {
    std::lock_guard<std::mutex> lock(listeners_mutex_);
    listeners_.erase(std::remove(listeners_.begin(), listeners_.end(), listener), listeners_.end());
  }
  Quiesced(listener);
}

void Job::OnEvent() {
  events_.fetch_add(1, std::memory_order_acq_rel);
  {
    std::lock_guard<std::mutex> lock(mutex_);  // so that no thread misses the event between its check and its wait
  }
  changed_.notify_all();
  std::lock_guard<std::mutex> lock(listeners_mutex_);
  for (Listener* listener : listeners_) listener->Wake();
}

// ---- Failure.

Status Job::Failure(const std::vector<int>& members, int64_t generation) {
  std::lock_guard<std::mutex> lock(mutex_);
  return FailureLocked(members, generation);
}

Status Job::FailureLocked(const std::vector<int>& members, int64_t generation) const {
  if (!fatal_.empty()) return Status(EPL_INTERNAL, fatal_);
  if (generation >= 0) {
    auto end = first_ends_.find(generation);
    if (end != first_ends_.end()) {
      return Status(EPL_OUT_OF_RANGE, NameOf(end->second.first) + " ended the step: " + end->second.second);
    }
    if (ending_ && ended_[process_] == generation) {
      return Status(EPL_OUT_OF_RANGE, NameOf(process_) + " ended the step: " + ending_reason_);
    }
  }
  if (stopping_) return Status(EPL_CANCELLED, "the job was stopped");
  for (int process : members) {
    if (lives_[process] == Life::kLeft) {
      return Status(EPL_FAILED_PRECONDITION, NameOf(process) + " has left the job (it exited normally)");
    }
  }
  if (control_lost_) {
    return Status(EPL_FAILED_PRECONDITION, NameOf(0) + ", which coordinates the job, has left it (it exited normally)");
  }
  return Status();
}

void Job::Fail(const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (fatal_.empty()) fatal_ = reason;
  }
  OnEvent();
}

void Job::Abort(const std::string& reason) {
  if (control_ != nullptr) control_->Send(Writer().Put(Message::kAbort).PutBytes(reason).bytes());
  Fail(Format("worker %d: %s", process_, reason.c_str()));
}

// ---- Messages.

void Job::OnMessage(std::string_view bytes) {
  FromCoordinator message;
  if (!Parse(bytes, num_processes(), &message)) return Fail(NameOf(0) + " sent what makes no sense");
  switch (message.kind) {
    case Message::kGathered:
    case Message::kWithdrawn: {
      std::lock_guard<std::mutex> lock(mutex_);
      Answer& answer = answers_[message.key];
      answer.withdrawn = message.kind == Message::kWithdrawn;
      answer.parts = std::move(message.parts);
      changed_.notify_all();
      return;
    }
    case Message::kMissing: {
      std::lock_guard<std::mutex> lock(mutex_);
      missing_[message.key] = std::move(message.missing);
      changed_.notify_all();
      return;
    }
    case Message::kEnded: {
      std::lock_guard<std::mutex> lock(mutex_);
      NoteEnd(message.process, message.generation, message.reason);
      break;
    }
    case Message::kAborted:
      return Fail(Format("worker %d: %s", message.process, message.reason.c_str()));
    case Message::kDied:
      return Fail(NameOf(message.process) + " died or was lost: " + message.reason);
    case Message::kSilent:  // the control plane takes it
      return;
    default: {  // kLeft
      std::lock_guard<std::mutex> lock(mutex_);
      lives_[message.process] = Life::kLeft;
      if (message.process == 0) control_lost_ = true;
    }
  }
  OnEvent();
}

// ---- Gathering.

Status Job::Gather(const std::string& name, const std::vector<int>& members, const std::string& bytes,
                   StallWatch* watch, std::vector<std::string>* parts) {
  if (members.size() == 1) {
    parts->assign(1, bytes);
    return Status();
  }
  std::string key;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    key = Format("%s#%lld", name.c_str(), static_cast<long long>(uses_[name]++));
  }
  Writer writer;
  writer.Put(Message::kGather).PutBytes(key).Put<int32_t>(members.size());
  for (int member : members) writer.Put<int32_t>(member);
  control_->Send(writer.PutBytes(bytes).bytes());

  Status status;
  double withdrawn_at = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    auto answer = answers_.find(key);
    if (answer != answers_.end()) {
      bool withdrawn = answer->second.withdrawn;
      if (!withdrawn) *parts = std::move(answer->second.parts);
      answers_.erase(answer);
      if (!withdrawn && parts->size() != members.size()) {
        lock.unlock();
        Fail(NameOf(0) + " sent what makes no sense");
        return Failure({}, -1);
      }
      if (!withdrawn) return Status();
      uses_[name]--;  // as if it had never been asked
      return status;
    }
    const uint64_t events = events_;
    if (status.ok()) {
      lock.unlock();
      status = watch->Check([&] { return QueryMissing(key); });
      if (!status.ok()) {
        control_->Send(Writer().Put(Message::kWithdraw).PutBytes(key).bytes());
        withdrawn_at = Now();
      }
      lock.lock();
    }
    if (!status.ok() && (!fatal_.empty() || control_lost_ || Now() - withdrawn_at > 5)) {
      if (answers_.count(key) != 0) continue;
      if (fatal_.empty() && !control_lost_ && !stopping_) fatal_ = NameOf(0) + " does not answer";
      return status;
    }
    if (answers_.count(key) != 0 || (status.ok() && events != events_)) continue;
    changed_.wait_for(lock, std::chrono::milliseconds(20));
  }
}

bool Job::AskMissing(const std::string& key, std::vector<int>* missing) {
  std::unique_lock<std::mutex> lock(mutex_);
  missing_.erase(key);
  lock.unlock();
  control_->Send(Writer().Put(Message::kQuery).PutBytes(key).bytes());
  lock.lock();
  changed_.wait_for(lock, std::chrono::seconds(1), [&] { return missing_.count(key) != 0; });
  auto it = missing_.find(key);
  if (it == missing_.end()) return false;
  *missing = std::move(it->second);
  missing_.erase(it);
  return true;
}

std::string Job::QueryMissing(const std::string& key) {
  std::vector<int> missing;
  if (!AskMissing(key, &missing)) return NameOf(0) + ", which knows who is missing, does not answer";
  std::string text;
  for (int process : missing) text += (text.empty() ? "" : ", ") + NameOf(process);
  return text.empty() ? "none" : text;
}

bool Job::MissingInExchange(const std::string& key, std::vector<int>* missing) {
  if (control_ == nullptr) return true;
  std::string present;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const std::string name = "exchange/" + key;
    present = Format("%s#%lld", name.c_str(), static_cast<long long>(uses_[name] - 1));
  }
  return AskMissing(present, missing);
}

std::vector<double> Job::Silences() { return control_ == nullptr ? std::vector<double>(1) : control_->Silences(); }

std::string Job::SilentWords() {
  std::string words;
  const std::vector<double> silences = Silences();
  for (int process = 0; process < num_processes(); ++process) {
    if (silences[process] == 0) continue;
    words += Format("; nothing was heard of %s for %.0f s", NameOf(process).c_str(), silences[process]);
  }
  return words;
}

Status Job::Exchange(const std::string& key, const std::string& bytes, std::vector<std::string>* parts) {
  std::vector<int> everyone(num_processes());
  for (int process = 0; process < num_processes(); ++process) everyone[process] = process;
  StallWatch watch(this, everyone, -1, NameOf(process_), "the exchange '" + key + "'");
  return Gather("exchange/" + key, everyone, bytes, &watch, parts);
}

// ---- Generations.

int64_t Job::generation() {
  std::lock_guard<std::mutex> lock(mutex_);
  return ended_[process_];
}

void Job::NoteSubmission() {
  std::lock_guard<std::mutex> lock(mutex_);
  submitted_ = true;
}

bool Job::Ending(Status* why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (ending_) *why = FailureLocked({}, ended_[process_]);
  return ending_;
}

void Job::NoteEnd(int process, int64_t generation, const std::string& reason) {
  ended_[process] = std::max(ended_[process], generation + 1);
  first_ends_.emplace(generation, std::make_pair(process, reason));
  // Nobody here asks about a generation that this process has ended.
  first_ends_.erase(first_ends_.begin(), first_ends_.lower_bound(ended_[process_]));
}

std::vector<int> Job::StillIn(int64_t generation) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<int> processes;
  for (int process = 0; process < num_processes(); ++process) {
    if (ended_[process] < generation && lives_[process] == Life::kHere) processes.push_back(process);
  }
  return processes;
}

void Job::MarkListenerThread() { is_listener_thread = true; }

void Job::EndGeneration(int64_t generation, const std::string& reason) {
  int64_t ending = -1;
  {
    // The listeners first: one that goes away meanwhile must find itself in the list.
    std::lock_guard<std::mutex> listeners_lock(listeners_mutex_);
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_ || (generation >= 0 && generation != ended_[process_])) return;
    ending = ended_[process_];
    if (!ending_) {
      if (generation < 0 && !submitted_) return;
      ending_ = true;
      ending_reason_ = reason;
      unquiet_ = listeners_;
      if (unquiet_.empty()) FinishGeneration();
    }
  }
  OnEvent();
  if (is_listener_thread) return;
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return ended_[process_] > ending || stopping_; });
}

void Job::Quiesced(Listener* listener) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = std::find(unquiet_.begin(), unquiet_.end(), listener);
    if (!ending_ || it == unquiet_.end()) return;
    unquiet_.erase(it);
    if (!unquiet_.empty()) return;
    FinishGeneration();
  }
  OnEvent();
}

void Job::FinishGeneration() {
  const int64_t generation = ended_[process_];
  NoteEnd(process_, generation, ending_reason_);
  ending_ = false;
  submitted_ = false;
  if (control_ != nullptr) {
    control_->Send(Writer().Put(Message::kEndGeneration).Put(generation).PutBytes(ending_reason_).bytes());
  }
}

}  // namespace epl
