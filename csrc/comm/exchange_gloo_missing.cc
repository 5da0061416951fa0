// Stands in for exchange_gloo.cc in a build without Gloo.

#include "comm/exchange_gloo.h"

namespace epl {

std::string WhyNoGloo() {
  return "not built: install libgloo-dev (apt-get install libgloo-dev) and build again; processes of one machine do "
         "not need it";
}

Status MakeGloo(Job*, const Members&, const std::string&, bool, std::unique_ptr<Exchange>*) {
  return Status(EPL_UNIMPLEMENTED, WhyNoGloo());
}

}  // namespace epl
