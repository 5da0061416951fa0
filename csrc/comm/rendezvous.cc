// How process 0 takes connections, and how the others make theirs.

#include "comm/rendezvous.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

namespace epl {
namespace {

constexpr double kHandshakeTimeout = 10;  // seconds that a caller may take to prove who it is
constexpr double kReportEvery = 10;
constexpr double kFirstProbe = 3;     // seconds until it is first probed why someone is missing
constexpr size_t kMostCallers = 128;  // that have not proved themselves; the processes of the job come on top
constexpr size_t kMostNamed = 8;      // missing processes in a line
// Refusals that are reported; a port scanner must neither fill the log nor hide why a worker is refused.
constexpr size_t kMostRefusals = 3;  // of callers from one host for one reason
constexpr size_t kMostReasons = 99;  // of hosts and reasons

void Print(const std::string& text) { fprintf(stderr, "EPL: %s\n", text.c_str()); }

// Finds out why processes do not come, as far as their names and the ways to their machines tell. In threads of its
// own, that nobody waits for: to resolve a name can take half a minute.
class Reachability {
 public:
  // Probes these addresses by process, unless the last probe is still under way.
  void Probe(std::map<int, std::string> addresses) {
    std::shared_ptr<Findings> findings = findings_;
    {
      std::lock_guard<std::mutex> lock(findings->mutex);
      if (findings->probing) return;
      findings->probing = true;
    }
    std::thread([findings, addresses] {
      for (const auto& entry : addresses) {
        {
          // An answered probe stays in the queue of a socket that nobody accepts on: a full queue answers no more.
          std::lock_guard<std::mutex> lock(findings->mutex);
          auto known = findings->why.find(entry.first);
          if (known != findings->why.end() && known->second.empty()) continue;
        }
        const std::string why = WhyUnreachable(entry.second, 3);
        std::lock_guard<std::mutex> lock(findings->mutex);
        findings->why[entry.first] = why;
      }
      std::lock_guard<std::mutex> lock(findings->mutex);
      findings->probing = false;
    }).detach();
  }
  // What is wrong with the way to a process; empty if nothing is known to be.
  std::string About(int process) {
    std::lock_guard<std::mutex> lock(findings_->mutex);
    auto it = findings_->why.find(process);
    return it == findings_->why.end() ? "" : it->second;
  }

 private:
  struct Findings {
    std::mutex mutex;
    std::map<int, std::string> why;
    bool probing = false;
  };
  std::shared_ptr<Findings> findings_ = std::make_shared<Findings>();
};

// Who has connected and not proved yet to be of the job.
struct Caller {
  Caller(int fd, const Identity& identity, uint64_t number)
      : connection(new Connection(fd)), handshake(identity, number) {}

  std::unique_ptr<Connection> connection;
  ServerHandshake handshake;
  double since = Now();
};

// Process 0: takes connections until all processes are there.
class Acceptor {
 public:
  Acceptor(const RendezvousOptions& options, int listen_fd)
      : options_(options), listener_(listen_fd), connections_(options.hosts.size()) {
    std::random_device random;
    number_ = (uint64_t{random()} << 32) | random();
  }

  // Returns once all processes have connected and proved themselves.
  Status AcceptAll(Meeting* meeting) {
    while (!Missing().empty()) {
      if (Now() >= start_ + options_.start_timeout_s) return GiveUp();
      AwaitNews();
      TakeCallers();
      for (auto& caller : callers_) Hear(caller.get());
      callers_.erase(
          std::remove_if(callers_.begin(), callers_.end(),
                         [](const std::unique_ptr<Caller>& caller) { return caller->connection == nullptr; }),
          callers_.end());
      ForgetTheLost();
      Report();
    }
    for (auto& connection : connections_) {
      if (connection != nullptr) connection->Send(ServerHandshake::Start());
    }
    meeting->job_id = number_;
    meeting->connections = std::move(connections_);
    return Status();
  }

 private:
  std::vector<int> Missing() const {
    std::vector<int> missing;
    for (size_t process = 1; process < connections_.size(); ++process) {
      if (connections_[process] == nullptr) missing.push_back(static_cast<int>(process));
    }
    return missing;
  }

