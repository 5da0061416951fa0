// The frames of the handshake and their checks.

#include "comm/handshake.h"

#include <random>

#include "comm/status.h"
#include "comm/wire.h"

namespace epl {
namespace {

constexpr uint64_t kMagic = 0x314d4d4f434c5045;  // "EPLCOMM1" in memory
// The first numbers of a hello, magic and protocol, and the frame that refuses are the same in every version.
constexpr uint32_t kProtocol = 3;
constexpr size_t kNonceBytes = 32;
constexpr size_t kMacBytes = 32;
constexpr char kWorker[] = "EPL worker";
constexpr char kWorker0[] = "EPL worker 0";
constexpr char kStranger[] = "this is the control plane of an EPL job, and the caller is no process of one";
constexpr char kGiveTheSame[] = "give every worker of the job the same EPL_JOB_SECRET or EPL_JOB_SECRET_FILE";

enum class Frame : uint8_t { kStart, kRefused, kChallenge, kAccepted, kWaiting };

std::string Nonce() {
  std::random_device random;
  Writer writer;
  for (size_t i = 0; i < kNonceBytes / sizeof(uint32_t); ++i) writer.Put<uint32_t>(random());
  return writer.bytes();
}

Writer Begin(Frame kind) { return Writer().Put(kMagic).Put(kind); }

// What `who` proves to know the secret with; zeros in a job without one.
std::string Proof(const Identity& identity, const char* who, const std::string& hello, const std::string& challenge) {
  if (!identity.mac) return std::string(kMacBytes, '\0');
  return identity.mac(Writer().PutBytes(who).PutBytes(hello).PutBytes(challenge).bytes());
}

// Takes equally long wherever the two differ.
bool SameProof(std::string_view given, std::string_view expected) {
  if (expected.size() != kMacBytes || given.size() != kMacBytes) return false;
  uint8_t difference = 0;
  for (size_t i = 0; i < kMacBytes; ++i) difference |= static_cast<uint8_t>(given[i] ^ expected[i]);
  return difference == 0;
}

HandshakeStep Fail(std::string why, int code = EPL_FAILED_PRECONDITION) {
  return {HandshakeStep::kFail, std::move(why), code};
}

std::string JobName(const std::string& job) { return job.empty() ? "none" : "'" + Printable(job) + "'"; }

}  // namespace

bool IsHandshake(std::string_view frame) { return Reader(frame).Get<uint64_t>() == kMagic; }

std::string Printable(std::string_view text) {
  std::string printable(text);
  for (char& c : printable) {
    if (static_cast<uint8_t>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return printable;
}

// ---- ServerHandshake.

std::string ServerHandshake::Waiting(const std::string& text) {
  return Begin(Frame::kWaiting).PutBytes(text.substr(0, kHandshakeLimit / 2)).bytes();
}

std::string ServerHandshake::Start() { return Begin(Frame::kStart).bytes(); }

std::string ServerHandshake::Refused(const std::string& why, int code) {
  return Begin(Frame::kRefused).PutBytes(why.substr(0, kHandshakeLimit / 2)).Put<int32_t>(code).bytes();
}

HandshakeStep ServerHandshake::Take(std::string_view frame) {
  return hello_.empty() ? TakeHello(frame) : TakeProof(frame);
}

HandshakeStep ServerHandshake::TakeHello(std::string_view frame) {
  Reader reader(frame);
  if (reader.Get<uint64_t>() != kMagic) return Fail(kStranger);
  const uint32_t protocol = reader.Get<uint32_t>();
  if (protocol != kProtocol) {
    return Fail(
        Format("it speaks version %u of the protocol, worker 0 speaks %u: install the same EPL on every machine",
               protocol, kProtocol));
  }
  num_processes_ = reader.Get<int32_t>();
  process_ = reader.Get<int32_t>();
  has_secret_ = reader.Get<uint8_t>() != 0;
  job_ = std::string(reader.GetBytes());
  const bool has_nonce = reader.GetBytes().size() == kNonceBytes;
  if (!reader.done() || !has_nonce || job_.size() > kMostJobName) return Fail(kStranger);
  hello_ = std::string(frame);
  challenge_ = Begin(Frame::kChallenge).Put(number_).PutBytes(Nonce()).bytes();
  return {HandshakeStep::kSend, challenge_};
}

HandshakeStep ServerHandshake::TakeProof(std::string_view frame) {
  if (!SameProof(frame, Proof(identity_, kWorker, hello_, challenge_))) {
    if (!has_secret_) return Fail(Format("it has no job secret, and worker 0 has one: %s", kGiveTheSame));
    if (!identity_.mac) return Fail(Format("it has a job secret, and worker 0 has none: %s", kGiveTheSame));
    return Fail(Format("its job secret is another one than worker 0's: %s, and end what an older job has left running",
                       kGiveTheSame));
  }
  // From here on it is a worker of someone who knows the secret.
  if (job_ != identity_.job) {
    return Fail(
        Format("it belongs to another job: its EPL_JOB_ID is %s, that of worker 0 %s; end what an older job has "
               "left running",
               JobName(job_).c_str(), JobName(identity_.job).c_str()));
  }
  if (num_processes_ != identity_.num_processes) {
    return Fail(
        Format("it was started for a job of %d processes, worker 0 for one of %d: give every worker the same cluster "
               "in TF_CONFIG",
               num_processes_, identity_.num_processes));
  }
  if (process_ <= 0 || process_ >= num_processes_) {
    return Fail(
        Format("its index %d is already taken by worker 0 itself: give every worker its own task index in "
               "TF_CONFIG",
               process_));
  }
  return {HandshakeStep::kDone,
          Begin(Frame::kAccepted).PutBytes(Proof(identity_, kWorker0, hello_, challenge_)).bytes()};
}

// ---- ClientHandshake.

ClientHandshake::ClientHandshake(const Identity& identity) : identity_(identity) {
  hello_ = Writer()
               .Put(kMagic)
               .Put(kProtocol)
               .Put<int32_t>(identity.num_processes)
               .Put<int32_t>(identity.process)
               .Put<uint8_t>(identity.mac ? 1 : 0)
               .PutBytes(identity.job.substr(0, kMostJobName))
               .PutBytes(Nonce())
               .bytes();
}

HandshakeStep ClientHandshake::Take(std::string_view frame) {
  Reader reader(frame);
  reader.Get<uint64_t>();
  const Frame kind = reader.Get<Frame>();
  if (kind == Frame::kRefused) {
    const std::string why = Printable(reader.GetBytes());
    const int code = reader.Get<int32_t>();
    return Fail(why, code == EPL_DEADLINE_EXCEEDED ? code : EPL_FAILED_PRECONDITION);
  }
  if (kind == Frame::kChallenge && state_ == State::kNew) {
    number_ = reader.Get<uint64_t>();
    challenge_ = std::string(frame);
    state_ = State::kChallenged;
    return {HandshakeStep::kSend, Proof(identity_, kWorker, hello_, challenge_)};
  }
  if (kind == Frame::kAccepted && state_ == State::kChallenged) {
    if (!SameProof(reader.GetBytes(), Proof(identity_, kWorker0, hello_, challenge_))) {
      return Fail(
          Format("it does not know the job secret of this worker: %s, and end what an older job has left running",
                 kGiveTheSame));
    }
    state_ = State::kAccepted;
    return {HandshakeStep::kWait, ""};
  }
  if (kind == Frame::kWaiting && server_is_proven()) return {HandshakeStep::kSay, Printable(reader.GetBytes())};
  if (kind == Frame::kStart && server_is_proven()) return {HandshakeStep::kDone, ""};
  return Fail("it says what no worker 0 of this version says: install the same EPL on every machine");
}

}  // namespace epl
