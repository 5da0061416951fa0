// Collectives over several machines that send each byte between two machines once, not once per process:
//
//   all_reduce       reduce-scatter inside each machine, all-reduce of the shards across, all-gather inside
//   reduce           reduce-scatter inside, reduce of the shards to the root's machine, gather there
//   reduce_scatter   reduce-scatter inside, reduce-scatter across
//   all_gather       all-gather across, all-gather inside
//   broadcast        inside the root's machine, a shard of each of its processes across, all-gather inside the others;
//                    flat up to 4 KB
//
// Reductions add up the local ranks of each process, then the processes of each machine in their order, then the
// machines in their order: the same on every rank, and for any sizes.

#ifndef EPL_COMM_PROGRAM_HIERARCHICAL_H_
#define EPL_COMM_PROGRAM_HIERARCHICAL_H_

#include <memory>

#include "comm/machine_layout.h"
#include "comm/program.h"

namespace epl {

// Null where the flat program serves. `machines` outlives the program.
std::unique_ptr<Program> MakeHierarchicalProgram(const Op& op, const Members& members, int64_t slot_bytes,
                                                 const MachineLayout& machines);

}  // namespace epl

#endif  // EPL_COMM_PROGRAM_HIERARCHICAL_H_
