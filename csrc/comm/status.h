// The result of an operation and the words that go with it. Knows nothing of collectives.

#ifndef EPL_COMM_STATUS_H_
#define EPL_COMM_STATUS_H_

#include <string>
#include <utility>

#include "comm/epl_comm.h"

namespace epl {

class Status {
 public:
  Status() = default;
  Status(int code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == EPL_OK; }
  int code() const { return code_; }
  const std::string& message() const { return message_; }

  // Writes this result into `out` (may be null) and returns the code.
  int Export(epl_status* out) const;

 private:
  int code_ = EPL_OK;
  std::string message_;
};

// printf into a string.
std::string Format(const char* format, ...) __attribute__((format(printf, 1, 2)));
// "8.0" -> "8", "0.25" -> "0.25": seconds as a person writes them.
std::string Seconds(double seconds);
// Seconds of a clock that never jumps.
double Now();

}  // namespace epl

#endif  // EPL_COMM_STATUS_H_
