// The test program's own small framework: tests register themselves, CHECK fails the process that runs it, and
// RunProcesses forks the processes of a job, each with a time limit.

#ifndef EPL_TESTS_CHECK_H_
#define EPL_TESTS_CHECK_H_

#include <functional>
#include <string>
#include <vector>

namespace epl_test {

struct Test {
  const char* name;
  void (*run)();
};

std::vector<Test>& Tests();
struct Registrar {
  Registrar(const char* name, void (*run)()) { Tests().push_back({name, run}); }
};

#define TEST(name)                                                 \
  static void Test_##name();                                       \
  static epl_test::Registrar registrar_##name(#name, Test_##name); \
  static void Test_##name()

// Prints where and what, and ends the process with failure.
[[noreturn]] void Fail(const char* file, int line, const std::string& what);

#define CHECK(condition) \
  if (!(condition)) epl_test::Fail(__FILE__, __LINE__, #condition)
#define CHECK_WORDS(condition, words) \
  if (!(condition)) epl_test::Fail(__FILE__, __LINE__, std::string(#condition) + ": " + (words))
// `text` contains `part`.
#define CHECK_HAS(text, part)                            \
  if (std::string(text).find(part) == std::string::npos) \
  epl_test::Fail(__FILE__, __LINE__, "'" + std::string(part) + "' is not in '" + std::string(text) + "'")

// Fewer repetitions: sanitizers are slow.
extern bool quick;

// Forks `num` processes that each run `body(process)`; checks that all exit with 0, and none later than `limit_s`. A
// body may end its process another way (`expected_signal`, by process) if the test wants that.
void RunProcesses(int num, const std::function<void(int)>& body, double limit_s = 60,
                  const std::vector<int>& expected_signal = {});

// A listening socket on a free port of 127.0.0.1, and its address.
int ListeningSocket(std::string* address);
// What fd 2 was given while `body` ran.
std::string CaptureStderr(const std::function<void()>& body);
double Seconds();
void Sleep(double seconds);

}  // namespace epl_test

#endif  // EPL_TESTS_CHECK_H_