  void AwaitNews() {
    std::vector<pollfd> fds = {{listener_.fd(), POLLIN, 0}};
    for (const auto& caller : callers_) fds.push_back({caller->connection->fd(), POLLIN, 0});
    for (const auto& connection : connections_) {
      if (connection != nullptr) fds.push_back({connection->fd(), POLLIN, 0});
    }
    poll(fds.data(), fds.size(), 100);
  }

  // When there are too many, the one that has been there for longest goes: a worker needs a moment only.
  void TakeCallers() {
    const size_t room = kMostCallers + connections_.size();
    for (size_t i = 0; i < room; ++i) {
      const int fd = accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) return;
      PrepareSocket(fd);
      callers_.emplace_back(new Caller(fd, options_.identity, number_));
      if (callers_.size() > room) callers_.erase(callers_.begin());
    }
  }

  // Takes what the caller has said; admits it, refuses it, or waits for more.
  void Hear(Caller* caller) {
    Connection* connection = caller->connection.get();
    const bool open = connection->Receive(kHelloLimit);
    for (std::string frame; connection->Next(&frame, kHelloLimit);) {
      const HandshakeStep step = caller->handshake.Take(frame);
      if (step.kind == HandshakeStep::kSend) {
        connection->Send(step.text);
        continue;
      }
      if (step.kind == HandshakeStep::kFail) return Refuse(caller, step.text);
      return Admit(caller, step.text, open);
    }
    if (connection->broken() && !connection->received().empty()) {
      return Refuse(caller, "this is the control plane of an EPL job, and the caller is no process of one");
    }
    if (!open || connection->broken()) {
      caller->connection.reset();
    } else if (Now() - caller->since > kHandshakeTimeout) {
      Note(caller, "it did not prove who it is within " + Seconds(kHandshakeTimeout) + " s");
      caller->connection.reset();  // without a word: a worker that was held up comes again
    }
  }

  void Admit(Caller* caller, const std::string& answer, bool open) {
    std::unique_ptr<Connection>& place = connections_[caller->handshake.process()];
    if (place != nullptr) {
      return Refuse(caller, Format("its index %d is already taken by another process at %s: give every worker its own "
                                   "task index in TF_CONFIG",
                                   caller->handshake.process(), PeerAddress(place->fd()).c_str()));
    }
    if (open) {
      caller->connection->Send(answer);
      place = std::move(caller->connection);
    }
    caller->connection.reset();
  }

  void Refuse(Caller* caller, const std::string& why) {
    Note(caller, why);
    Connection* connection = caller->connection.get();
    connection->SendLast(ServerHandshake::Refused("worker 0 (" + options_.hosts[0] + ") refused this process: " + why,
                                                  EPL_FAILED_PRECONDITION));
    shutdown(connection->fd(), SHUT_WR);
    caller->connection.reset();
  }

  void Note(Caller* caller, const std::string& why) {
    const std::string address = PeerAddress(caller->connection->fd());
    const std::string host = address.substr(0, address.rfind(':'));
    const std::pair<std::string, std::string> reason(host, why);
    const bool is_new = refusals_.count(reason) == 0;
    if (is_new && refusals_.size() == kMostReasons) return;
    const size_t times = ++refusals_[reason];
    if (times > kMostRefusals) return;
    const std::string note = "a caller from " + address + " was refused: " + why;
    Print(note);
    if (is_new) notes_.push_back(note);
    if (times == kMostRefusals) {
      Print("more callers from " + host + " that are refused for this reason are not reported");
    }
    if (is_new && refusals_.size() == kMostReasons) {
      Print("callers from other hosts, or refused for other reasons, are not reported");
    }
  }

  // One that came and went (it was killed, say) is awaited again; so is one that speaks before the job starts, which no
  // worker does.
  void ForgetTheLost() {
    for (size_t process = 1; process < connections_.size(); ++process) {
      Connection* connection = connections_[process].get();
      if (connection == nullptr || (connection->Receive(kHelloLimit) && connection->received().empty())) continue;
      const std::string note = options_.NameOf(static_cast<int>(process)) + " appeared and was lost again";
      if (std::find(notes_.begin(), notes_.end(), note) == notes_.end()) notes_.push_back(note);
      connections_[process].reset();
    }
  }

