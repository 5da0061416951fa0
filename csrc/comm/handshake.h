// How worker 0 and another worker make sure of each other before they are of one job: what is said, and how it is
// checked. Turns frames into frames; owns no socket and no clock.
//
//   worker i (ClientHandshake)                                    worker 0 (ServerHandshake)
//   hello: version, job, size, index, nonce ---------->
//                   <---------------------------------- challenge: number of this start of the job, nonce
//   proof: MAC("worker", hello, challenge) ----------->                  refused if wrong
//                   <---------------------------------- accepted: MAC("worker 0", hello, challenge)
//   ends if wrong
//                   <---------------------------------- waiting: for whom, every 10 s
//                   <---------------------------------- start, or refused
//
// The MAC is HMAC-SHA256 under the secret of the job, which only workers of the job know; the caller of the core
// computes it. Both nonces are in it, so that nothing that was said once can be said again, and so are the job's name
// and the number of its start. Worker 0 proves itself last: a stranger who connects gets nothing to guess the secret
// from.

#ifndef EPL_COMM_HANDSHAKE_H_
#define EPL_COMM_HANDSHAKE_H_

#include <stdint.h>

#include <functional>
#include <string>
#include <string_view>

namespace epl {

// No frame of a worker that has not proved itself is longer.
constexpr uint64_t kHelloLimit = 1024;
// No frame of worker 0 is longer before the job starts.
constexpr uint64_t kHandshakeLimit = 65536;
constexpr size_t kMostJobName = 256;

// The MAC of a text, 32 bytes; empty if it cannot be computed. A job without a secret has no function.
using Mac = std::function<std::string(std::string_view)>;

// Who a worker says that it is.
struct Identity {
  std::string job;  // the name of the job; may be empty
  int num_processes = 0;
  int process = 0;
  Mac mac;
};

// What the other side's frame leads to.
struct HandshakeStep {
  enum Kind {
    kSend,  // text is the answer, and more will come
    kWait,  // more will come
    kSay,   // text is a message for people
    kDone,  // ServerHandshake: text is to be sent if the index is free. ClientHandshake: the job starts
    kFail,  // text says why
  };
  Kind kind;
  std::string text;
  int code = 0;  // kFail of a ClientHandshake: the status code that worker 0 gave
};

// Worker 0, for one caller.
class ServerHandshake {
 public:
  // `number` tells this start of the job from all others.
  ServerHandshake(const Identity& identity, uint64_t number) : identity_(identity), number_(number) {}

  // Takes the caller's next frame.
  HandshakeStep Take(std::string_view frame);
  // The caller's index, once it is known for sure: after kDone.
  int process() const { return process_; }

  static std::string Waiting(const std::string& text);
  static std::string Start();
  static std::string Refused(const std::string& why, int code);

 private:
  HandshakeStep TakeHello(std::string_view frame);
  HandshakeStep TakeProof(std::string_view frame);

  const Identity& identity_;
  const uint64_t number_;
  std::string hello_;
  std::string challenge_;
  std::string job_;
  int num_processes_ = 0;
  int process_ = -1;
  bool has_secret_ = false;
};

// A worker that comes to worker 0.
class ClientHandshake {
 public:
  explicit ClientHandshake(const Identity& identity);

  // What it says first.
  const std::string& hello() const { return hello_; }
  // Takes the next frame of worker 0.
  HandshakeStep Take(std::string_view frame);
  // Worker 0 has proved itself.
  bool server_is_proven() const { return state_ == State::kAccepted; }
  // The number of this start of the job, once worker 0 has proved itself.
  uint64_t number() const { return number_; }

 private:
  enum class State { kNew, kChallenged, kAccepted };

  const Identity& identity_;
  std::string hello_;
  std::string challenge_;
  uint64_t number_ = 0;
  State state_ = State::kNew;
};

// Whether the frame is one of this protocol at all.
bool IsHandshake(std::string_view frame);
// The text with everything that could steer a terminal replaced.
std::string Printable(std::string_view text);

}  // namespace epl

#endif  // EPL_COMM_HANDSHAKE_H_
