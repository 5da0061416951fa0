// Greeting, serving and leaving.

#include "comm/control.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>

namespace epl {
namespace {

constexpr uint64_t kMagic = 0x314d4d4f434c5045;  // "EPLCOMM1" in memory
constexpr uint32_t kProtocol = 2;
constexpr uint64_t kGreetingLimit = 65536;
constexpr double kGreetingTimeout = 10;  // seconds that a caller may take to say who it is
constexpr double kGoodbyeTimeout = 2;

enum class Greeting : uint8_t { kStart, kRefused };

struct Hello {
  uint64_t magic = kMagic;
  uint32_t protocol = kProtocol;
  int32_t num_processes = 0;
  int32_t process = 0;
  int32_t pid = 0;
};

std::string Refusal(const std::string& message) {
  return Writer().Put(kMagic).Put(Greeting::kRefused).PutBytes(message).bytes();
}

// One caller at the door of process 0, before it belongs to the job.
struct Caller {
  std::unique_ptr<Connection> connection;
  double since;
};

std::string JoinWords(const std::vector<std::string>& items, const char* separator) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : separator) + item;
  return text;
}

// Empty if the caller may join, else why not.
std::string CheckHello(const Hello& hello, const ControlOptions& options,
                       const std::vector<std::unique_ptr<Connection>>& taken) {
  int size = options.hosts.size();
  if (hello.magic != kMagic) return "this is the control plane of an EPL job, and the caller is no process of one";
  if (hello.protocol != kProtocol) {
    return Format("it speaks version %u of the protocol, worker 0 speaks %u: install the same EPL on every machine",
                  hello.protocol, kProtocol);
  }
  if (hello.num_processes != size) {
    return Format(
        "it was started for a job of %d processes, worker 0 for one of %d: give every worker the same "
        "cluster in TF_CONFIG",
        hello.num_processes, size);
  }
  if (hello.process <= 0 || hello.process >= size || taken[hello.process] != nullptr) {
    std::string owner = hello.process == 0 ? "worker 0 itself" : "another process";
    if (hello.process > 0 && hello.process < size) {
      owner += " at " + PeerAddress(taken[hello.process]->fd());
    }
    return Format("its index %d is already taken by %s: give every worker its own task index in TF_CONFIG",
                  hello.process, owner.c_str());
  }
  return "";
}

}  // namespace

std::string ControlOptions::NameOf(int index) const { return Format("worker %d (%s)", index, hosts[index].c_str()); }

ControlPlane::ControlPlane(const ControlOptions& options, Handler handler)
    : options_(options),
      handler_(std::move(handler)),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      pulse_(options_.hosts.size()) {
  connections_.resize(options_.hosts.size());
}

Status ControlPlane::Start(const ControlOptions& options, Handler handler, std::unique_ptr<ControlPlane>* control) {
  std::unique_ptr<ControlPlane> plane(new ControlPlane(options, std::move(handler)));
  Status status = options.process == 0 ? plane->Meet() : plane->Join();
  if (!status.ok()) return status;
  plane->thread_ = std::thread([raw = plane.get()] { raw->Serve(); });
  *control = std::move(plane);
  return Status();
}

ControlPlane::~ControlPlane() {
  stop_ = true;
  Wake();
  if (thread_.joinable()) thread_.join();
  close(wake_fd_);
}

