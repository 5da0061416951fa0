// Queueing, matching and running of collectives.

#include "comm/communicator.h"

#include <algorithm>
#include <chrono>

namespace epl {
namespace {

// "ranks 0, 1 of worker 0 (host:port)"
std::string NameRanks(const std::vector<int>& ranks, const std::string& worker) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += Format(i == 0 ? "%d" : ", %d", ranks[i]);
  return text + " of " + worker;
}

Status MakeMembers(const Job& job, const std::string& name, const std::vector<int>& rank_process, Members* members) {
  members->rank_process = rank_process;
  members->self = -1;
  for (size_t rank = 0; rank < rank_process.size(); ++rank) {
    int process = rank_process[rank];
    if (process < 0 || process >= job.num_processes()) {
      return Status(EPL_INVALID_ARGUMENT, Format("communicator '%s': rank %d is given to process %d, the job has %d",
                                                 name.c_str(), static_cast<int>(rank), process, job.num_processes()));
    }
    size_t member =
        std::find(members->processes.begin(), members->processes.end(), process) - members->processes.begin();
    if (member == members->processes.size()) {
      members->processes.push_back(process);
      members->ranks_of.emplace_back();
      if (process == job.process()) members->self = static_cast<int>(member);
    }
    members->ranks_of[member].push_back(static_cast<int>(rank));
  }
  if (members->self < 0) {
    return Status(EPL_INVALID_ARGUMENT, Format("communicator '%s': process %d owns none of its %d ranks and must not "
                                               "create it",
                                               name.c_str(), job.process(), members->size()));
  }
  return Status();
}

}  // namespace

// ---- Life.

Status Communicator::Create(Job* job, const std::string& name, const std::vector<int>& rank_process,
                            const std::string& wanted, std::unique_ptr<Communicator>* communicator) {
  std::unique_ptr<Communicator> made(new Communicator(job, name));
  Status status = MakeMembers(*job, name, rank_process, &made->members_);
  if (!status.ok()) return status;
  status = MakeTransport(job, made->members_, name, wanted, &made->transport_);
  if (!status.ok()) return status;
  made->transport_name_ = made->transport_.name();
  made->queues_.resize(made->members_.local_ranks().size());
  job->AddListener(made.get());
  made->thread_ = std::thread([raw = made.get()] { raw->Run(); });
  *communicator = std::move(made);
  return Status();
}

Communicator::~Communicator() { Close(); }

void Communicator::Close() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
  }
  Wake();
  thread_.join();
  if (transport_.device != nullptr) transport_.device->Drain();
  job_->RemoveListener(this);
  transport_ = Transport();
}

void Communicator::Wake() {
  { std::lock_guard<std::mutex> lock(mutex_); }
  changed_.notify_all();
  if (transport_.gate != nullptr) transport_.gate->Wake();
  if (transport_.exchange != nullptr) transport_.exchange->Wake();
}

// ---- Submitting.

int64_t Communicator::Submit(int rank, const epl_collective& args, epl_allocate_fn allocate, epl_done_fn done,
                             void* context) {
  const std::vector<int>& local = members_.local_ranks();
  const size_t index = std::find(local.begin(), local.end(), rank) - local.begin();
  std::unique_ptr<Request> request(new Request);
  request->rank = rank;
  request->args = args;
  request->allocate = allocate;
  request->done = done;
  request->context = context;
  request->since = Now();
  Status refused;
  if (index == local.size()) {
    refused = Status(EPL_INVALID_ARGUMENT,
                     Format("communicator '%s': rank %d is not one of this process's ranks", name_.c_str(), rank));
  } else {
    request->error = request->Check(members_);
    std::unique_lock<std::mutex> lock(mutex_);
    if (!closed_) {
      job_->NoteSubmission();
      if (transport_.device != nullptr && request->error.ok())
        request->error = transport_.device->Prepare(request.get());
      const int64_t ticket = request->ticket = ++last_ticket_;
      queues_[index].push_back(std::move(request));
      lock.unlock();
      changed_.notify_all();
      return ticket;
    }
    refused = Status(EPL_CANCELLED, "communicator '" + name_ + "' was destroyed");
  }
  done(context, refused.code(), refused.message().c_str());
  return 0;
}

