// Who of a job has not been heard from, and for how long. A process that is stopped, swapped out or cut off keeps its
// connection, so nothing but its silence tells.
//
//     process 1 ---- kPulse, every second ------------------------------------> process 0
//     process 1 <--- kSilent: "process 3 has been silent for 40 s" -------------- process 0
//
// So process 0 knows about all, the others about process 0 by themselves and about the rest by its word. A value that
// the control thread keeps; it owns no socket and no thread.

#ifndef EPL_COMM_PULSE_H_
#define EPL_COMM_PULSE_H_

#include <string>
#include <utility>
#include <vector>

namespace epl {

class Pulse {
 public:
  explicit Pulse(int num_processes);

  // Begins a round of the control thread. What this process has slept itself counts as nobody's silence.
  void Begin(double now);
  // Whether this round sends a pulse.
  bool due() const { return due_; }
  // Something came from a process.
  void Heard(int process) { heard_[process] = round_; }
  // Nothing is expected of a process any more: it left, died, or has no connection with this one.
  void Gone(int process);
  // Process 0: the kSilent for another process.
  std::string Report() const;
  // The others: takes the seconds, by process, of a kSilent.
  void Take(std::vector<double> silences) { reported_ = std::move(silences); }
  // Seconds since each process was heard; 0 for those that are well.
  std::vector<double> Silences() const;

 private:
  double round_;
  double next_pulse_ = 0;
  bool due_ = false;
  std::vector<double> heard_;     // at the beginning of which round
  std::vector<double> reported_;  // what process 0 said
};

}  // namespace epl

#endif  // EPL_COMM_PULSE_H_