  // Says now and then who is missing, here and to those that have come.
  void Report() {
    const double waited = Now() - start_;
    if (waited >= next_probe_) {
      next_probe_ += kReportEvery;
      std::map<int, std::string> addresses;
      for (int process : Missing()) {
        if (addresses.size() < kMostNamed) addresses[process] = options_.hosts[process];
      }
      reachability_.Probe(std::move(addresses));
    }
    const std::vector<int> missing = Missing();
    if (waited < next_report_ || missing.empty()) return;
    next_report_ += kReportEvery;
    const std::string text = Format("%s has waited %s s for %s", options_.NameOf(0).c_str(),
                                    Seconds(static_cast<int>(waited)).c_str(), Names(missing, true).c_str());
    Print(text);
    for (auto& connection : connections_) {
      if (connection != nullptr) connection->Send(ServerHandshake::Waiting(text));
    }
  }

  std::string Names(const std::vector<int>& processes, bool with_reasons) {
    std::string text;
    for (size_t i = 0; i < processes.size() && i < kMostNamed; ++i) {
      const std::string why = with_reasons ? reachability_.About(processes[i]) : "";
      text += (i == 0 ? "" : ", ") + options_.NameOf(processes[i]) + (why.empty() ? "" : " [" + why + "]");
    }
    if (processes.size() > kMostNamed) text += Format(" and %d more", static_cast<int>(processes.size() - kMostNamed));
    return text;
  }

  Status GiveUp() {
    const std::vector<int> missing = Missing();
    const bool several = missing.size() > 1;
    std::string message = Format(
        "%s did not appear within %s s; worker 0 waited for %s at %s: look into %s log for an earlier error, and check "
        "that the address of worker 0 can be reached from there; if %s data before the first session, raise "
        "communication.start_timeout",
        Names(missing, false).c_str(), Seconds(options_.start_timeout_s).c_str(), several ? "them" : "it",
        options_.hosts[0].c_str(), several ? "their" : "its", several ? "they prepare" : "it prepares");
    for (size_t i = 0; i < missing.size() && i < kMostNamed; ++i) {
      const std::string why = reachability_.About(missing[i]);
      if (!why.empty()) message += Format("; worker %d: %s", missing[i], why.c_str());
    }
    for (const std::string& note : notes_) message += "; " + note;
    for (auto& connection : connections_) {
      if (connection != nullptr) connection->Send(ServerHandshake::Refused(message, EPL_DEADLINE_EXCEEDED));
    }
    return Status(EPL_DEADLINE_EXCEEDED, message);
  }

  const RendezvousOptions& options_;
  Connection listener_;
  uint64_t number_ = 0;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<std::unique_ptr<Caller>> callers_;
  std::vector<std::string> notes_;
  std::map<std::pair<std::string, std::string>, size_t> refusals_;  // how often, by host and reason
  Reachability reachability_;
  const double start_ = Now();
  double next_probe_ = kFirstProbe;
  double next_report_ = kReportEvery;
};

Status AcceptOthers(const RendezvousOptions& options, Meeting* meeting) {
  int listen_fd = -1;
  if (options.listen_fd >= 0) {
    listen_fd = dup(options.listen_fd);
    if (listen_fd < 0) {
      return Status(EPL_INVALID_ARGUMENT,
                    Format("the inherited listening socket %d is not open: %s", options.listen_fd, strerror(errno)));
    }
  } else {
    Status status = Listen(options.hosts[0], options.hosts, &listen_fd);
    if (!status.ok()) return status;
  }
  PrepareSocket(listen_fd);
  return Acceptor(options, listen_fd).AcceptAll(meeting);
}

// A process other than 0: tries to connect to process 0 until it is admitted.
class Connector {
 public:
  explicit Connector(const RendezvousOptions& options) : options_(options) {}