void Communicator::Cancel(int64_t ticket) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& queue : queues_) {
      for (auto& request : queue) {
        if (request->ticket == ticket) request->cancelled = true;
      }
    }
    for (Request* request : running_) {
      if (request->ticket == ticket) request->cancelled = true;
    }
  }
  Wake();
}

// ---- The thread.

bool Communicator::OpIsComplete() const {
  return std::all_of(queues_.begin(), queues_.end(),
                     [](const std::deque<std::unique_ptr<Request>>& queue) { return !queue.empty(); });
}

void Communicator::TakeAll(Requests* requests) {
  for (auto& queue : queues_) {
    for (auto& request : queue) requests->push_back(std::move(request));
    queue.clear();
  }
  // In the order in which they were submitted, as far as their owners can tell.
  std::sort(requests->begin(), requests->end(),
            [](const std::unique_ptr<Request>& a, const std::unique_ptr<Request>& b) { return a->ticket < b->ticket; });
}

void Communicator::Run() {
  Job::MarkListenerThread();
  std::unique_ptr<StallWatch> watch;
  int64_t watched_ticket = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    const uint64_t events = job_->events();
    const int64_t tickets = last_ticket_;
    Requests failed;
    Status why;

    // What ends everything.
    const bool closed = closed_;
    const bool ending = !closed && job_->Ending(&why);
    if (closed) {
      why = Status(EPL_CANCELLED, "communicator '" + name_ + "' was destroyed");
    } else if (!ending) {
      const int64_t generation = job_->generation();
      if (generation != generation_) {
        generation_ = generation;
        broken_by_.clear();
      }
      why = job_->Failure(members_.processes, generation);
    }
    if (closed || ending || !why.ok()) {
      TakeAll(&failed);
      lock.unlock();
      Finish(std::move(failed), why);
      if (closed) return;
      if (ending) job_->Quiesced(this);
      lock.lock();
      changed_.wait(lock, [&] { return closed_ || job_->events() != events || last_ticket_ != tickets; });
      continue;
    }

    // What was cancelled or waited too long.
    int64_t oldest_ticket = 0;
    const Request* oldest = nullptr;
    for (auto& queue : queues_) {
      for (auto& request : queue) {
        if (request->cancelled) {
          broken_by_ = Label(request->args) + " was cancelled";
          failed.push_back(std::move(request));
        }
      }
      queue.erase(std::remove(queue.begin(), queue.end(), nullptr), queue.end());
      if (!queue.empty() && (oldest == nullptr || queue.front()->ticket < oldest->ticket)) oldest = queue.front().get();
    }
    if (!failed.empty()) {
      lock.unlock();
      Finish(std::move(failed), Status(EPL_CANCELLED, "cancelled"));
      lock.lock();
      continue;
    }
    if (broken_by_.empty() && OpIsComplete()) {
      Requests requests;
      for (auto& queue : queues_) {
        requests.push_back(std::move(queue.front()));
        running_.push_back(requests.back().get());
        queue.pop_front();
      }
      lock.unlock();
      RunOp(std::move(requests));
      lock.lock();
      continue;
    }
    if (oldest == nullptr) {
      changed_.wait(lock, [&] { return closed_ || job_->events() != events || last_ticket_ != tickets; });
      continue;
    }
    oldest_ticket = oldest->ticket;
    if (watch == nullptr || watched_ticket != oldest_ticket) {
      watched_ticket = oldest_ticket;
      watch.reset(
          new StallWatch(job_, {}, -1, NameRanks({oldest->rank}, job_->NameOf(job_->process())), What(oldest->args)));
      watch->set_start(oldest->since);
    }
    const std::string missing = MissingRanks();
    lock.unlock();
    why = watch->Check([&] { return missing; });
    lock.lock();
    if (why.code() == EPL_DEADLINE_EXCEEDED) {
      broken_by_ = "a collective waited too long";
      const double limit = Now() - job_->timeout_s();
      for (auto& queue : queues_) {
        for (auto& request : queue) {
          if (request->since < limit) failed.push_back(std::move(request));
        }
        queue.erase(std::remove(queue.begin(), queue.end(), nullptr), queue.end());
      }
      lock.unlock();
      Finish(std::move(failed), why);
      lock.lock();
      continue;
    }
    if (last_ticket_ == tickets && job_->events() == events && !closed_) {
      changed_.wait_for(lock, std::chrono::milliseconds(20));
    }
  }
}

