// The transport for buffers on GPUs: NCCL, opened at run time.

#ifndef EPL_COMM_NCCL_H_
#define EPL_COMM_NCCL_H_

#include <memory>
#include <string>

#include "comm/transport.h"

namespace epl {

// Collective over the members.
Status MakeNccl(Job* job, const Members& members, const std::string& name, std::unique_ptr<DeviceTransport>* device);

// Empty if libnccl and libcudart can be opened here, else what is missing.
std::string WhyNoNccl();

}  // namespace epl

#endif  // EPL_COMM_NCCL_H_
