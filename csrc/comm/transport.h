// Chooses and makes the transport of a communicator.

#ifndef EPL_COMM_TRANSPORT_H_
#define EPL_COMM_TRANSPORT_H_

#include <memory>
#include <string>

#include "comm/exchange.h"

namespace epl {

// Does collectives on GPU buffers, whole, without slots.
class DeviceTransport {
 public:
  virtual ~DeviceTransport() = default;
  virtual const char* name() const = 0;
  // Called in the submitting thread: marks on the request's stream that its buffers are ready from here on.
  virtual Status Prepare(Request* request) = 0;
  // Enqueues the collective; all processes do so now. `finished` is called, from any thread, once the data has moved.
  virtual Status Run(const Op& op, const std::vector<Announcement>& all,
                     std::function<void(const Status&)> finished) = 0;
  // Frees what Prepare made for a request that is not run.
  virtual void Discard(Request* request) = 0;
  // Waits until all that runs has finished.
  virtual void Drain() = 0;
};

struct Transport {
  std::unique_ptr<Gate> gate;
  std::unique_ptr<Exchange> exchange;       // for buffers in memory
  std::unique_ptr<DeviceTransport> device;  // or for those on a GPU

  const char* name() const { return device != nullptr ? device->name() : exchange->name(); }
};

// Collective over the members. `wanted` is "auto" or a transport's name.
Status MakeTransport(Job* job, const Members& members, const std::string& name, const std::string& wanted,
                     Transport* transport);

// What this build and this machine can do: "local shm gloo nccl"; `why` names what the missing ones need.
const char* AvailableTransports(const char** why);

}  // namespace epl

#endif  // EPL_COMM_TRANSPORT_H_
