// What the kernels use of TensorFlow and what its versions call by different names. No other file of csrc knows a
// version of TensorFlow.
//
//            | 1.15                            | 2.15                              | 2.21
//   Status   | tensorflow::Status              | absl::Status                      | absl::Status
//   Int64    | long long                       | int64_t                           | int64_t
//   stream   | implementation()->GpuStream...  | platform_specific_handle().stream | platform_specific_handle().stream
//   zeroing  | Stream::ThenMemZero             | Stream::ThenMemZero               | Stream::MemZero
//   memory   | DeviceMemoryBase                | DeviceMemoryBase                  | DeviceAddressBase
//   failures | errors::..., strings::StrCat    | errors::..., strings::StrCat      | both deprecated
//
// EPL_TF_VERSION is 100 * major + minor. csrc/tensorflow_flags.py gives it: the headers of 2.21 do not have it.

#ifndef EPL_TENSORFLOW_TF_COMPAT_H_
#define EPL_TENSORFLOW_TF_COMPAT_H_

#include <cstdint>
#include <sstream>
#include <string>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/lib/core/errors.h"
#include "tensorflow/core/lib/core/status.h"
#include "tensorflow/core/platform/stream_executor.h"

#ifndef EPL_TF_VERSION
#error "EPL_TF_VERSION is not defined; build with csrc/Makefile, which asks csrc/tensorflow_flags.py for it."
#endif

namespace epl {
namespace compat {

#if EPL_TF_VERSION >= 200
using Status = absl::Status;
using StatusCode = absl::StatusCode;
using Int64 = int64_t;
#else
using Status = tensorflow::Status;
using StatusCode = tensorflow::error::Code;
using Int64 = tensorflow::int64;
#endif

// The status of success.
inline Status Ok() { return Status(); }

// The words one after another.
template <typename... Words>
std::string Text(const Words&... words) {
  std::ostringstream text;
  using Each = int[];
  (void)Each{0, (text << words, 0)...};
  return text.str();
}

// A failure whose message is the words one after another.
template <typename... Words>
Status Failure(tensorflow::error::Code code, const Words&... words) {
  return Status(static_cast<StatusCode>(code), Text(words...));
}

template <typename... Words>
Status InvalidArgument(const Words&... words) {
  return Failure(tensorflow::error::INVALID_ARGUMENT, words...);
}

// The stream that CUDA knows, for the core.
inline void* GpuStream(stream_executor::Stream* stream) {
#if EPL_TF_VERSION >= 200
  return stream->platform_specific_handle().stream;
#else
  return *stream->implementation()->GpuStreamMemberHack();
#endif
}

// Sets `bytes` of device memory to zero, in the order of the stream.
inline Status ZeroInOrder(stream_executor::Stream* stream, void* buffer, int64_t bytes) {
#if EPL_TF_VERSION >= 221
  stream_executor::DeviceAddressBase memory(buffer, bytes);
#else
  stream_executor::DeviceMemoryBase memory(buffer, bytes);
#endif
#if EPL_TF_VERSION >= 216
  return stream->MemZero(&memory, bytes);
#else
  stream->ThenMemZero(&memory, bytes);
  return Ok();
#endif
}

}  // namespace compat
}  // namespace epl

#endif  // EPL_TENSORFLOW_TF_COMPAT_H_
