// The transport between processes of several machines: Gloo's point-to-point messages over TCP.

#ifndef EPL_COMM_EXCHANGE_GLOO_H_
#define EPL_COMM_EXCHANGE_GLOO_H_

#include <memory>
#include <string>

#include "comm/exchange.h"

namespace epl {

// Collective over the members. Where `hierarchical`, the processes of each machine share memory if they can, and the
// programs send each byte between two machines once.
Status MakeGloo(Job* job, const Members& members, const std::string& name, bool hierarchical,
                std::unique_ptr<Exchange>* exchange);

// Empty if Gloo can be used here, else what it needs.
std::string WhyNoGloo();

}  // namespace epl

#endif  // EPL_COMM_EXCHANGE_GLOO_H_
