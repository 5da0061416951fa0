// libepl_gloo.so: Gloo's connections and point-to-point messages over TCP, for comm/exchange_gloo.cc.

#include "comm/gloo_network.h"

#include <gloo/context.h>
#include <gloo/transport/address.h>
#include <gloo/transport/tcp/device.h>

#include <vector>

#include "comm/epl_comm.h"

namespace epl {
namespace {

class Buffer : public GlooBuffer {
 public:
  explicit Buffer(std::unique_ptr<gloo::transport::UnboundBuffer> memory) : memory_(std::move(memory)) {}

  void Send(int process, uint64_t tag, size_t offset, size_t size) override {
    memory_->send(process, tag, offset, size);
  }
  void Receive(int process, uint64_t tag, size_t offset, size_t size) override {
    memory_->recv(process, tag, offset, size);
  }
  bool AwaitSent(std::chrono::milliseconds limit) override { return memory_->waitSend(limit); }
  bool AwaitReceived(std::chrono::milliseconds limit) override { return memory_->waitRecv(limit); }
  void AbortSend() override { memory_->abortWaitSend(); }
  void AbortReceive() override { memory_->abortWaitRecv(); }

 private:
  const std::unique_ptr<gloo::transport::UnboundBuffer> memory_;
};

// A Gloo context whose processes find each other through its owner.
class Network : public GlooNetwork, private gloo::Context {
 public:
  Network(const char* host, int self, int size, double connect_seconds) : gloo::Context(self, size) {
    device_ = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(host));
    transportContext_ = device_->createContext(self, size);
    transportContext_->setTimeout(
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(connect_seconds)));
  }

  std::string AddressFor(int other) override {
    const std::vector<char> bytes = transportContext_->createPair(other)->address().bytes();
    return std::string(bytes.begin(), bytes.end());
  }
  void Connect(int other, const std::string& address) override {
    transportContext_->getPair(other)->connect(std::vector<char>(address.begin(), address.end()));
  }
  std::unique_ptr<GlooBuffer> MakeBuffer(void* memory, size_t size) override {
    return std::unique_ptr<GlooBuffer>(new Buffer(createUnboundBuffer(memory, size)));
  }
  void Close() override { closeConnections(); }
};

}  // namespace
}  // namespace epl

extern "C" EPL_EXPORT epl::GlooNetwork* epl_gloo_listen_1(const char* host, int self, int size,
                                                          double connect_seconds) {
  return new epl::Network(host, self, size, connect_seconds);
}
