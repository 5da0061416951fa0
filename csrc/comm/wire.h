// Bytes on the control plane: how messages are packed, framed and moved over TCP sockets. Knows no message's meaning.

#ifndef EPL_COMM_WIRE_H_
#define EPL_COMM_WIRE_H_

#include <stdint.h>
#include <string.h>

#include <string>
#include <string_view>
#include <vector>

#include "comm/status.h"

namespace epl {

// Packs numbers and byte strings. Processes of one job run the same build on the same kind of machine (the handshake
// checks it), so numbers travel as they lie in memory.
class Writer {
 public:
  template <typename T>
  Writer& Put(T value) {
    static_assert(std::is_trivially_copyable<T>::value, "numbers only");
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Writer& PutBytes(std::string_view bytes) {
    Put<int64_t>(bytes.size());
    bytes_.append(bytes.data(), bytes.size());
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Unpacks what Writer packed; `ok()` turns false, and everything read is zero, once more is read than is there.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T Get() {
    T value{};
    if (bytes_.size() < sizeof(value)) {
      Fail();
    } else {
      memcpy(&value, bytes_.data(), sizeof(value));
      bytes_.remove_prefix(sizeof(value));
    }
    return value;
  }
  std::string_view GetBytes() {
    int64_t size = Get<int64_t>();
    if (size < 0 || static_cast<uint64_t>(size) > bytes_.size()) {
      Fail();
      return {};
    }
    std::string_view result = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return result;
  }
  // The number of things that follow, each of at least `each` bytes, in an int32. Zero, and a failure, if it is
  // negative, beyond `most`, or more than the bytes that are left can hold.
  int GetCount(int64_t most, int64_t each) {
    const int64_t count = Get<int32_t>();
    if (count < 0 || count > most || count * each > static_cast<int64_t>(bytes_.size())) {
      Fail();
      return 0;
    }
    return static_cast<int>(count);
  }
  bool ok() const { return ok_; }
  // Everything was read, and nothing more.
  bool done() const { return ok_ && bytes_.empty(); }

 private:
  void Fail() {
    ok_ = false;
    bytes_ = {};
  }

  std::string_view bytes_;
  bool ok_ = true;
};

// A nonblocking TCP connection that carries frames: 8 bytes of length, then the bytes.
class Connection {
 public:
  // More than any frame of a job: descriptions of graphs in text, gathered from all processes.
  static constexpr uint64_t kFrameLimit = uint64_t{4} << 30;

  explicit Connection(int fd) : fd_(fd) {}
  ~Connection() { Close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int fd() const { return fd_; }
  void Close();
  // Appends a frame and writes what the socket takes now. The rest waits for Flush.
  void Send(std::string_view frame);
  // Writes a frame as far as the socket takes it, also to one that sent what makes no sense.
  void SendLast(std::string_view frame);
  void Flush();
  bool wants_to_write() const { return sent_ < out_.size(); }
  // Reads what is there, up to about `most` bytes at once. False when the other side is gone; whole frames that came
  // before are still in Next.
  bool Receive(size_t most = kFrameLimit);
  // The next whole frame, if there is one. A frame longer than `limit` breaks the connection.
  bool Next(std::string* frame, uint64_t limit = kFrameLimit);
  bool broken() const { return broken_; }
  // What was received and is not a frame yet, to show what a stranger said.
  const std::string& received() const { return in_; }

 private:
  int fd_;
  bool broken_ = false;
  std::string out_;
  size_t sent_ = 0;
  std::string in_;
  size_t taken_ = 0;
};

// Listens at `address`, "host:port", for the processes at `hosts`; port 0 takes a free one. Bound to the interface of
// the address, so that a job of one machine cannot be reached from outside. To every interface only where the name of
// the host does not tell which one the others see: it means a loopback address here, or none of this machine.
Status Listen(const std::string& address, const std::vector<std::string>& hosts, int* fd);
// Tries once to connect to "host:port"; `fd` is a connected nonblocking socket. Waits at most `timeout_s` per address
// that the name means.
Status Connect(const std::string& address, double timeout_s, int* fd);
// What is wrong with the way to the machine of "host:port", in words; empty if it answers, were it by a refusal.
std::string WhyUnreachable(const std::string& address, double timeout_s);
// Sets what every connection of a job needs: no delay, not inherited, a silent other machine noticed within seconds.
void PrepareSocket(int fd);
// Waits until `fd` can be read or `timeout_s` is over.
bool WaitReadable(int fd, double timeout_s);
// The address at the other end, "127.0.0.1:40112".
std::string PeerAddress(int fd);

}  // namespace epl

#endif  // EPL_COMM_WIRE_H_
