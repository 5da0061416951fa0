// Which members of a communicator run on which machine, for collectives that are hierarchical.
//
//              place 0    place 1        a row talks by shared memory, a column (the members of equal place) over the
//   machine 0  member 0   member 1       network
//   machine 1  member 2   member 3

#ifndef EPL_COMM_MACHINE_LAYOUT_H_
#define EPL_COMM_MACHINE_LAYOUT_H_

#include <vector>

#include "comm/collective.h"
#include "comm/job.h"

namespace epl {

struct MachineLayout {
  std::vector<std::vector<int>> members;  // by machine and place, in the order of the members
  std::vector<int> machine_of;            // by member
  std::vector<int> place_of;              // by member

  int num_machines() const { return static_cast<int>(members.size()); }
  int num_places() const { return static_cast<int>(members[0].size()); }
};

// Processes whose addresses have one host run on one machine.
MachineLayout MakeMachineLayout(const Job& job, const Members& members);
// Whether there are several machines with equally many members, at least two on each.
bool HasMachines(const Job& job, const Members& members);

}  // namespace epl

#endif  // EPL_COMM_MACHINE_LAYOUT_H_
