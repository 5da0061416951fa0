// Serving and leaving.

#include "comm/control.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace epl {
namespace {

constexpr double kGoodbyeTimeout = 2;

}  // namespace

ControlPlane::ControlPlane(Meeting meeting, int process, Handler handler)
    : handler_(std::move(handler)),
      job_id_(meeting.job_id),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      connections_(std::move(meeting.connections)),
      pulse_(connections_.size()) {
  if (process != 0) return;
  coordinator_.reset(new Coordinator(connections_.size(), [this](int to, const std::string& message) {
    if (to == 0) {
      inbox_.push_back(message);
    } else if (connections_[to] != nullptr) {
      connections_[to]->Send(message);
    }
  }));
}

Status ControlPlane::Start(const RendezvousOptions& options, Handler handler, std::unique_ptr<ControlPlane>* control) {
  Meeting meeting;
  Status status = Meet(options, &meeting);
  if (!status.ok()) return status;
  control->reset(new ControlPlane(std::move(meeting), options.identity.process, std::move(handler)));
  (*control)->thread_ = std::thread([raw = control->get()] { raw->Serve(); });
  return Status();
}

ControlPlane::~ControlPlane() {
  stop_ = true;
  Wake();
  if (thread_.joinable()) thread_.join();
  if (wake_fd_ >= 0) close(wake_fd_);
}

void ControlPlane::Wake() {
  uint64_t one = 1;
  ssize_t ignored = write(wake_fd_, &one, sizeof(one));
  static_cast<void>(ignored);
}

void ControlPlane::Send(const std::string& message) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (coordinator_ != nullptr) {
    Coordinate(0, message);
    Wake();
  } else if (connections_[0] != nullptr) {
    connections_[0]->Send(message);
    if (connections_[0]->wants_to_write() || connections_[0]->broken()) Wake();
  }
}

bool ControlPlane::Coordinate(int from, std::string_view message) {
  const std::string wrong = coordinator_->Handle(from, message);
  if (wrong.empty()) return true;
  coordinator_->Lost(from, wrong);
  // The coordinator tells the others; in this process, the job is one of those that must know.
  if (from == 0) inbox_.push_back(Writer().Put(Message::kDied).Put<int32_t>(0).PutBytes(wrong).bytes());
  return false;
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
        pulse_.Gone(process);
        continue;
      }
      connection->Flush();
      bool open = connection->Receive();
      std::string frame;
      bool sane = true;
      while (sane && connection->Next(&frame)) {
        if (TakePulse(process, frame, &sane)) continue;
        if (coordinator_ != nullptr) {
          sane = Coordinate(process, frame);
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
  const int num_processes = static_cast<int>(connections_.size());
  const Message kind = Reader(frame).Get<Message>();
  if (coordinator_ != nullptr && kind == Message::kPulse) {
    ToCoordinator pulse;
    *sane = Parse(frame, num_processes, &pulse);
    if (*sane) connections_[process]->Send(pulse_.Report());
    return true;
  }
  if (coordinator_ == nullptr && kind == Message::kSilent) {
    FromCoordinator silent;
    *sane = Parse(frame, num_processes, &silent);
    if (*sane) pulse_.Take(std::move(silent.silences));
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
  std::lock_guard<std::mutex> lock(mutex_);  // Send may come later
  for (auto& connection : connections_) connection.reset();
  close(wake_fd_);
  wake_fd_ = -1;
}

}  // namespace epl