Status ControlPlane::Meet() {
  const int size = options_.hosts.size();
  int listen_fd = -1;
  if (options_.listen_fd >= 0) {
    listen_fd = dup(options_.listen_fd);
    if (listen_fd < 0) {
      return Status(EPL_INVALID_ARGUMENT,
                    Format("the inherited listening socket %d is not open: %s", options_.listen_fd, strerror(errno)));
    }
  } else {
    Status status = Listen(options_.hosts[0], &listen_fd);
    if (!status.ok()) return status;
  }
  PrepareSocket(listen_fd);
  std::unique_ptr<Connection> listener(new Connection(listen_fd));

  std::random_device random;
  job_id_ = (uint64_t{random()} << 32) | random();
  std::vector<Caller> callers;
  std::vector<std::string> notes;
  const double deadline = Now() + options_.start_timeout_s;
  for (;;) {
    std::vector<std::string> missing;
    for (int process = 1; process < size; ++process) {
      if (connections_[process] == nullptr) missing.push_back(options_.NameOf(process));
    }
    if (missing.empty()) break;
    if (Now() >= deadline) {
      std::string message = Format(
          "%s did not appear within %s s; worker 0 waited for %s at %s: look into %s log for an earlier error, and "
          "check "
          "that the address of worker 0 can be reached from there",
          JoinWords(missing, ", ").c_str(), Seconds(options_.start_timeout_s).c_str(),
          missing.size() > 1 ? "them" : "it", options_.hosts[0].c_str(), missing.size() > 1 ? "their" : "its");
      for (const std::string& note : notes) message += "; " + note;
      for (auto& connection : connections_) {
        if (connection != nullptr) connection->Send(Refusal(message));
      }
      return Status(EPL_DEADLINE_EXCEEDED, message);
    }

    std::vector<pollfd> fds = {{listen_fd, POLLIN, 0}};
    for (const Caller& caller : callers) fds.push_back({caller.connection->fd(), POLLIN, 0});
    for (const auto& connection : connections_) {
      if (connection != nullptr) fds.push_back({connection->fd(), POLLIN, 0});
    }
    poll(fds.data(), fds.size(), 100);

    for (int fd; (fd = accept4(listen_fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;) {
      PrepareSocket(fd);
      callers.push_back({std::unique_ptr<Connection>(new Connection(fd)), Now()});
    }
    for (Caller& caller : callers) {
      Connection* connection = caller.connection.get();
      bool open = connection->Receive();
      std::string frame;
      std::string why;
      Hello hello;
      if (connection->Next(&frame, kGreetingLimit)) {
        if (frame.size() == sizeof(hello)) {
          memcpy(&hello, frame.data(), sizeof(hello));
        } else {
          hello.magic = 0;
        }
        why = CheckHello(hello, options_, connections_);
        if (why.empty() && open) {
          connections_[hello.process] = std::move(caller.connection);
          continue;
        }
      } else if (open && !connection->broken() && Now() - caller.since < kGreetingTimeout) {
        continue;
      } else if (open || connection->broken()) {
        why = open && !connection->broken()    ? "it did not say who it is"
              : connection->received().empty() ? ""
                                               : "this is the control plane of an EPL job, and the caller is no "
                                                 "process of one";
      }
      if (!why.empty()) {
        notes.push_back("a caller from " + PeerAddress(connection->fd()) + " was refused: " + why);
        fprintf(stderr, "EPL: %s\n", notes.back().c_str());
        connection->SendLast(Refusal("worker 0 (" + options_.hosts[0] + ") refused this process: " + why));
        shutdown(connection->fd(), SHUT_WR);
      }
      caller.connection.reset();
    }
    callers.erase(std::remove_if(callers.begin(), callers.end(),
                                 [](const Caller& caller) { return caller.connection == nullptr; }),
                  callers.end());
    // One that came and went (it was killed, say) is awaited again.
    for (int process = 1; process < size; ++process) {
      if (connections_[process] != nullptr && !connections_[process]->Receive()) {
        notes.push_back(options_.NameOf(process) + " appeared and was lost again");
        connections_[process].reset();
      }
    }
  }

  coordinator_.reset(new Coordinator(size, [this](int to, const std::string& message) {
    if (to == 0) {
      inbox_.push_back(message);
    } else if (connections_[to] != nullptr) {
      connections_[to]->Send(message);
    }
  }));
  std::string start = Writer().Put(kMagic).Put(Greeting::kStart).Put(job_id_).bytes();
  for (int process = 1; process < size; ++process) connections_[process]->Send(start);
  return Status();
}

Status ControlPlane::Join() {
  const double deadline = Now() + options_.start_timeout_s;
  Status status;
  for (double pause = 0.01;; pause = std::min(pause * 1.5, 0.3)) {
    bool final = false;
    status = TryJoin(deadline, &final);
    if (status.ok() || final) return status;
    if (Now() + pause >= deadline) break;
    std::this_thread::sleep_for(std::chrono::duration<double>(pause));
  }
  return Status(
      EPL_DEADLINE_EXCEEDED,
      Format("%s did not appear within %s s: %s; look into its log for an earlier error, and check that its "
             "address can be reached from here",
             options_.NameOf(0).c_str(), Seconds(options_.start_timeout_s).c_str(), status.message().c_str()));
}

Status ControlPlane::TryJoin(double deadline, bool* final) {
  int fd = -1;
  Status status = Connect(options_.hosts[0], std::max(0.1, std::min(5.0, deadline - Now())), &fd);
  if (!status.ok()) return status;
  std::unique_ptr<Connection> connection(new Connection(fd));
  Hello hello;
  hello.num_processes = options_.hosts.size();
  hello.process = options_.process;
  hello.pid = getpid();
  connection->Send(std::string_view(reinterpret_cast<const char*>(&hello), sizeof(hello)));
  // Worker 0 may have started later and says itself who is missing, so it is given a little longer.
  while (Now() < deadline + 5) {
    WaitReadable(fd, 0.2);
    bool open = connection->Receive();
    std::string frame;
    if (connection->Next(&frame, kGreetingLimit)) {
      Reader reader(frame);
      if (reader.Get<uint64_t>() == kMagic) {
        Greeting greeting = reader.Get<Greeting>();
        if (greeting == Greeting::kStart) {
          job_id_ = reader.Get<uint64_t>();
          connections_[0] = std::move(connection);
          return Status();
        }
        *final = true;
        std::string message(reader.GetBytes());
        bool late = message.find("did not appear") != std::string::npos;
        return Status(late ? EPL_DEADLINE_EXCEEDED : EPL_FAILED_PRECONDITION, message);
      }
      connection->Close();
    }
    if (connection->broken() && !connection->received().empty()) {
      *final = true;
      return Status(EPL_FAILED_PRECONDITION,
                    Format("%s answers, but not as the control plane of an EPL job: another program uses its port",
                           options_.NameOf(0).c_str()));
    }
    if (!open || connection->broken() || connection->fd() < 0) {
      return Status(EPL_INTERNAL, "it closed the connection while the job was starting");
    }
  }
  return Status(EPL_DEADLINE_EXCEEDED, "it took the connection and did not answer");
}

void ControlPlane::Wake() {
  uint64_t one = 1;
  ssize_t ignored = write(wake_fd_, &one, sizeof(one));
  static_cast<void>(ignored);
}

void ControlPlane::Send(const std::string& message) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (coordinator_ != nullptr) {
    coordinator_->Handle(0, message);
    Wake();
  } else if (connections_[0] != nullptr) {
    connections_[0]->Send(message);
    if (connections_[0]->wants_to_write() || connections_[0]->broken()) Wake();
  }
}

void ControlPlane::Serve() {
  while (!stop_) ServeOnce();
}

void ControlPlane::ServeOnce() {
  std::vector<pollfd> fds = {{wake_fd_, POLLIN, 0}};
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& connection : connections_) {
      if (connection == nullptr) continue;
      fds.push_back({connection->fd(), static_cast<short>(POLLIN | (connection->wants_to_write() ? POLLOUT : 0)), 0});
    }
  }
  poll(fds.data(), fds.size(), 500);
  uint64_t count;
  ssize_t ignored = read(wake_fd_, &count, sizeof(count));
  static_cast<void>(ignored);

  std::deque<std::string> messages;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    pulse_.Begin(Now());
    if (pulse_.due() && coordinator_ == nullptr && connections_[0] != nullptr) {
      connections_[0]->Send(Writer().Put(Message::kPulse).bytes());
    }
    for (size_t process = 0; process < connections_.size(); ++process) {
      Connection* connection = connections_[process].get();
      if (connection == nullptr) {
        pulse_.Heard(process);
        continue;
      }
      connection->Flush();
      bool open = connection->Receive();
      std::string frame;
      bool sane = true;
      while (sane && connection->Next(&frame)) {
        if (TakePulse(process, frame, &sane)) continue;
        if (coordinator_ != nullptr) {
          sane = coordinator_->Handle(process, frame);
        } else {
          if (Reader(frame).Get<Message>() == Message::kLeft) {
            Reader reader(frame);
            reader.Get<Message>();
            if (reader.Get<int32_t>() == 0) left_by_coordinator_ = true;
          }
          inbox_.push_back(frame);
        }
      }
      if (open && sane && !connection->broken()) continue;
      const char* reason = sane ? "its connection was closed without a goodbye" : "it sent what makes no sense";
      if (coordinator_ != nullptr) {
        coordinator_->Lost(process, reason);
      } else if (!left_by_coordinator_ && !leaving_) {
        inbox_.push_back(Writer().Put(Message::kDied).Put<int32_t>(0).PutBytes(reason).bytes());
      }
      connections_[process].reset();
    }
    messages.swap(inbox_);
  }
  for (const std::string& message : messages) handler_(message);
}