std::string Communicator::MissingRanks() {
  if (!broken_by_.empty()) return "the end of the step, because " + broken_by_;
  std::vector<int> ranks;
  for (size_t i = 0; i < queues_.size(); ++i) {
    if (queues_[i].empty()) ranks.push_back(members_.local_ranks()[i]);
  }
  return NameRanks(ranks, job_->NameOf(job_->process()));
}

std::string Communicator::Who() const { return NameRanks(members_.local_ranks(), job_->NameOf(job_->process())); }

std::string Communicator::What(const epl_collective& args) const {
  return Label(args) + " of communicator '" + name_ + "'";
}

void Communicator::Finish(Requests requests, const Status& status) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    running_.clear();
  }
  for (auto& request : requests) {
    if (transport_.device != nullptr) transport_.device->Discard(request.get());
    Status own = status;
    if (!status.ok() && status.message().find(" waits for ") == std::string::npos &&
        status.code() != EPL_INVALID_ARGUMENT && status.code() != EPL_DEADLINE_EXCEEDED) {
      own = Status(status.code(), Format("%s while rank %d waits for %s", status.message().c_str(), request->rank,
                                         What(request->args).c_str()));
    }
    request->done(request->context, own.code(), own.message().c_str());
  }
}

// ---- One collective.

Status Communicator::AwaitNewGeneration() {
  if (joined_generation_ == generation_) return Status();
  StallWatch watch(job_, members_.processes, generation_, Who(), "the next step of communicator '" + name_ + "'");
  watch.set_cancelled([this] {
    std::lock_guard<std::mutex> lock(mutex_);
    return closed_ ||
           std::any_of(running_.begin(), running_.end(), [](Request* request) { return request->cancelled; });
  });
  auto missing = [&] {
    std::string text;
    for (int process : job_->StillIn(generation_)) text += (text.empty() ? "" : ", ") + job_->NameOf(process);
    return text + (text.empty() ? "none" : " (did not end the step that was given up)");
  };
  for (;;) {
    const uint64_t events = job_->events();
    if (job_->StillIn(generation_).empty()) break;
    Status status = watch.Check(missing);
    if (!status.ok()) return status;
    std::unique_lock<std::mutex> lock(mutex_);
    if (job_->events() == events) changed_.wait_for(lock, std::chrono::milliseconds(20));
  }
  joined_generation_ = generation_;
  return Status();
}

Status Communicator::Pass(const Op& op, const std::string& announcement, std::vector<std::string>* all) {
  Status status = AwaitNewGeneration();
  if (!status.ok()) return status;
  StallWatch watch(job_, members_.processes, generation_, Who(), What(op.args()));
  watch.set_cancelled([this] {
    std::lock_guard<std::mutex> lock(mutex_);
    return closed_ ||
           std::any_of(running_.begin(), running_.end(), [](Request* request) { return request->cancelled; });
  });
  return transport_.gate->Pass(announcement, &watch, all);
}

