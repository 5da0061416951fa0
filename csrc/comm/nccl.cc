#include "comm/nccl.h"
namespace epl {
std::string WhyNoNccl() { return "not in this build"; }
Status MakeNccl(Job*, const Members&, const std::string&, std::unique_ptr<DeviceTransport>*) {
  return Status(EPL_UNIMPLEMENTED, WhyNoNccl());
}
}  // namespace epl
