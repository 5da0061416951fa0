// Forking, time limits, and main.

#include "tests/check.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <set>

#include "tests/gpu/stand_in.h"

namespace epl_test {

bool quick = false;
static const int failure_fd = fcntl(2, F_DUPFD_CLOEXEC, 3);  // also while stderr is captured

std::vector<Test>& Tests() {
  static std::vector<Test>* tests = new std::vector<Test>;
  return *tests;
}

void Fail(const char* file, int line, const std::string& what) {
  dprintf(failure_fd, "%s:%d: process %d: %s\n", file, line, getpid(), what.c_str());
  _exit(1);
}

double Seconds() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

void Sleep(double seconds) { usleep(static_cast<useconds_t>(seconds * 1e6)); }

void RunProcesses(int num, const std::function<void(int)>& body, double limit_s,
                  const std::vector<int>& expected_signal) {
  std::vector<pid_t> pids;
  fflush(nullptr);
  for (int process = 0; process < num; ++process) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
      body(process);
      exit(0);  // runs the sanitizers' own checks
    }
    pids.push_back(pid);
  }
  std::vector<bool> gone(num);
  const double deadline = Seconds() + limit_s;
  std::string wrong;
  for (int left = num; left > 0;) {
    for (int process = 0; process < num; ++process) {
      int status;
      if (gone[process] || waitpid(pids[process], &status, WNOHANG) == 0) continue;
      gone[process] = true;
      --left;
      int signal = process < static_cast<int>(expected_signal.size()) ? expected_signal[process] : 0;
      bool fine = signal != 0 ? WIFSIGNALED(status) && WTERMSIG(status) == signal
                              : WIFEXITED(status) && WEXITSTATUS(status) == 0;
      if (!fine) wrong += " process " + std::to_string(process) + " ended with status " + std::to_string(status) + ";";
    }
    if (Seconds() > deadline || (!wrong.empty() && Seconds() > deadline - limit_s + 10)) {
      for (int process = 0; process < num; ++process) {
        if (gone[process]) continue;
        wrong += " process " + std::to_string(process) + " took too long;";
        if (getenv("EPL_TEST_DEBUG") != nullptr) continue;
        kill(pids[process], SIGKILL);
        waitpid(pids[process], nullptr, 0);
        gone[process] = true;
        --left;
      }
    }
    Sleep(0.001);
  }
  CHECK_WORDS(wrong.empty(), wrong);
}

int ListeningSocket(std::string* address) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in name = {};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)) == 0);
  CHECK(listen(fd, 64) == 0);
  socklen_t size = sizeof(name);
  CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) == 0);
  *address = "127.0.0.1:" + std::to_string(ntohs(name.sin_port));
  return fd;
}

std::string CaptureStderr(const std::function<void()>& body) {
  FILE* file = tmpfile();
  int saved = dup(2);
  dup2(fileno(file), 2);
  body();
  fflush(stderr);
  dup2(saved, 2);
  close(saved);
  std::string text;
  rewind(file);
  char buffer[4096];
  for (size_t size; (size = fread(buffer, 1, sizeof(buffer), file)) > 0;) text.append(buffer, size);
  fclose(file);
  fputs(text.c_str(), stderr);
  return text;
}

namespace {

std::set<std::string> SharedMemoryFiles() {
  std::set<std::string> names;
  DIR* folder = opendir("/dev/shm");
  if (folder == nullptr) return names;
  while (dirent* entry = readdir(folder)) {
    if (strncmp(entry->d_name, "epl", 3) == 0) names.insert(entry->d_name);
  }
  closedir(folder);
  return names;
}

// The folder in which ranks on GPUs meet, in memory; made for the run, empty before each test.
class Boards {
 public:
  Boards() {
    CHECK(mkdtemp(folder_) != nullptr);
    setenv(gpu_stand_in::kBoards, folder_, 1);
  }
  ~Boards() {
    Clear();
    rmdir(folder_);
  }
  void Clear() {
    nftw(
        folder_, [](const char* path, const struct stat*, int, FTW* at) { return at->level > 0 ? remove(path) : 0; }, 8,
        FTW_DEPTH | FTW_PHYS);
  }

 private:
  char folder_[32] = "/dev/shm/gpu_boards.XXXXXX";
};

}  // namespace
}  // namespace epl_test

int BenchMain(int argc, char** argv);

// test_core [--quick] [--list] [--exact] [(part of) a test's name]...   |   test_core bench [...]
int main(int argc, char** argv) {
  using namespace epl_test;
  if (argc > 1 && strcmp(argv[1], "bench") == 0) return BenchMain(argc - 1, argv + 1);
  std::vector<std::string> wanted;
  bool list = false, exact = false;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else if (strcmp(argv[i], "--exact") == 0) {
      exact = true;
    } else if (strcmp(argv[i], "--list") == 0) {
      list = true;
    } else {
      wanted.push_back(argv[i]);
    }
  }
  signal(SIGPIPE, SIG_IGN);
  Boards boards;
  int failures = 0, runs = 0;
  for (const Test& test : Tests()) {
    bool chosen = wanted.empty();
    for (const std::string& part : wanted) {
      chosen = chosen || (exact ? part == test.name : strstr(test.name, part.c_str()) != nullptr);
    }
    if (!chosen) continue;
    if (list) {
      printf("%s\n", test.name);
      continue;
    }
    printf("[ RUN  ] %s\n", test.name);
    fflush(stdout);
    ++runs;
    const double start = Seconds();
    // In a process of its own, so that the parent stays without threads and a failure ends one test.
    pid_t pid = fork();
    if (pid == 0) {
      test.run();
      if (!SharedMemoryFiles().empty()) Fail(__FILE__, __LINE__, "left in /dev/shm: " + *SharedMemoryFiles().begin());
      exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    boards.Clear();
    bool ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    failures += !ok;
    printf("[ %s ] %s (%.1f s)\n", ok ? "  OK" : "FAIL", test.name, Seconds() - start);
    fflush(stdout);
  }
  if (!list) printf("%d of %d tests failed\n", failures, runs);
  return failures == 0 && (list || runs > 0) ? 0 : 1;
}
