// Machines by the hosts of the processes' addresses.

#include "comm/machine_layout.h"

#include <algorithm>

namespace epl {

MachineLayout MakeMachineLayout(const Job& job, const Members& members) {
  MachineLayout layout;
  std::vector<std::string> hosts;
  for (int member = 0; member < members.num_members(); ++member) {
    const std::string host = job.HostOf(members.processes[member]);
    const size_t machine = std::find(hosts.begin(), hosts.end(), host) - hosts.begin();
    if (machine == hosts.size()) {
      hosts.push_back(host);
      layout.members.emplace_back();
    }
    layout.machine_of.push_back(static_cast<int>(machine));
    layout.place_of.push_back(static_cast<int>(layout.members[machine].size()));
    layout.members[machine].push_back(member);
  }
  return layout;
}

bool HasMachines(const Job& job, const Members& members) {
  const MachineLayout layout = MakeMachineLayout(job, members);
  const size_t each = layout.members[0].size();
  return layout.num_machines() > 1 && each > 1 &&
         std::all_of(layout.members.begin(), layout.members.end(),
                     [each](const std::vector<int>& here) { return here.size() == each; });
}

}  // namespace epl
