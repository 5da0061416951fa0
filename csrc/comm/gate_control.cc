// The gate by way of the control plane: entering is a gathering of announcements at process 0, which is complete for
// all or for none.

#include "comm/exchange.h"

namespace epl {
namespace {

class ControlGate : public Gate {
 public:
  ControlGate(Job* job, const Members& members, const std::string& name)
      : job_(job), processes_(members.processes), key_("gate/" + name) {}

  Status Pass(const std::string& announcement, StallWatch* watch, std::vector<std::string>* all) override {
    return job_->Gather(key_, processes_, announcement, watch, all);
  }

 private:
  Job* const job_;
  const std::vector<int> processes_;
  const std::string key_;
};

}  // namespace

std::unique_ptr<Gate> MakeControlGate(Job* job, const Members& members, const std::string& name) {
  return std::unique_ptr<Gate>(new ControlGate(job, members, name));
}

}  // namespace epl