void Communicator::RunOp(Requests requests) {
  Op op;
  for (auto& request : requests) op.requests.push_back(request.get());
  const Announcement own = Announce(op, members_);

  std::unique_ptr<Program> program;
  Status status;
  if (own.error.ok() && transport_.exchange != nullptr) {
    program = MakeProgram(op, members_, transport_.exchange->slot_bytes(), transport_.exchange->machines());
    if (transport_.exchange->FilledBeforeGate()) {
      uint8_t* slot = nullptr;
      status = transport_.exchange->OwnSlot(step_, nullptr, &slot);
      program->Fill(0, slot);
    }
  }
  std::vector<std::string> packed;
  status = Pass(op, own.Pack(), &packed);
  if (status.code() == EPL_CANCELLED || status.code() == EPL_DEADLINE_EXCEEDED) {
    // The others go back to the head of their queues and wait there for the end of the step.
    Requests failed;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      running_.clear();
      broken_by_ =
          status.code() == EPL_CANCELLED ? Label(op.args()) + " was cancelled" : "a collective waited too long";
      for (size_t i = 0; i < requests.size(); ++i) {
        if (status.code() == EPL_DEADLINE_EXCEEDED || requests[i]->cancelled) {
          failed.push_back(std::move(requests[i]));
        } else {
          queues_[i].push_front(std::move(requests[i]));
        }
      }
    }
    return Finish(std::move(failed), status);
  }
  if (!status.ok()) return Finish(std::move(requests), status);

  std::vector<Announcement> all;
  for (const std::string& bytes : packed) all.push_back(Announcement::Unpack(bytes));
  status = CheckSame(all, members_, name_);
  if (!status.ok()) return Finish(std::move(requests), status);

  if (transport_.device != nullptr) {
    auto shared = std::make_shared<Requests>(std::move(requests));
    status =
        transport_.device->Run(op, all, [this, shared](const Status& result) { Finish(std::move(*shared), result); });
    if (!status.ok()) Finish(std::move(*shared), status);
    return;
  }

  program->SetRows(all);
  std::vector<Status> results(requests.size());
  Allocate(op, program.get(), &results);
  status = Move(op, program.get());
  if (!status.ok()) {
    // Some processes may have finished it, others cannot: the ranks do not agree any more.
    status = Status(EPL_INTERNAL, CauseOf(status).message());
    job_->Abort(status.message());
    return Finish(std::move(requests), status);
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    running_.clear();
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i]->done(requests[i]->context, results[i].code(), results[i].message().c_str());
  }
}

Status Communicator::CauseOf(const Status& failure) {
  if (failure.code() == EPL_DEADLINE_EXCEEDED) return failure;
  // A broken transfer is mostly the death of a process, and who died is the better answer; it may come a moment later.
  for (double end = Now() + 1; Now() < end;) {
    Status failed = job_->Failure(members_.processes, -1);
    if (!failed.ok()) return failed;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return failure;
}

void Communicator::Allocate(const Op& op, Program* program, std::vector<Status>* results) {
  for (size_t i = 0; i < op.requests.size(); ++i) {
    Request* request = op.requests[i];
    const std::vector<int64_t> rows = program->OutputRows(static_cast<int>(i));
    if (rows.empty()) continue;
    int64_t total = 0;
    for (int64_t count : rows) total += count;
    void* output = request->allocate(request->context, rows.data(), static_cast<int>(rows.size()));
    if (output == nullptr && total * request->args.row_elements > 0) {
      (*results)[i] = Status(EPL_INTERNAL, Format("rank %d, %s: no memory for an output of %lld rows", request->rank,
                                                  What(request->args).c_str(), static_cast<long long>(total)));
    }
    program->SetOutput(static_cast<int>(i), output);
  }
}

Status Communicator::Move(const Op& op, Program* program) {
  Exchange* exchange = transport_.exchange.get();
  // All are in: neither a cancel nor the end of the step counts, only death and time.
  StallWatch watch(job_, members_.processes, -1, Who(), What(op.args()));
  const int64_t steps = program->steps();
  const uint64_t base = step_;
  std::vector<const uint8_t*> slots(members_.num_members());
  int64_t filled = exchange->FilledBeforeGate() ? 1 : 0;
  auto fill_next = [&] {
    uint8_t* slot = nullptr;
    Status status = exchange->OwnSlot(base + filled, &watch, &slot);
    if (!status.ok()) return status;
    program->Fill(filled, slot);
    status = exchange->Post(base + filled, *program, filled);
    ++filled;
    return status;
  };
  for (int64_t step = 0; step < steps; ++step) {
    while (filled <= step || (filled == step + 1 && filled < steps && !program->NeedsDrain(filled))) {
      Status status = fill_next();
      if (!status.ok()) return status;
    }
    Status status = exchange->Wait(base + step, *program, step, &watch, slots.data());
    if (!status.ok()) return status;
    program->Drain(step, slots.data());
  }
  step_ += steps;
  return exchange->Finish(&watch);
}

}  // namespace epl
