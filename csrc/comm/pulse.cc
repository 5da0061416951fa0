// Counting silence.

#include "comm/pulse.h"

#include <algorithm>

#include "comm/coordinator.h"
#include "comm/wire.h"

namespace epl {
namespace {

constexpr double kInterval = 1;
constexpr double kWell = 3;    // seconds of silence that mean nothing
constexpr double kAsleep = 2;  // seconds between two rounds, which last half a second, that say: this process slept

}  // namespace

Pulse::Pulse(int num_processes) : round_(Now()), heard_(num_processes, round_), reported_(num_processes) {}

void Pulse::Begin(double now) {
  const double gap = now - round_;
  if (gap > kAsleep) {
    for (double& heard : heard_) heard += gap;
  }
  round_ = now;
  due_ = now >= next_pulse_;
  if (due_) next_pulse_ = now + kInterval;
}

void Pulse::Gone(int process) {
  Heard(process);
  if (process == 0) reported_.assign(reported_.size(), 0);  // nobody says any more that a silence has ended
}

std::string Pulse::Report() const {
  const std::vector<double> silences = Silences();
  Writer writer;
  writer.Put(Message::kSilent).Put<int32_t>(silences.size() - std::count(silences.begin(), silences.end(), 0));
  for (size_t process = 0; process < silences.size(); ++process) {
    if (silences[process] > 0) writer.Put<int32_t>(process).Put(silences[process]);
  }
  return writer.bytes();
}

std::vector<double> Pulse::Silences() const {
  std::vector<double> silences = reported_;
  for (size_t process = 0; process < silences.size(); ++process) {
    const double silence = round_ - heard_[process];
    if (silence > kWell) silences[process] = std::max(silences[process], silence);
  }
  return silences;
}

}  // namespace epl
