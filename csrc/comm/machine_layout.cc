// Machines by the hosts of the processes' addresses.

#include "comm/machine_layout.h"

#include <algorithm>

namespace epl {

Status MakeMachineLayout(const Job& job, const Members& members, MachineLayout* layout) {
  std::vector<std::string> hosts;
  for (int member = 0; member < members.num_members(); ++member) {
    const std::string host = job.HostOf(members.processes[member]);
    const size_t machine = std::find(hosts.begin(), hosts.end(), host) - hosts.begin();
    if (machine == hosts.size()) {
      hosts.push_back(host);
      layout->members.emplace_back();
    }
    layout->machine_of.push_back(static_cast<int>(machine));
    layout->place_of.push_back(static_cast<int>(layout->members[machine].size()));
    layout->members[machine].push_back(member);
  }
  bool fits = layout->num_machines() > 1 && layout->num_places() > 1;
  std::string counts;
  for (size_t machine = 0; machine < hosts.size(); ++machine) {
    const size_t count = layout->members[machine].size();
    fits = fits && count == layout->members[0].size();
    counts += Format("%s%d on %s", counts.empty() ? "" : ", ", static_cast<int>(count), hosts[machine].c_str());
  }
  if (fits) return Status();
  return Status(EPL_INVALID_ARGUMENT, "its processes are " + counts +
                                          "; expected several machines with equally many processes, at least two on "
                                          "each");
}

}  // namespace epl
