// What the core needs of Gloo: connections to other processes, and memory that is sent and received over them. A
// library of its own implements it (gloo/gloo_network.cc, libepl_gloo.so), found at run time beside the core, so that
// one build serves machines with and without Gloo. Gloo reports by exceptions: each function may throw a
// std::exception.

#ifndef EPL_COMM_GLOO_NETWORK_H_
#define EPL_COMM_GLOO_NETWORK_H_

#include <stddef.h>
#include <stdint.h>

#include <chrono>
#include <memory>
#include <string>

namespace epl {

// Memory that is sent to other processes or received from them, one message of each way at a time.
class GlooBuffer {
 public:
  virtual ~GlooBuffer() = default;
  virtual void Send(int process, uint64_t tag, size_t offset, size_t size) = 0;
  virtual void Receive(int process, uint64_t tag, size_t offset, size_t size) = 0;
  // True when it is done, false when it was aborted. Too long a wait is an exception.
  virtual bool AwaitSent(std::chrono::milliseconds limit) = 0;
  virtual bool AwaitReceived(std::chrono::milliseconds limit) = 0;
  virtual void AbortSend() = 0;
  virtual void AbortReceive() = 0;
};

// This process and the others, numbered from 0.
class GlooNetwork {
 public:
  virtual ~GlooNetwork() = default;
  // What process `other` needs for connecting to this one.
  virtual std::string AddressFor(int other) = 0;
  // Connects to process `other`; `address` is what it gave for this one.
  virtual void Connect(int other, const std::string& address) = 0;
  virtual std::unique_ptr<GlooBuffer> MakeBuffer(void* memory, size_t size) = 0;
  // Ends what is in flight; the buffers may go then.
  virtual void Close() = 0;
};

// Listens at `host`, an address of this machine, as process `self` of `size`. The library's one function.
using GlooListen = GlooNetwork* (*)(const char* host, int self, int size, double connect_seconds);
constexpr const char* kGlooLibrary = "libepl_gloo.so";
constexpr const char* kGlooListen = "epl_gloo_listen_1";  // the number grows with each change of the above

}  // namespace epl

#endif  // EPL_COMM_GLOO_NETWORK_H_
