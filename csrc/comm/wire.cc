// TCP sockets of the control plane.

#include "comm/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

namespace epl {
namespace {

Status SplitAddress(const std::string& address, std::string* host, std::string* port) {
  size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) {
    return Status(EPL_INVALID_ARGUMENT, Format("'%s' is not an address: expected host:port", address.c_str()));
  }
  *host = address.substr(0, colon);
  *port = address.substr(colon + 1);
  if (host->size() >= 2 && host->front() == '[' && host->back() == ']') *host = host->substr(1, host->size() - 2);
  return Status();
}

// The addresses that the name in "host:port" means.
class AddressList {
 public:
  ~AddressList() {
    if (list_ != nullptr) freeaddrinfo(list_);
  }
  // `everywhere`: those of every interface of this machine, whatever the name.
  Status Resolve(const std::string& address, bool everywhere) {
    std::string host, port;
    Status status = SplitAddress(address, &host, &port);
    if (!status.ok()) return status;
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = everywhere ? AI_PASSIVE : 0;
    int error = getaddrinfo(everywhere ? nullptr : host.c_str(), port.c_str(), &hints, &list_);
    if (error != 0) {
      return Status(EPL_INVALID_ARGUMENT, Format("cannot resolve '%s': %s", address.c_str(), gai_strerror(error)));
    }
    return Status();
  }
  addrinfo* begin() const { return list_; }

 private:
  addrinfo* list_ = nullptr;
};

void SetOption(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof(value)); }

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == 127;
  }
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

// A name that means this machine on every machine.
bool NamesLoopback(const std::string& host) {
  return host == "localhost" || host.rfind("127.", 0) == 0 || host == "[::1]" || host == "::1";
}

// Whether the others come to the address that the name means here.
bool TellsInterface(const std::string& address, const std::vector<std::string>& hosts, const AddressList& list) {
  const std::string own = HostOf(address);
  if (NamesLoopback(own)) return true;
  if (std::all_of(hosts.begin(), hosts.end(), [&](const std::string& host) { return HostOf(host) == own; }))
    return true;
  // Distributions let a machine's own name mean 127.0.1.1.
  for (addrinfo* info = list.begin(); info != nullptr; info = info->ai_next) {
    if (IsLoopback(info->ai_addr)) return false;
  }
  return true;
}

