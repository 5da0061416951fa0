// The transport between processes of one machine: a segment of shared memory that holds the gate and everyone's slots.

#ifndef EPL_COMM_EXCHANGE_SHM_H_
#define EPL_COMM_EXCHANGE_SHM_H_

#include <memory>
#include <string>

#include "comm/exchange.h"

namespace epl {

// Collective over the members. Fails on all of them, with the same words, if they cannot share memory: they run on
// several machines, or in containers that do not see each other. `gate` may be null: the members pass another one.
// `slot_bytes` is a multiple of 64 * the number of members; 0: it is chosen here.
Status MakeShm(Job* job, const Members& members, const std::string& name, std::unique_ptr<Gate>* gate,
               std::unique_ptr<Exchange>* exchange, int64_t slot_bytes = 0);

}  // namespace epl

#endif  // EPL_COMM_EXCHANGE_SHM_H_
