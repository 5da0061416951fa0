// Formatting of results and messages.

#include "comm/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <algorithm>

namespace epl {

int Status::Export(epl_status* out) const {
  if (out != nullptr) {
    out->code = code_;
    size_t size = std::min(message_.size(), sizeof(out->message) - 1);
    memcpy(out->message, message_.data(), size);
    out->message[size] = '\0';
  }
  return code_;
}

std::string Format(const char* format, ...) {
  va_list args;
  va_start(args, format);
  va_list again;
  va_copy(again, args);
  int size = vsnprintf(nullptr, 0, format, args);
  va_end(args);
  std::string text(size > 0 ? size : 0, '\0');
  if (size > 0) vsnprintf(&text[0], size + 1, format, again);
  va_end(again);
  return text;
}

std::string Seconds(double seconds) { return Format(seconds < 10 ? "%.3g" : "%.0f", seconds); }

double Now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

}  // namespace epl