  Status ConnectUntilAccepted(Meeting* meeting) {
    const double deadline = start_ + options_.start_timeout_s;
    Status status;
    for (double pause = 0.01;; pause = std::min(pause * 1.5, 0.3)) {
      bool final = false;
      status = Try(deadline, &final, meeting);
      if (status.ok() || final) return status;
      Report(status.message());
      if (Now() + pause >= deadline) break;
      std::this_thread::sleep_for(std::chrono::duration<double>(pause));
    }
    return Status(
        EPL_DEADLINE_EXCEEDED,
        Format("%s did not appear within %s s: %s; look into its log for an earlier error, and check that its "
               "address can be reached from here; if it prepares data before its first session, raise "
               "communication.start_timeout",
               options_.NameOf(0).c_str(), Seconds(options_.start_timeout_s).c_str(), status.message().c_str()));
  }

 private:
  // One attempt. `final`: another one would not help.
  Status Try(double deadline, bool* final, Meeting* meeting) {
    int fd = -1;
    Status status = Connect(options_.hosts[0], std::max(0.1, std::min(5.0, deadline - Now())), &fd);
    if (!status.ok()) return status;
    std::unique_ptr<Connection> connection(new Connection(fd));
    ClientHandshake handshake(options_.identity);
    connection->Send(handshake.hello());
    // Worker 0 may have started later and says itself who is missing, so it is given a little longer.
    while (Now() < deadline + 5) {
      WaitReadable(fd, 0.2);
      const bool open = connection->Receive(kHandshakeLimit);
      for (std::string frame; connection->Next(&frame, kHandshakeLimit);) {
        if (!IsHandshake(frame)) return AnotherProgram(final);
        const HandshakeStep step = handshake.Take(frame);
        if (step.kind == HandshakeStep::kSend) connection->Send(step.text);
        if (step.kind == HandshakeStep::kSay) Say(step.text);
        if (step.kind == HandshakeStep::kFail) {
          *final = true;
          return Status(step.code, handshake.server_is_proven() || step.text.rfind("worker 0", 0) == 0
                                       ? step.text
                                       : options_.NameOf(0) + ": " + step.text);
        }
        if (step.kind == HandshakeStep::kDone) {
          meeting->job_id = handshake.number();
          meeting->connections.resize(options_.hosts.size());
          meeting->connections[0] = std::move(connection);
          return Status();
        }
      }
      if (connection->broken() && !connection->received().empty() && !handshake.server_is_proven())
        return AnotherProgram(final);
      if (!open || connection->broken()) {
        return Status(EPL_INTERNAL, "it closed the connection while the job was starting");
      }
      Report(handshake.server_is_proven() ? "it has accepted this worker, and says nothing more"
                                          : "its port is open, and it has not answered yet");
    }
    return Status(EPL_DEADLINE_EXCEEDED, "it took the connection and did not answer");
  }

  Status AnotherProgram(bool* final) const {
    *final = true;
    return Status(EPL_FAILED_PRECONDITION,
                  Format("%s answers, but not as the control plane of an EPL job: another program uses its port",
                         options_.NameOf(0).c_str()));
  }

  // Prints what worker 0 says while this process waits.
  void Say(const std::string& text) {
    Print(text);
    next_report_ = Now() - start_ + 1.5 * kReportEvery;
  }

  // Says now and then what holds this worker up.
  void Report(const std::string& why) {
    const double waited = Now() - start_;
    if (waited < next_report_) return;
    next_report_ = waited + kReportEvery;
    Print(Format("%s has waited %s s for %s: %s", options_.NameOf(options_.identity.process).c_str(),
                 Seconds(static_cast<int>(waited)).c_str(), options_.NameOf(0).c_str(), why.c_str()));
  }

  const RendezvousOptions& options_;
  const double start_ = Now();
  double next_report_ = kReportEvery;
};

}  // namespace

std::string RendezvousOptions::NameOf(int index) const { return Format("worker %d (%s)", index, hosts[index].c_str()); }

Status Meet(const RendezvousOptions& options, Meeting* meeting) {
  return options.identity.process == 0 ? AcceptOthers(options, meeting)
                                       : Connector(options).ConnectUntilAccepted(meeting);
}

}  // namespace epl