bool ControlPlane::TakePulse(size_t process, const std::string& frame, bool* sane) {
  pulse_.Heard(process);
  const Message kind = Reader(frame).Get<Message>();
  if (coordinator_ != nullptr && kind == Message::kPulse) {
    connections_[process]->Send(pulse_.Report());
    return true;
  }
  if (coordinator_ == nullptr && kind == Message::kSilent) {
    *sane = pulse_.Take(frame);
    return true;
  }
  return false;
}

std::vector<double> ControlPlane::Silences() {
  std::lock_guard<std::mutex> lock(mutex_);
  return pulse_.Silences();
}

bool ControlPlane::AllHeardGoodbye() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& connection : connections_) {
    if (connection == nullptr) continue;
    if (!connection->wants_to_write()) shutdown(connection->fd(), SHUT_WR);
  }
  return std::all_of(connections_.begin(), connections_.end(),
                     [](const std::unique_ptr<Connection>& connection) { return connection == nullptr; });
}

void ControlPlane::Leave() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    leaving_ = true;
  }
  Send(Writer().Put(Message::kGoodbye).bytes());
  // The other side closes once it has read the goodbye; closing first could throw the goodbye away with a reset.
  for (double deadline = Now() + kGoodbyeTimeout; Now() < deadline && !AllHeardGoodbye();) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  stop_ = true;
  Wake();
  if (thread_.joinable()) thread_.join();
}

}  // namespace epl