// Listens at the first of the addresses that can be had; 0, or the error of the last.
int ListenAtOne(const AddressList& list, int* fd) {
  int error = EADDRNOTAVAIL;
  for (addrinfo* info = list.begin(); info != nullptr; info = info->ai_next) {
    int s = socket(info->ai_family, info->ai_socktype | SOCK_CLOEXEC, info->ai_protocol);
    if (s < 0) continue;
    SetOption(s, SOL_SOCKET, SO_REUSEADDR, 1);
    if (info->ai_family == AF_INET6) SetOption(s, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (bind(s, info->ai_addr, info->ai_addrlen) == 0 && listen(s, 1024) == 0) {
      *fd = s;
      return 0;
    }
    error = errno;
    close(s);
  }
  return error;
}

// Connects to one address; 0, or the error.
int ConnectTo(const addrinfo& info, double timeout_s, int* fd) {
  int s = socket(info.ai_family, info.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, info.ai_protocol);
  if (s < 0) return errno;
  int error = connect(s, info.ai_addr, info.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd poll_fd = {s, POLLOUT, 0};
    int ready = poll(&poll_fd, 1, static_cast<int>(timeout_s * 1000));
    socklen_t size = sizeof(error);
    if (ready <= 0) {
      error = ETIMEDOUT;
    } else {
      getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  // A connection to a local port in the ephemeral range can meet itself when nobody listens there.
  sockaddr_storage self = {}, peer = {};
  socklen_t self_size = sizeof(self), peer_size = sizeof(peer);
  if (error == 0 && getsockname(s, reinterpret_cast<sockaddr*>(&self), &self_size) == 0 &&
      getpeername(s, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0 && self_size == peer_size &&
      memcmp(&self, &peer, self_size) == 0) {
    error = ECONNREFUSED;
  }
  if (error != 0) {
    close(s);
    return error;
  }
  PrepareSocket(s);
  *fd = s;
  return 0;
}

}  // namespace

void PrepareSocket(int fd) {
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // A machine that fell silent is given up after about 3 + 3 * 1 s without an answer.
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, 3);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 7000);
}

Status Listen(const std::string& address, const std::vector<std::string>& hosts, int* fd) {
  AddressList own, everywhere;
  int error = EADDRNOTAVAIL;
  if (own.Resolve(address, /*everywhere=*/false).ok() && TellsInterface(address, hosts, own)) {
    error = ListenAtOne(own, fd);
  }
  if (error == EADDRNOTAVAIL) {  // also where ports are forwarded to this machine from the address that the others use
    Status status = everywhere.Resolve(address, /*everywhere=*/true);
    if (!status.ok()) return status;
    error = ListenAtOne(everywhere, fd);
  }
  if (error == 0) return Status();
  return Status(EPL_FAILED_PRECONDITION,
                Format("cannot listen at %s: %s; another program, or another worker with the same task index, may use "
                       "the port: choose a free port or end that program",
                       address.c_str(), strerror(error)));
}

Status Connect(const std::string& address, double timeout_s, int* fd) {
  AddressList list;
  Status status = list.Resolve(address, /*everywhere=*/false);
  if (!status.ok()) return status;
  int error = EADDRNOTAVAIL;
  for (addrinfo* info = list.begin(); info != nullptr; info = info->ai_next) {
    error = ConnectTo(*info, timeout_s, fd);
    if (error == 0) return Status();
  }
  return Status(EPL_INTERNAL, Format("cannot connect to %s: %s", address.c_str(), strerror(error)));
}

std::string WhyUnreachable(const std::string& address, double timeout_s) {
  AddressList list;
  Status status = list.Resolve(address, /*everywhere=*/false);
  if (!status.ok()) return status.message();
  int error = EADDRNOTAVAIL;
  for (addrinfo* info = list.begin(); info != nullptr; info = info->ai_next) {
    int fd = -1;
    error = ConnectTo(*info, timeout_s, &fd);
    if (error == 0) close(fd);
    if (error == 0 || error == ECONNREFUSED) return "";
  }
  return Format("its machine cannot be reached: %s", strerror(error));
}

bool WaitReadable(int fd, double timeout_s) {
  pollfd poll_fd = {fd, POLLIN, 0};
  return poll(&poll_fd, 1, timeout_s <= 0 ? 0 : static_cast<int>(timeout_s * 1000) + 1) > 0;
}

std::string PeerAddress(int fd) {
  sockaddr_storage peer = {};
  socklen_t size = sizeof(peer);
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&peer), size, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown address";
  }
  std::string name = host;
  if (name.rfind("::ffff:", 0) == 0) name = name.substr(7);
  return name + ":" + port;
}

void Connection::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void Connection::Send(std::string_view frame) {
  if (broken_ || fd_ < 0) return;
  uint64_t size = frame.size();
  out_.append(reinterpret_cast<const char*>(&size), sizeof(size));
  out_.append(frame.data(), frame.size());
  Flush();
}

void Connection::SendLast(std::string_view frame) {
  if (fd_ < 0) return;
  uint64_t size = frame.size();
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof(size));
  bytes.append(frame.data(), frame.size());
  ssize_t ignored = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  static_cast<void>(ignored);
}

void Connection::Flush() {
  while (!broken_ && sent_ < out_.size()) {
    ssize_t size = send(fd_, out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
    if (size > 0) {
      sent_ += size;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      broken_ = true;
    }
  }
  out_.clear();
  sent_ = 0;
}

bool Connection::Receive(size_t most) {
  if (taken_ > 0) {
    in_.erase(0, taken_);
    taken_ = 0;
  }
  char buffer[65536];
  for (size_t got = 0; !broken_;) {
    if (got >= most) return true;
    ssize_t size = recv(fd_, buffer, std::min(sizeof(buffer), most - got), 0);
    if (size > 0) {
      in_.append(buffer, size);
      got += size;
    } else if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return true;
    } else if (size == 0 || errno != EINTR) {
      broken_ = true;
    }
  }
  return false;
}

bool Connection::Next(std::string* frame, uint64_t limit) {
  uint64_t size;
  if (in_.size() - taken_ < sizeof(size)) return false;
  memcpy(&size, in_.data() + taken_, sizeof(size));
  if (size > limit) {
    broken_ = true;
    return false;
  }
  if (in_.size() - taken_ - sizeof(size) < size) return false;
  frame->assign(in_, taken_ + sizeof(size), size);
  taken_ += sizeof(size) + size;
  return true;
}

}  // namespace epl
