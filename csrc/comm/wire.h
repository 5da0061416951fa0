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

// Packs numbers and byte strings. Processes of one job run the same build on the same kind of machine (the greeting
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
  bool ok() const { return ok_; }

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
  // Reads what is there. False when the other side is gone; whole frames that came before are still in Next.
  bool Receive();
  // The next whole frame, if there is one. A frame longer than `limit` breaks the connection.
  bool Next(std::string* frame, uint64_t limit = uint64_t{1} << 40);
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

// Listens on "host:port". The port must be free; the error says who to ask.
Status Listen(const std::string& address, int* fd);
// Tries once to connect to "host:port"; `fd` is a connected nonblocking socket. Waits at most `timeout_s`.
Status Connect(const std::string& address, double timeout_s, int* fd);
// Sets what every connection of a job needs: no delay, not inherited, a silent other machine noticed within seconds.
void PrepareSocket(int fd);
// Waits until `fd` can be read or `timeout_s` is over.
bool WaitReadable(int fd, double timeout_s);
// The address at the other end, "127.0.0.1:40112".
std::string PeerAddress(int fd);

}  // namespace epl

#endif  // EPL_COMM_WIRE_H_
